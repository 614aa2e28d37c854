"""A teacher's whole distribution over the batch, not only which document is the query's own.

    L = 1/n sum_i sum over j in K_i of t_ij (log t_ij - log s_ij)

    t_i = softmax(teacher_i / T_t),    s_i = softmax(q_i . d / T),    both over K_i: what is allowed and known

That is the KL divergence of Hinton et al. (arXiv 1503.02531, without their factor T^2: weights are `Sum`'s business).
The teacher is fixed. A query of which nothing, or one document alone, is known teaches nothing: its term is 0.

>>> import torch
>>> views = Views(torch.eye(2), torch.eye(2), teacher=torch.eye(2))
>>> round(KL(temperature=0.5, teacher_temperature=1.0)(views).item(), 4)
0.0826
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .base import Views, checked_positive, cosines, masked


@dataclass(frozen=True)
class KL:
    """KL(teacher || student) of each query's scores."""

    temperature: float = 0.05  # did well in a first distillation between embedders; an assumption elsewhere
    teacher_temperature: float = 0.05  # of a teacher whose scores are cosines; logits of a cross-encoder want about 1

    def __post_init__(self) -> None:
        checked_positive("temperature", self.temperature)
        checked_positive("teacher_temperature", self.teacher_temperature)

    def __call__(self, views: Views, dim: int | None = None) -> Tensor:
        queries, documents = views.at(dim)
        teacher, known = views.taught()
        scores = cosines(queries, documents)  # (n, m)
        taught = known.any(dim=1)  # a softmax over nothing is no distribution
        teacher, scores, known = teacher[taught].to(scores.dtype), scores[taught], known[taught]
        target = masked(teacher, known).div(self.teacher_temperature).log_softmax(dim=1)
        student = masked(scores, known).div(self.temperature).log_softmax(dim=1)
        gap = (target - student).masked_fill(~known, 0)  # minus infinity less minus infinity is no number
        return (target.exp() * gap).sum() / len(queries)
