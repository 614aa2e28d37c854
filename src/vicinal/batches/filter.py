"""A batch and a teacher -> which of the batch's other members may count as negatives.

Neighbours are good negatives until one of them is an answer too. A teacher, a frozen model f, tells them apart: the
paper takes out of query q's partition function

    S(q, d) = {d' : f(q, d') >= f(q, d)}                                        (arXiv 2410.02525, section 4.2)

and GISTEmbed (arXiv 2402.16829) does so in three blocks, query-document, query-query and document-document, each
against the same f(q, d). `margin` widens S by a constant, `share` by a part of f(q, d), `threshold` is a constant of
its own; a member is out where any rule that is set says so. Whatever the teacher says, what is known by text is out: a
document that the pairs of this batch give for a query of the same text, and so on in every block.

>>> queries = documents = torch.eye(3)[[0, 1, 1]]
>>> Filter().masks(queries, documents).allowed.int().tolist()  # the last two answer each other's query
[[1, 1, 1], [1, 1, 0], [1, 0, 1]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InputError
from ..vectors import unit
from .base import Rows

Array = npt.NDArray[Any]
TIE = 1e-6  # cosines that differ by less are equal: sums in 32 bit come out another way in another order


@dataclass(frozen=True)
class Masks:
    """Who may stand in whose partition function, as booleans.

    The first n of the m documents are the queries' own, and own is always True: the positive in `allowed`, and in the
    other two blocks the diagonal, which a loss leaves out by itself, since nothing is its own negative.
    """

    allowed: Tensor  # (n, m): document j for query i
    allowed_queries: Tensor  # (n, n): query j for query i
    allowed_documents: Tensor  # (n, m): document j for query i's own document

    def of(self, queries: slice) -> Masks:
        """The rows of some of the queries: a rank's, of masks that were made of the whole batch."""
        return Masks(self.allowed[queries], self.allowed_queries[queries], self.allowed_documents[queries])


@dataclass(frozen=True)
class Filter:
    """What counts as a false negative; the defaults are the paper's rule, and None turns a rule off."""

    margin: float | None = 0.0  # f(q, d') >= f(q, d) - margin
    share: float | None = None  # f(q, d') >= share * f(q, d)
    threshold: float | None = None  # f(q, d') >= threshold

    def __post_init__(self) -> None:
        given = [value for value in (self.margin, self.share, self.threshold) if value is not None]
        if not all(-10 < value < 10 for value in given):  # NaN is not within either
            raise InputError(f"{self} cannot filter cosines: expected numbers such as margin 0.05 or share 0.95")

    def masks(
        self,
        queries: Tensor,
        documents: Tensor,
        query_texts: Sequence[str] = (),
        document_texts: Sequence[str] = (),
    ) -> Masks:
        """The masks of a batch, from the teacher's vectors of n queries and m documents; texts catch duplicates."""
        n, m = len(queries), len(documents)
        if m < n or queries.shape[1:] != documents.shape[1:] or queries.ndim != 2:
            raise InputError(
                f"{tuple(queries.shape)} vectors of queries and {tuple(documents.shape)} of documents were given: "
                "expected (n, E) and (m, E), the first n documents being the queries' own"
            )
        if (query_texts or document_texts) and (len(query_texts), len(document_texts)) != (n, m):
            raise InputError(
                f"{len(query_texts)} queries and {len(document_texts)} documents were given as texts, "
                f"and {n} and {m} as vectors: expected all of them, or no texts at all"
            )
        q, d = unit(queries), unit(documents)
        if not (torch.isfinite(q).all() and torch.isfinite(d).all()):
            raise InputError("a vector of the teacher is not a number: encode again, in a higher precision")
        known = _known(query_texts, document_texts) if query_texts else _nothing_known(n, m)
        blocks = [q @ d.T, q @ q.T, d[:n] @ d.T]
        own = blocks[0].diagonal()[:, None] - TIE  # f(q, d), (n, 1)
        removed = [self._removed(f, own) | same.to(f.device) for f, same in zip(blocks, known, strict=True)]
        return Masks(*(~out | torch.eye(*out.shape, dtype=torch.bool, device=out.device) for out in removed))

    def _removed(self, f: Tensor, own: Tensor) -> Tensor:
        out = torch.zeros_like(f, dtype=torch.bool)
        if self.margin is not None:
            out |= f >= own - self.margin
        if self.share is not None:
            out |= f >= self.share * own
        if self.threshold is not None:
            out |= f >= self.threshold
        return out


def _known(queries: Sequence[str], documents: Sequence[str]) -> list[Tensor]:
    """What the texts alone say: documents that answer i's query, queries that i's document answers, and so on.

    `positive[i, j]`: some pair k of this batch has the text of query i and the text of document j. That holds for a
    copy of the own document (k = i), for the document of a copied query (k = j), and for a hard negative that is a
    copy of either.
    """
    n = len(queries)
    same_query = _same(queries, queries)  # (n, n)
    same_document = _same(documents[:n], documents)  # (n, m)
    positive = same_query.float() @ same_document.float() > 0
    asked = same_document[:, :n].float() @ same_query.float() > 0  # query j is asked of a copy of document i
    return [positive, asked, positive]


def _nothing_known(n: int, m: int) -> list[Tensor]:
    return [torch.zeros(n, width, dtype=torch.bool) for width in (m, n, m)]


def _same(one: Sequence[str], other: Sequence[str]) -> Tensor:
    numbers: dict[str, int] = {}
    left = torch.tensor([numbers.setdefault(text, len(numbers)) for text in one])
    right = torch.tensor([numbers.setdefault(text, len(numbers)) for text in other])
    return left[:, None] == right[None, :]


class Teacher(Protocol):
    """Where the teacher's vectors of a batch come from."""

    def vectors(self, rows: Rows, queries: Sequence[str], documents: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Vectors of the batch's queries, and of its documents."""
        ...


@dataclass(frozen=True)
class Stored:
    """Vectors that were computed before, a row for each pair: (pairs, E) of queries and of documents.

    >>> stored = Stored(np.eye(3), np.eye(3))
    >>> [tuple(side.shape) for side in stored.vectors(np.array([2, 0]), ["c", "a"], ["c", "a"])]
    [(2, 3), (2, 3)]
    """

    queries: Array
    documents: Array

    def vectors(self, rows: Rows, queries: Sequence[str], documents: Sequence[str]) -> tuple[Tensor, Tensor]:
        if len(documents) > len(rows):
            raise InputError(
                f"{len(documents)} documents of {len(rows)} pairs were given: no vectors are stored of hard negatives, "
                "so let the teacher encode them (Live)"
            )
        picked = [torch.from_numpy(np.asarray(side[rows], dtype=np.float32)) for side in (self.queries, self.documents)]
        return picked[0], picked[1]


@dataclass(frozen=True)
class Live:
    """A teacher that encodes every batch as it comes.

    >>> live = Live(lambda texts, role: torch.tensor([[float(len(text)), 1.0] for text in texts]))
    >>> [tuple(side.shape) for side in live.vectors(np.array([0]), ["a"], ["a", "a hard negative"])]
    [(1, 2), (2, 2)]
    """

    encode: Callable[[Sequence[str], Literal["query", "document"]], Tensor]

    def vectors(self, rows: Rows, queries: Sequence[str], documents: Sequence[str]) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return self.encode(queries, "query"), self.encode(documents, "document")
