"""The laws that every engine keeps: one suite, and a line for each engine.

A new engine is a function that gives a `Case`, and its name in ENGINES.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vicinal.index.base import NO_ROW, Blocks, Engine, Ranking, best, merge
from vicinal.index.exact import Exact
from vicinal.index.lexical import BM25, K1, B, Pooled
from vicinal.index.words import stop_words, term_by, words

ROWS = 60
TEXTS = [
    " ".join(np.random.default_rng(row // 3).choice(["rent", "roof", "tenant", "court", "appeal", "road"], 5 + row % 7))
    for row in range(ROWS - 1)
] + [""]  # rows are alike in threes but for their lengths, and one is empty
QUERIES = ["rent", "the tenant's roof", "roads and courts and roads", "unknown", "the", "appeal appeals rent"]


@dataclass(frozen=True)
class Case:
    """An engine over ROWS rows, its queries, and what every row must score for each: slow, and plain to see."""

    engine: Engine
    queries: Any  # a sequence, of what the engine takes
    truth: np.ndarray  # (queries, rows), 64 bit; minus infinity is no row
    zero_is_no_hit: bool = False


def exact(folder: Path, *, blocks: Sequence[int] = (ROWS,), dead: Sequence[int] = (), dim: int | None = None) -> Case:
    numbers = np.random.default_rng(7)
    rows = numbers.normal(size=(ROWS, 12)).astype(np.float16)
    rows[20:25] = rows[10]  # equal rows
    rows[30] = 0
    queries = numbers.normal(size=(9, 12)).astype(np.float32)
    parts = torch.split(torch.from_numpy(rows), list(blocks))
    truth = cosines(queries[:, :dim].astype(np.float64), rows[:, :dim].astype(np.float64))
    truth[:, list(dead)] = -np.inf
    return Case(Exact(parts, dim, np.array(dead, dtype=np.int64)), queries, truth)


def cosines(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    def dot(a: np.ndarray, b: np.ndarray) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    return np.array([[dot(q, r) / (math.sqrt(dot(q, q) * dot(r, r)) or 1.0) for r in rows] for q in queries])


def bm25(folder: Path) -> Case:
    return Case(BM25.build(folder, TEXTS, language="english"), QUERIES, formula(TEXTS), zero_is_no_hit=True)


def bm25_opened(folder: Path) -> Case:
    BM25.build(folder, TEXTS, language="english")
    return Case(BM25.open(folder), QUERIES, formula(TEXTS), zero_is_no_hit=True)


def bm25_pooled(folder: Path, *, dead: Sequence[int] = ()) -> Case:
    parts = [TEXTS[:7], TEXTS[7:8], TEXTS[8:40], TEXTS[40:]]
    for number in range(len(parts)):
        (folder / str(number)).mkdir()
    built = [BM25.build(folder / str(n), part, language="english") for n, part in enumerate(parts)]
    truth = np.full((len(QUERIES), ROWS), -np.inf)
    live = [row for row in range(ROWS) if row not in dead]
    truth[:, live] = formula([TEXTS[row] for row in live])
    return Case(
        Pooled(built, list(map(len, parts)), np.array(dead, dtype=np.int64)), QUERIES, truth, zero_is_no_hit=True
    )


def formula(texts: Sequence[str]) -> np.ndarray:
    """BM25 by its definition, a term and a text at a time."""
    term_of = term_by("english", stop_words("english"))
    held = [Counter(filter(None, map(term_of, words(text)))) for text in texts]
    mean = sum(counts.total() for counts in held) / len(texts)

    def score(query: str, counts: Counter[str]) -> float:
        total = 0.0
        for term in filter(None, map(term_of, words(query))):
            df = sum(term in other for other in held)
            f, norm = counts[term], K1 * (1 - B + B * counts.total() / mean)
            total += math.log(1 + (len(texts) - df + 0.5) / (df + 0.5)) * f / (f + norm)
        return total

    return np.array([[score(query, counts) for counts in held] for query in QUERIES])


ENGINES: dict[str, Callable[[Path], Case]] = {
    "exact": exact,
    "exact-blocks": lambda folder: exact(folder, blocks=(1, 0, 39, 20)),
    "exact-dead": lambda folder: exact(folder, blocks=(30, 30), dead=(0, 21, 59)),
    "exact-dim": lambda folder: exact(folder, dim=3),
    "bm25": bm25,
    "bm25-opened": bm25_opened,
    "bm25-pooled": bm25_pooled,
    "bm25-pooled-dead": lambda folder: bm25_pooled(folder, dead=(0, 8, 41)),
}


@pytest.fixture(params=ENGINES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return ENGINES[request.param](tmp_path)


def slow_ranking(scores: np.ndarray, k: int, zero_is_no_hit: bool) -> list[list[int]]:
    """What `top` must give for scores: sorted by Python."""
    hits = [
        sorted(
            (row for row, score in enumerate(line) if score > -np.inf and not (zero_is_no_hit and score == 0)),
            key=lambda row, line=line: (-line[row], row),  # type: ignore[misc]
        )
        for line in scores
    ]
    return [line[:k] for line in hits]


def rows_of(ranking: Ranking) -> list[list[int]]:
    return [[int(row) for row in line if row != NO_ROW] for line in ranking.rows]


def test_every_score_is_what_the_slow_way_gives(case: Case) -> None:
    scores = case.engine.scores(case.queries)
    assert scores.shape == (len(case.queries), len(case.engine)) == case.truth.shape and scores.dtype == np.float32
    np.testing.assert_allclose(scores, case.truth, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 10, ROWS, 10 * ROWS])
def test_the_k_best_are_those_of_all_scores_sorted_and_ties_go_to_the_lower_row(case: Case, k: int) -> None:
    scores = case.engine.scores(case.queries)
    ranking = case.engine.top(case.queries, k)
    assert rows_of(ranking) == slow_ranking(scores, k, case.zero_is_no_hit)
    for line, found, of_row in zip(ranking.scores, ranking.rows, scores, strict=True):
        kept = found != NO_ROW
        assert (line[kept] == of_row[found[kept]]).all() and (line[~kept] == -np.inf).all()
        assert not kept[np.argmin(kept) :].any() or kept.all(), "what is no hit stands last"


def test_the_ranking_is_that_of_the_slow_scores_where_those_are_not_too_close_to_call(case: Case) -> None:
    truth = np.round(case.truth, 5)
    assert rows_of(case.engine.top(case.queries, 5)) == slow_ranking(truth, 5, case.zero_is_no_hit)


def test_a_query_scores_the_same_alone_and_in_any_company(case: Case) -> None:
    together = case.engine.scores(case.queries)
    alone = np.concatenate([case.engine.scores(case.queries[n : n + 1]) for n in range(len(case.queries))])
    backwards = case.engine.scores(case.queries[::-1])[::-1]
    assert together.tobytes() == alone.tobytes() == np.ascontiguousarray(backwards).tobytes()


def test_the_same_queries_give_the_same_bytes_in_many_threads(case: Case) -> None:
    first = case.engine.top(case.queries, 7)
    with ThreadPoolExecutor(8) as threads:
        for again in threads.map(lambda _: case.engine.top(case.queries, 7), range(32)):
            assert again.rows.tobytes() == first.rows.tobytes() and again.scores.tobytes() == first.scores.tobytes()


def test_no_queries_have_no_hits(case: Case) -> None:
    assert case.engine.scores(case.queries[:0]).shape == (0, ROWS)
    assert len(case.engine.top(case.queries[:0], 3)) == 0


def test_rows_that_are_alike_score_alike_wherever_they_stand() -> None:
    rows = torch.from_numpy(np.random.default_rng(3).normal(size=(1, 384)).astype(np.float32)).repeat(9001, 1)
    queries = np.random.default_rng(4).normal(size=(5, 384)).astype(np.float32)
    scores = Exact([rows[:17], rows[17:]]).scores(queries)
    assert (scores == scores[:, :1]).all()
    assert Exact([rows]).top(queries, 4).rows.tolist() == [[0, 1, 2, 3]] * 5


# --- What the engines are made of.


def test_the_best_are_those_of_a_sort() -> None:
    numbers = np.random.default_rng(0)
    for _ in range(200):
        queries, rows, k = numbers.integers(0, 4), numbers.integers(0, 9), int(numbers.integers(1, 12))
        scores = numbers.choice([-np.inf, 0, 0.25, 0.5, 1], (queries, rows)).astype(np.float32)
        ranking = best(scores, k)
        assert ranking.rows.shape == ranking.scores.shape == (queries, min(k, rows))
        assert rows_of(ranking) == slow_ranking(scores, k, zero_is_no_hit=False)


def test_merging_the_best_of_parts_gives_the_best_of_the_whole() -> None:
    numbers = np.random.default_rng(1)
    for _ in range(100):
        scores = numbers.choice([-np.inf, 0, 0.5, 1], (3, 12)).astype(np.float32)
        cut, k = int(numbers.integers(0, 13)), int(numbers.integers(1, 14))
        one, two = best(scores[:, :cut], k), best(scores[:, cut:], k)
        moved = Ranking(np.where(two.rows == NO_ROW, NO_ROW, two.rows + cut), two.scores)
        assert rows_of(merge(one, moved, k)) == rows_of(best(scores, k)) == rows_of(merge(moved, one, k))


def test_blocks_are_read_as_one() -> None:
    whole = torch.arange(14).reshape(7, 2)
    blocks = Blocks([whole[:0], whole[:4], whole[4:4], whole[4:]])
    assert len(blocks) == 7 and len(Blocks([])) == 0
    assert blocks.take(np.array([6, 0, 3, 4, 3])).tolist() == whole[[6, 0, 3, 4, 3]].tolist()
    assert torch.cat([part for _, part in blocks.parts(3)]).tolist() == whole.tolist()
    assert [(start, len(part)) for start, part in blocks.parts(3)] == [(0, 3), (3, 1), (4, 3)]
    for row in (-1, 7):
        with pytest.raises(IndexError):
            blocks.take(np.array([0, row]))
