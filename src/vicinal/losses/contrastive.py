"""A query's own document against the others of its batch: the filtered contrastive loss.

    L = -1/n sum_i log( exp(q_i . d_i / T) / Z_i ),    Z_i = sum over j in S_i of exp(q_i . d_j / T)

S_i is what is allowed for query i, its own document always among it: the false-negative filter of CDE (arXiv
2410.02525) leaves out what a teacher finds at least as good. Documents beyond the first n are hard negatives, further
columns of the same sum.

    both         the mean of L and of the same loss from a document to its own query among all queries
    same_side    Z_i also has exp(q_i . q_j / T) and exp(d_i . d_j / T) for the allowed j other than i (GISTEmbed, arXiv
                 2402.16829); with `both`, the document's partition function has the same two

>>> views = Views(torch.eye(2), torch.eye(2))
>>> round(Contrastive(temperature=0.5)(views).item(), 4)  # log(1 + exp((0 - 1) / 0.5))
0.1269
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .base import Views, checked, checked_positive, cosines, masked

TEMPERATURE = 0.02  # CDE's


@dataclass(frozen=True)
class Contrastive:
    """Cross-entropy of a query's own document, over what is allowed of its batch."""

    temperature: float = TEMPERATURE
    both: bool = False
    same_side: bool = False

    def __post_init__(self) -> None:
        checked_positive("temperature", self.temperature)

    def __call__(self, views: Views, dim: int | None = None) -> Tensor:
        queries, documents = views.at(dim)
        own = torch.arange(len(queries), device=queries.device)
        everyones = queries if views.others is None else torch.cat([queries, views.final(views.others, dim)])
        beside = same_side(views, queries, everyones, documents) if self.same_side else []

        scores = masked(cosines(queries, documents), views.counted())  # (n, m)
        loss = cross_entropy(torch.cat([scores, *beside], dim=1) / self.temperature, own)
        if not self.both:
            return loss
        scores = masked(cosines(documents[: len(queries)], everyones), asking(views))  # (n, n + p)
        return (loss + cross_entropy(torch.cat([scores, *beside], dim=1) / self.temperature, own)) / 2


def same_side(views: Views, queries: Tensor, everyones: Tensor, documents: Tensor) -> list[Tensor]:
    """Query i against the other queries, (n, n + p), and its own document against the other documents, (n, m)."""
    blocks = []
    for name, mask, left, right in (
        ("allowed_queries", views.allowed_queries, queries, everyones),
        ("allowed_documents", views.allowed_documents, documents[: len(queries)], documents),
    ):
        scores = cosines(left, right)
        kept = torch.ones_like(scores, dtype=torch.bool)
        if mask is not None:
            kept &= checked(name, mask, (len(left), len(right)))
        blocks.append(masked(scores, kept.fill_diagonal_(False)))
    return blocks


def asking(views: Views) -> Tensor:
    """Which queries are in which own document's partition function, (n, n + p): the same filter, from its side."""
    n, p = len(views.queries), 0 if views.others is None else len(views.others)
    kept = torch.ones(n, n + p, dtype=torch.bool, device=views.queries.device)
    counted = views.counted()
    if counted is not None:
        kept[:, :n] = counted[:, :n].T
    if views.allowed_others is not None:
        kept[:, n:] = checked("allowed_others", views.allowed_others, (p, n)).T
    return kept
