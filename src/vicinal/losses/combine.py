"""Several losses as one: their weighted sum, which is a loss again.

>>> from .contrastive import Contrastive
>>> from .kl import KL
>>> views = Views(torch.eye(2), torch.eye(2), teacher=torch.eye(2))
>>> bool(Sum(((1.0, Contrastive()), (0.5, KL())))(views) == Contrastive()(views) + 0.5 * KL()(views))
True
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from .base import Loss, Views


@dataclass(frozen=True)
class Sum:
    """sum_k w_k loss_k, all of the same views and at the same size."""

    parts: tuple[tuple[float, Loss], ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise InputError("a sum of no losses was asked for: give one pair (weight, loss) or more")
        if wrong := [weight for weight, _ in self.parts if not 0 < weight < float("inf")]:
            raise InputError(f"a loss has the weight {wrong[0]}: expected a positive number, or leave that loss out")

    def __call__(self, views: Views, dim: int | None = None) -> Tensor:
        return torch.stack([weight * loss(views, dim) for weight, loss in self.parts]).sum()
