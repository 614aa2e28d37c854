"""By how much a teacher prefers a query's own document to another one, wherever its scores lie (arXiv 2010.02666).

    L = 1/n sum_i mean over j in K_i of ( (s_ii - s_ij) - (t_ii - t_ij) )^2,    s_ij = scale q_i . d_j

K_i is every other document that is allowed and known. A query without any, or whose own document's score is unknown,
adds 0. Means are taken per query first: one with many known documents has no more say than one with few.

>>> import torch
>>> views = Views(torch.eye(2), torch.eye(2), teacher=torch.tensor([[3.0, 1.0], [0.0, 2.0]]))
>>> MarginMSE(scale=2.0)(views).item()  # both margins are 2 already
0.0
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Views, checked_positive, cosines


@dataclass(frozen=True)
class MarginMSE:
    """Squared difference between the margins of student and teacher."""

    scale: float = 1.0  # of the teacher's scores, where cosines are 1: a cross-encoder's logits may want 10

    def __post_init__(self) -> None:
        checked_positive("scale", self.scale)

    def __call__(self, views: Views, dim: int | None = None) -> Tensor:
        queries, documents = views.at(dim)
        teacher, known = views.taught()
        scores = self.scale * cosines(queries, documents)  # (n, m)
        own = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
        counted = known & known.diagonal()[:, None] & ~own
        teacher = teacher.to(scores.dtype).masked_fill(~known, 0)
        gap = margins(scores) - margins(teacher)
        errors = gap.square().masked_fill(~counted, 0)
        return (errors.sum(dim=1) / counted.sum(dim=1).clamp(min=1)).mean()


def margins(scores: Tensor) -> Tensor:
    """A query's score of its own document less that of each, (n, m)."""
    return scores.diagonal()[:, None] - scores
