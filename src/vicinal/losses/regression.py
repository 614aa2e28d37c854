"""A student's vector turned towards a teacher's vector of the same text, query or document (arXiv 2412.19048).

    L = 1/2 mean_i (1 - cos(P q_i, t_i)) + 1/2 mean_j (1 - cos(P d_j, u_j))

One minus the cosine is half the squared distance of the normalised vectors, so there is no second loss for that. P is
`head`, where one is given: it lets the student have other dimensions than its teacher, is thrown away after training,
and is trained by whoever made it. At a size m its first m columns are used, so Matryoshka sizes share one head.

>>> import torch
>>> vectors = torch.eye(3)
>>> Regression()(Views(vectors, vectors, targets=(5 * vectors, vectors))).item()
0.0
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import linear

from ..errors import InputError
from .base import Views, full_precision, unit


@dataclass(frozen=True, eq=False)
class Regression:
    """One minus the cosine between student's and teacher's vectors."""

    head: Linear | None = None  # from the student's dimensions to the teacher's

    def __call__(self, views: Views, dim: int | None = None) -> Tensor:
        if views.targets is None:
            raise InputError("a regression needs a teacher's vectors, and there are none: give Views targets")
        sides = zip(("queries", "documents"), views.at(dim), views.targets, strict=True)
        return sum((self._distance(*side) for side in sides), start=views.queries.new_zeros(())) / 2

    def _distance(self, side: str, vectors: Tensor, target: Tensor) -> Tensor:
        if not 1 <= len(target) <= len(vectors) or (side == "queries" and len(target) < len(vectors)):
            raise InputError(f"there are {len(vectors)} {side}, and a teacher's vectors of {len(target)}: expected all")
        vectors = self._projected(vectors[: len(target)])
        if vectors.shape[1] != target.shape[1]:
            raise InputError(
                f"the student's vectors have {vectors.shape[1]} dimensions, the teacher's {target.shape[1]}: give "
                f"Regression(head=torch.nn.Linear({vectors.shape[1]}, {target.shape[1]})), and train it too"
            )
        return (1 - (unit(vectors) * unit(target.detach())).sum(dim=1)).mean()

    def _projected(self, vectors: Tensor) -> Tensor:
        if self.head is None:
            return vectors
        size, width = vectors.shape[1], self.head.in_features
        if size > width:
            raise InputError(f"the head takes {width} dimensions, and vectors have {size}: make one that takes as many")
        with full_precision(vectors):
            bias = None if self.head.bias is None else self.head.bias.to(vectors.dtype)
            return linear(vectors, self.head.weight[:, :size].to(vectors.dtype), bias)
