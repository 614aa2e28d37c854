"""Linear layers through oneDNN, on a CPU that has MKL as well.

torch carries two libraries that compute x W' + b. In 32 bit it takes MKL, which on AMD's processors runs at less than
half of oneDNN's speed (measured, 2048 x 384 x 1536 on a Zen 5 core: 113 against 257 GFLOP/s; on Intel's they are said
to be equal: assumption). In bf16 it takes oneDNN, and copies the bias first (measured: 8 % of such a product).
`use_onednn` lets a module's layers call oneDNN themselves, by the operator that torch's compiler emits. Weights stay
what they are and where they are.

>>> layer = torch.nn.Linear(3, 2)
>>> vectors = torch.ones(4, 3)
>>> with torch.inference_mode():
...     plain = layer(vectors)
...     use_onednn(layer)
...     torch.testing.assert_close(layer(vectors), plain)
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


class OneDnnLinear(torch.nn.Linear):
    """A linear layer that has no gradient, and is a plain one wherever a gradient is wanted, or oneDNN has no say."""

    def forward(self, input: Tensor) -> Tensor:
        plain = self.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
        if plain or input.device.type != "cpu" or input.dtype == torch.float64:
            return super().forward(input)
        return _product(input, self.weight, self.bias)


def use_onednn(model: torch.nn.Module) -> None:
    """Change every plain linear layer of a model on a CPU; does nothing where torch lacks the operator."""
    if works():
        for module in model.modules():
            if type(module) is torch.nn.Linear:
                module.__class__ = OneDnnLinear


@cache
def works() -> bool:
    """Whether torch's private operator is there, and still does what it did: it is tried on a small product."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    x, weight, bias = torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, -0.5])
    try:
        return torch.equal(_product(x, weight, bias), torch.tensor([[1.5, 2.5], [2.5, 3.5]]))
    except (AttributeError, RuntimeError, TypeError):
        return False


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out
