"""The promise of every engine: queries go in, rows and scores come out, higher is better, ties go to the lower row.

A row is a 64-bit number of a passage. An engine knows rows and nothing else: ids, texts and metadata are the business
of the documents. A score of minus infinity says "not a hit"; such rows are left out of a ranking.

>>> import numpy as np
>>> ranking = best(np.array([[0.2, 0.9, -np.inf, 0.9]], dtype=np.float32), k=3)
>>> ranking.rows.tolist()
[[1, 3, 0]]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..errors import DamagedIndex
from ..vectors import Floats as Floats

Rows = npt.NDArray[np.int64]
NO_ROW = -1


@dataclass(frozen=True)
class Ranking:
    """The best rows of each query, best first; NO_ROW and minus infinity fill up what a query has no hit for."""

    rows: Rows  # (queries, at most k)
    scores: Floats  # (queries, at most k)

    def __len__(self) -> int:
        return len(self.rows)


class Engine(Protocol):
    """What `exact`, and every engine beside it, can do with queries of its own kind."""

    def __len__(self) -> int: ...

    def scores(self, queries: Any) -> Floats:
        """The score of every row: (queries, rows)."""
        ...

    def top(self, queries: Any, k: int) -> Ranking:
        """The k best rows of every query."""
        ...


class Blocks:
    """Tensors of rows, often memory-mapped, read as one: rows 0..n-1.

    >>> blocks = Blocks([torch.tensor([[1], [2]]), torch.tensor([[3]])])
    >>> len(blocks), blocks.take(np.array([2, 0])).tolist(), [(start, len(part)) for start, part in blocks.parts(10)]
    (3, [[3], [1]], [(0, 2), (2, 1)])
    """

    def __init__(self, blocks: Sequence[torch.Tensor]) -> None:
        self.blocks = [block for block in blocks if len(block)]
        self.starts = np.cumsum([0, *(len(block) for block in self.blocks)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, rows: Rows) -> torch.Tensor:
        """Chosen rows, in the order asked for; IndexError where there is no such row."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} were asked for, there are 0 to {len(self) - 1}")
        places = np.searchsorted(self.starts, rows, side="right") - 1
        offsets = rows - self.starts[places]
        return torch.stack([self.blocks[place][offset] for place, offset in zip(places, offsets, strict=True)])

    def parts(self, size: int) -> Iterator[tuple[int, torch.Tensor]]:
        """All rows, at most `size` at a time, each part with the number of its first row."""
        for start, block in zip(self.starts, self.blocks, strict=False):
            for offset in range(0, len(block), size):
                yield int(start) + offset, block[offset : offset + size]


def best(scores: Floats, k: int) -> Ranking:
    """Rank the k highest scores of each query; equal scores go to the lower row, so that a ranking is a function."""
    if not (scores < np.inf).all():  # NaN is not smaller either
        raise DamagedIndex("a score is not a number: the stored values were changed; `vicinal verify` says where")
    queries, total = scores.shape
    k = min(k, total)
    rows = np.full((queries, k), NO_ROW, dtype=np.int64)
    values = np.full((queries, k), -np.inf, dtype=np.float32)
    for query in range(queries if k else 0):
        line = scores[query]
        threshold = np.partition(line, total - k)[total - k]
        above = np.flatnonzero(line > threshold)
        level = np.flatnonzero(line == threshold)[: k - len(above)]
        chosen = np.concatenate([above, level])
        chosen = chosen[np.lexsort((chosen, -line[chosen]))]
        chosen = chosen[line[chosen] > -np.inf]
        rows[query, : len(chosen)] = chosen
        values[query, : len(chosen)] = line[chosen]
    return Ranking(rows, values)


def merge(first: Ranking, second: Ranking, k: int) -> Ranking:
    """The k best rows of two rankings over different rows.

    >>> one = Ranking(np.array([[0]]), np.array([[0.5]], dtype=np.float32))
    >>> two = Ranking(np.array([[7]]), np.array([[0.75]], dtype=np.float32))
    >>> merge(one, two, k=2).rows.tolist()
    [[7, 0]]
    """
    rows = np.concatenate([first.rows, second.rows], axis=1)
    scores = np.concatenate([first.scores, second.scores], axis=1)
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    return Ranking(np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1))
