"""A projection behind the pooling: sentence-transformers' Dense module.

    out = f(W v + b),     f: tanh unless its settings say otherwise

>>> projection = Projection(torch.eye(2), None, "torch.nn.modules.linear.Identity")
>>> projection(torch.tensor([[1.0, 2.0]])).tolist()
[[1.0, 2.0]]
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import ModelError

WEIGHTS = "model.safetensors"
ACTIVATIONS = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": torch.nn.functional.gelu,
    "SiLU": torch.nn.functional.silu,
    "Sigmoid": torch.sigmoid,
}


class Projection:
    """One Dense module, in 32 bit whatever the backbone computes in: it costs next to nothing."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str) -> None:
        name = activation.rsplit(".", 1)[-1]
        if name not in ACTIVATIONS:
            raise ModelError(f"a projection has the activation {activation}; those that work are {', '.join(ACTIVATIONS)}")
        self.weight, self.bias, self.activation = weight.float(), bias, ACTIVATIONS[name]
        self.width = int(weight.shape[0])

    @staticmethod
    def files(folder: Path) -> list[Path]:
        return [folder / "config.json", folder / WEIGHTS]

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Projection:
        """Read a Dense module's folder."""
        config, weights = cls.files(folder)
        try:
            settings = json.loads(config.read_text(encoding="utf-8"))
            tensors = load_file(weights, device=str(device))
            weight, bias = tensors["linear.weight"], tensors.get("linear.bias")
            residual = settings.get("use_residual", False)
            activation = settings.get("activation_function") or "Tanh"
            other = settings.get("module_input_name", "sentence_embedding") != "sentence_embedding"
        except FileNotFoundError as error:
            raise ModelError(f"{folder} lacks {Path(error.filename or WEIGHTS).name}: fetch the model again") from None
        except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
            raise ModelError(f"{folder} cannot be read as a projection ({error!r}): fetch the model again") from None
        if residual or other or weight.ndim != 2:
            raise ModelError(f"{folder} is a projection with a residual, or of other inputs; only a plain one works")
        return cls(weight, bias, activation)

    def __call__(self, vectors: Tensor) -> Tensor:
        out: Tensor = self.activation(torch.nn.functional.linear(vectors.float(), self.weight, self.bias))
        return out
