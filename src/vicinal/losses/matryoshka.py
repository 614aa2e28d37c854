"""The same loss at several sizes, so that the leading dimensions alone are vectors already (arXiv 2205.13147, eq. 1).

    L = sum_m c_m loss(z[:m])

Each size is truncated, normalised and corrected by itself, as it will be when it is searched. Weights are 1 unless they
are given, as in the paper, so the sum grows with the number of sizes.

>>> from .contrastive import Contrastive
>>> views = Views(torch.eye(4) + 0.1, torch.eye(4))
>>> loss = Contrastive()
>>> nested = Matryoshka(loss, sizes=(2, 4), weights=(0.5, 1.0))
>>> bool(nested(views) == 0.5 * loss(views, 2) + loss(views, 4))
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .base import Loss, Views


@dataclass(frozen=True)
class Matryoshka:
    """A weighted sum of one loss over sizes."""

    loss: Loss
    sizes: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        weighted(self.sizes, self.weights)

    def __call__(self, views: Views, dim: int | None = None) -> Tensor:
        full = views.queries.shape[1]
        if dim not in (None, full):
            raise InputError(f"a Matryoshka loss was asked for at size {dim}: it has sizes of its own, {self.sizes}")
        if max(self.sizes) > full:
            raise InputError(f"Matryoshka sizes are {self.sizes}, but vectors have {full} dimensions: take none above")
        terms = [weight * self.loss(views, size) for size, weight in weighted(self.sizes, self.weights)]
        return torch.stack(terms).sum()


def weighted(sizes: Sequence[int], weights: Sequence[float] | None) -> list[tuple[int, float]]:
    """Sizes with their weights c_m, 1 where none are given; refuses what cannot be a list of sizes.

    >>> weighted((8, 16), None)
    [(8, 1.0), (16, 1.0)]
    """
    if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise InputError(f"Matryoshka sizes are {tuple(sizes)}: expected one or more, each 1 or more, none twice")
    weights = [1.0] * len(sizes) if weights is None else weights
    if len(weights) != len(sizes) or not all(0 < weight < float("inf") for weight in weights):
        raise InputError(
            f"Matryoshka weights are {tuple(weights)} for the sizes {tuple(sizes)}: expected a positive number each"
        )
    return list(zip(sizes, weights, strict=True))
