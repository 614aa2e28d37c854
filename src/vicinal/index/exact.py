"""Exact search: every row is compared with every query. The default engine, and the truth that others are held to.

Raw vectors come in as blocks of rows (16 or 32 bit, often memory-mapped); what is compared is derived from them in the
order that holds everywhere (vectors.py), a context's correction included. Only `CHUNK_ROWS` rows are derived at a time,
so memory stays flat as the corpus grows. Products are summed in 64 bit and rounded to 32 once: so equal rows have equal
scores wherever they stand, and a query's scores do not depend on how many others are asked with it, nor on the number
of threads. A correction C need not bend every row for every query: for a row u and a query q of length 1, the cosine is

    (u C) . q / |u C|  =  u . (C q) / |u C|

so it is the query that is bent, and of a row only the length |u C| is needed, four bytes that are kept once computed.

>>> import torch
>>> rows = torch.tensor([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
>>> Exact([rows]).top(np.array([[1.0, 0.1]], dtype=np.float32), k=2).rows.tolist()
[[0, 2]]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ..errors import InputError
from ..vectors import LEAST_LENGTH, checked_dim, final, unit
from .base import NO_ROW, Blocks, Floats, Ranking, Rows, best, merge

CHUNK_ROWS = 2048  # few enough to stay in a processor's cache: half the time of 8192 (measured)
SCORES_AT_ONCE = 1 << 24  # 64 MB of scores: more queries than fit are taken in turns
NONE = np.zeros(0, dtype=np.int64)


class Exact:
    """Cosine similarity of raw query vectors with raw row vectors, both truncated to `dim`; `dead` rows are no hits.

    `correction` is the map of the context that both were encoded with, at `dim`.
    """

    def __init__(
        self,
        blocks: Sequence[torch.Tensor],
        dim: int | None = None,
        dead: Rows = NONE,
        correction: torch.Tensor | None = None,
    ) -> None:
        self.correction = correction
        self.raw = Blocks(blocks)
        self.full_dim = int(self.raw.blocks[0].shape[1]) if len(self.raw) else None
        self.dim = dim if self.full_dim is None else checked_dim(dim, self.full_dim)
        self.dead = np.unique(dead)
        self._lengths = torch.full((0 if correction is None else len(self.raw),), torch.nan)  # of rows, once bent

    def __len__(self) -> int:
        return len(self.raw)

    def scores(self, queries: Floats) -> Floats:
        """The score of every row: (queries, rows)."""
        parts = [part for _, part in self._parts(queries)]
        return np.concatenate([np.zeros((len(queries), 0), dtype=np.float32), *parts], axis=1)

    def scores_at(self, queries: Floats, rows: Rows) -> Floats:
        """The score of chosen rows, (queries, k); NO_ROW scores minus infinity."""
        asked = self._asked(queries)
        scores = np.full(rows.shape, -np.inf, dtype=np.float32)
        for query, wanted in enumerate(rows):
            alive = (wanted != NO_ROW) & ~np.isin(wanted, self.dead)
            if alive.any():
                units = unit(self.raw.take(wanted[alive])[:, : self.dim])
                one = [side[query : query + 1] for side in asked]
                scores[query, alive] = self._products(one, units, self._bent(units))
        return scores

    def top(self, queries: Floats, k: int) -> Ranking:
        """The k best rows of every query, chunk by chunk."""
        k = min(k, len(self))
        step = max(1, SCORES_AT_ONCE // CHUNK_ROWS)
        found = [self._top(queries[start : start + step], k) for start in range(0, len(queries), step)]
        if not found:
            return best(np.zeros((0, k), dtype=np.float32), k)
        return Ranking(np.concatenate([part.rows for part in found]), np.concatenate([part.scores for part in found]))

    def vectors(self, rows: Rows) -> torch.Tensor:
        """The derived vectors of chosen rows."""
        return final(self.raw.take(rows), self.dim, self.correction)

    def _top(self, queries: Floats, k: int) -> Ranking:
        found = best(np.full((len(queries), k), -np.inf, dtype=np.float32), k)
        for start, scores in self._parts(queries):
            # Rows come in order, so a later one must be better than the k-th: an equal score goes to the lower row.
            better = np.flatnonzero(~(scores.max(axis=1) <= found.scores[:, -1]))
            part = best(scores[better], k)
            rows = np.where(part.rows == NO_ROW, NO_ROW, part.rows + start)
            merged = merge(Ranking(found.rows[better], found.scores[better]), Ranking(rows, part.scores), k)
            found.rows[better], found.scores[better] = merged.rows, merged.scores
        return found

    def _parts(self, queries: Floats) -> Iterator[tuple[int, Floats]]:
        """The scores of all rows, a chunk at a time, each chunk with the number of its first row."""
        asked = self._asked(queries)
        for start, raw in self.raw.parts(CHUNK_ROWS):
            units, lengths = unit(raw[:, : self.dim]), self._lengths[start : start + len(raw)]
            if len(lengths) and lengths.isnan().any():
                lengths.copy_(self._bent(units))
            scores = self._products(asked, units, lengths)
            first, last = np.searchsorted(self.dead, [start, start + len(raw)])
            scores[:, self.dead[first:last] - start] = -np.inf
            yield start, scores

    def _asked(self, queries: Floats) -> list[torch.Tensor]:
        """Final vectors of queries in 64 bit, and where there is a correction, the same bent by it."""
        if self.full_dim is not None and queries.shape[1] != self.full_dim:
            raise InputError(
                f"the rows hold {self.full_dim}-dim vectors, the query has {queries.shape[1]}: "
                "was it encoded by another model? Encode it with the model that the rows were encoded with"
            )
        given = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32))
        directions = final(given, self.dim, self.correction).double()
        return [directions] if self.correction is None else [directions, directions @ self.correction.double().T]

    def _bent(self, units: torch.Tensor) -> torch.Tensor:
        """How long rows of length 1 are once the correction has bent them, in 32 bit; none without a correction."""
        if self.correction is None:
            return self._lengths
        lengths: torch.Tensor = (units.double() @ self.correction.double()).norm(dim=1).float()
        return lengths

    def _products(self, asked: Sequence[torch.Tensor], units: torch.Tensor, lengths: torch.Tensor) -> Floats:
        """The scores of rows of length 1, (queries, rows)."""
        directions, *bent = asked
        rows = units.double().T
        if not bent:
            products = directions @ rows
        else:
            products = bent[0] @ rows / lengths
            kept = lengths < LEAST_LENGTH  # rows of which the correction leaves next to nothing
            if kept.any():
                products[:, kept] = directions @ rows[:, kept]
        scores: Floats = products.float().numpy()
        return scores
