"""A projection behind the pooling: sentence-transformers' Dense module.

    out = f(W v + b),     f: tanh unless its settings say otherwise

>>> projection = Projection(torch.eye(2), None, "torch.nn.modules.linear.Identity")
>>> projection(torch.tensor([[1.0, 2.0]])).tolist()
[[1.0, 2.0]]
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import ModelError
from .folder import read_json

WEIGHTS = "model.safetensors"
PLAIN_INPUT = "sentence_embedding"
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
        name = str(activation).rsplit(".", 1)[-1]
        if name not in ACTIVATIONS:
            raise ModelError(f"a projection's activation is {activation}; those that work are {', '.join(ACTIVATIONS)}")
        self.weight, self.activation = weight.float(), ACTIVATIONS[name]
        self.bias = bias if bias is None else bias.float()
        self.takes, self.width = int(weight.shape[1]), int(weight.shape[0])

    @staticmethod
    def files(folder: Path) -> list[Path]:
        return [folder / "config.json", folder / WEIGHTS]

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Projection:
        """Read a Dense module's folder."""
        config, weights = cls.files(folder)
        settings = read_json(config, dict)
        if not weights.is_file():
            raise ModelError(f"{folder} has no {WEIGHTS}; expected a projection's weights, never pickled ones")
        try:
            tensors = load_file(weights, device=str(device))
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelError(f"{weights} is damaged ({str(error)[:200]}): fetch the model again") from None
        weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
        if settings.get("use_residual") or settings.get("module_input_name", PLAIN_INPUT) != PLAIN_INPUT:
            raise ModelError(f"{folder} is a projection with a residual, or of other inputs; only a plain one works")
        if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            raise ModelError(f"{weights} does not hold a projection's matrix and bias: fetch the model again")
        return cls(weight, bias, settings.get("activation_function") or "Tanh")

    def __call__(self, vectors: Tensor) -> Tensor:
        out: Tensor = self.activation(torch.nn.functional.linear(vectors.float(), self.weight, self.bias))
        return out
