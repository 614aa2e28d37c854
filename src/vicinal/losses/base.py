"""What every loss is given, `Views`, and what it promises, `Loss`: raw vectors and what is known of them -> one number.

Losses ask for final vectors at a size, in the order of operations that search uses (vectors.py), so that what is
trained is what is compared later. `vectors.final` is for search and always gives 32 bit; this one keeps 64 bit, in
which gradients are checked, and nothing below 32 bit enters a score, whatever autocast is on.

>>> views = Views(torch.tensor([[3.0, 4.0]]), torch.tensor([[8.0, 6.0], [0.0, 2.0]]))
>>> queries, documents = views.at()
>>> cosines(queries, documents).double().round(decimals=4).tolist()
[[0.96, 0.8]]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..errors import InputError
from ..vectors import vanished


@dataclass(frozen=True, eq=False)
class Views:
    """What a batch became: n queries, m documents, and what is known of them.

    Masks say what counts, and what is missing is all allowed; scores of a teacher are minus infinity where unknown.
    They are as wide as the documents, or, until `across` has seen them, as the documents of all processes.
    """

    queries: Tensor  # (n, D) raw
    documents: Tensor  # (m, D) raw; the first n are the queries' own, further ones are negatives
    allowed: Tensor | None = None  # (n, m); False takes document j out of query i's partition function, but for its own
    allowed_queries: Tensor | None = None  # (n, n + p); query i against query j, never against itself
    allowed_documents: Tensor | None = None  # (n, m); query i's own document against document j, never against itself
    teacher: Tensor | None = None  # (n, m); higher is better
    targets: tuple[Tensor, Tensor] | None = None  # a teacher's vectors of the queries (n, E), of the first documents
    correct: Callable[[int], Tensor | None] | None = None  # size -> the batch's context's map (size, size), or none
    others: Tensor | None = None  # (p, D) raw: other processes' queries, of which nothing is asked here
    allowed_others: Tensor | None = None  # (p, n); False takes other query j out of document i's partition function

    def __post_init__(self) -> None:
        shapes = [tuple(vectors.shape) for vectors in (self.queries, self.documents)]
        if len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][1] != shapes[1][1]:
            raise InputError(f"queries are {shapes[0]} and documents {shapes[1]}: expected (n, D) and (m, D)")
        if not 1 <= shapes[0][0] <= shapes[1][0]:
            raise InputError(
                f"{shapes[0][0]} queries came with {shapes[1][0]} documents: expected at least one query, and each "
                "query's own document first, in the queries' order"
            )
        if self.teacher is not None and not (self.teacher < torch.inf).all():  # NaN is not smaller either
            raise InputError("a teacher's score is not a number: expected finite ones, or -inf where it is unknown")

    def at(self, dim: int | None = None) -> tuple[Tensor, Tensor]:
        """The final vectors of queries and documents at a size: truncated, normalised, corrected, normalised."""
        return self.final(self.queries, dim), self.final(self.documents, dim)

    def final(self, raw: Tensor, dim: int | None = None) -> Tensor:
        """Raw vectors of this batch -> final ones; a vector without length stays zero."""
        full = raw.shape[1]
        size = full if dim is None else dim
        if not 1 <= size <= full:
            raise InputError(f"size {size} was asked for, but vectors have {full} dimensions: choose 1 to {full}")
        with full_precision(raw):
            vectors = unit(raw[:, :size])
            matrix = self.correct(size) if self.correct else None
            if matrix is None:
                return vectors
            corrected = vectors @ matrix.to(vectors.dtype)
            return unit(torch.where(vanished(corrected), vectors, corrected))

    def counted(self) -> Tensor | None:
        """Which documents are in which query's partition function, (n, m): what is allowed, and always its own."""
        if self.allowed is None:
            return None
        kept = checked("allowed", self.allowed, (len(self.queries), len(self.documents))).clone()
        return kept.fill_diagonal_(True)

    def taught(self) -> tuple[Tensor, Tensor]:
        """The teacher's scores, and which of them can be learnt from (allowed and known), both (n, m)."""
        if self.teacher is None:
            raise InputError("this loss learns from a teacher's scores, and there are none: give Views a teacher")
        scores = checked("teacher", self.teacher.detach(), (len(self.queries), len(self.documents)))
        known, counted = scores > -torch.inf, self.counted()
        return scores, known if counted is None else known & counted


class Loss(Protocol):
    """A number that is lower the better the vectors of a batch are, at full size or at `dim` leading dimensions."""

    def __call__(self, views: Views, dim: int | None = None) -> Tensor: ...


def unit(vectors: Tensor) -> Tensor:
    """Each vector over its length, in 32 bit or, where it came so, 64; without length it stays zero.

    Its gradient is then what arrives, not that over some tiny length, which would be 1e30 times as much.
    """
    wide = vectors if vectors.dtype == torch.float64 else vectors.float()
    length = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    return wide / torch.where(length > 0, length, torch.ones_like(length))


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """The scores of final vectors, (left, right), in their own precision even inside autocast."""
    with full_precision(left):
        return left @ right.T


def full_precision(tensor: Tensor) -> torch.autocast:
    """Where autocast is off: 16 bit cosines over a temperature of 0.02 are off by up to 0.2."""
    return torch.autocast(tensor.device.type, enabled=False)


def masked(scores: Tensor, kept: Tensor | None) -> Tensor:
    """Minus infinity where nothing is kept: it adds exactly nothing to a partition function, and gets no gradient."""
    return scores if kept is None else scores.masked_fill(~kept, -torch.inf)


def checked(name: str, table: Tensor, shape: tuple[int, int]) -> Tensor:
    """A mask or a table of scores, refused unless it has a row and a column for each of what is compared."""
    if tuple(table.shape) != shape:
        raise InputError(
            f"{name} is {tuple(table.shape)}, expected {shape}: a row and a column for each of what is compared (where "
            "some of it is on other processes, pass the views through `across` first)"
        )
    return table


def checked_positive(name: str, value: float) -> None:
    """Refuse a temperature, or a scale, that is not a positive number."""
    if not 0 < value < float("inf"):
        raise InputError(f"{name} is {value}: expected a positive number")
