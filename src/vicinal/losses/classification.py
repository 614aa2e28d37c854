"""Classes read off several sizes of one vector: Matryoshka for classification (arXiv 2205.13147, eq. 1).

    L = sum_m c_m cross_entropy(W_m z[:m], label)

Raw vectors enter, as in the paper: here nothing is compared by cosine. Each size has a matrix of its own or, `tied`
(MRL-E), the first m columns of one.

>>> heads = NestedClassifier(dim=8, classes=3, sizes=(2, 8), tied=True)
>>> heads.scores(torch.ones(5, 8), size=2).shape, heads(torch.ones(5, 8), torch.zeros(5, dtype=torch.long)).shape
(torch.Size([5, 3]), torch.Size([]))
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList
from torch.nn.functional import cross_entropy, linear

from ..errors import InputError
from .matryoshka import weighted


class NestedClassifier(Module):
    """A linear classifier per size, and their summed loss."""

    def __init__(
        self,
        dim: int,
        classes: int,
        sizes: Sequence[int],
        tied: bool = False,
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.weights = dict(weighted(sizes, weights))
        if max(sizes) > dim or classes < 2:
            raise InputError(
                f"nested heads of sizes {tuple(sizes)} and {classes} classes were asked for, on {dim} dimensions: "
                f"expected sizes of 1 to {dim}, and 2 classes or more"
            )
        self.dim, self.tied = dim, tied
        widths = [max(sizes)] if tied else list(self.weights)
        self.heads = ModuleList(Linear(width, classes, bias=False) for width in widths)

    def scores(self, vectors: Tensor, size: int) -> Tensor:
        """W_m z[:m], (vectors, classes)."""
        if size not in self.weights or vectors.shape[1] != self.dim:
            raise InputError(
                f"classes were asked for at size {size} of vectors with {vectors.shape[1]} dimensions: expected a size "
                f"out of {tuple(self.weights)} and {self.dim} dimensions"
            )
        head = self.heads[0 if self.tied else list(self.weights).index(size)].get_parameter("weight")
        return linear(vectors[:, :size], head[:, :size])

    def forward(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """The loss of vectors (n, dim) with labels (n,)."""
        terms = [weight * cross_entropy(self.scores(vectors, size), labels) for size, weight in self.weights.items()]
        return torch.stack(terms).sum()
