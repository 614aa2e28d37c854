"""The filter against slow double loops, and what a batch's texts alone say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vicinal.batches.filter import Filter, Live, Stored
from vicinal.errors import InputError

RULES = [
    Filter(),
    Filter(margin=0.1),
    Filter(margin=-0.1),
    Filter(margin=None, share=0.9),
    Filter(margin=None, threshold=0.3),
    Filter(margin=0.05, share=0.8, threshold=0.6),
    Filter(margin=None),
]


def drawn(n: int, m: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    documents = torch.randn(m, 4, generator=generator)
    return documents[:n] + torch.randn(n, 4, generator=generator), documents


def f(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def slowly(rule: Filter, queries: torch.Tensor, documents: torch.Tensor) -> list[list[list[bool]]]:
    """GISTEmbed's three blocks, member by member, each against f(q_i, d_i)."""
    n, m = len(queries), len(documents)

    def is_allowed(own: float, score: float) -> bool:
        if rule.margin is not None and score >= own - rule.margin:
            return False
        if rule.share is not None and score >= rule.share * own:
            return False
        return not (rule.threshold is not None and score >= rule.threshold)

    blocks: list[list[list[bool]]] = [[], [], []]
    for i in range(n):
        own = f(queries[i], documents[i])
        blocks[0].append([i == j or is_allowed(own, f(queries[i], documents[j])) for j in range(m)])
        blocks[1].append([i == j or is_allowed(own, f(queries[i], queries[j])) for j in range(n)])
        blocks[2].append([i == j or is_allowed(own, f(documents[i], documents[j])) for j in range(m)])
    return blocks


def listed(masks: Any) -> list[list[list[bool]]]:
    return [masks.allowed.tolist(), masks.allowed_queries.tolist(), masks.allowed_documents.tolist()]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (6, 6), (7, 19)])
def test_every_rule_is_what_a_double_loop_says(rule: Filter, shape: tuple[int, int]) -> None:
    for seed in range(4):
        queries, documents = drawn(*shape, seed)
        assert listed(rule.masks(queries, documents)) == slowly(rule, queries, documents)


def test_the_papers_rule_by_hand() -> None:
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    documents = torch.tensor([[0.8, 0.6], [0.0, 1.0], [0.6, 0.8], [0.9, 0.1]])
    #   f        d0    d1    d2    d3
    #   q0     0.80  0.00  0.60  0.99   own 0.80: d3 is out
    #   q1     0.60  1.00  0.80  0.11   own 1.00: none is out
    #   q2     0.96  0.80  1.00  0.68   own 1.00: none is out
    assert Filter().masks(queries, documents).allowed.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    wider = Filter(margin=0.05).masks(queries, documents).allowed.int().tolist()
    assert wider == [[1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1]]


def test_as_good_as_own_is_too_good() -> None:
    queries, documents = torch.eye(2)[[0, 1]], torch.eye(2)[[0, 1, 0]]  # the third scores exactly what the first does
    for rule in (Filter(), Filter(margin=None, share=1.0), Filter(margin=None, threshold=1.0)):
        assert rule.masks(queries, documents).allowed.int().tolist() == [[1, 1, 0], [1, 1, 1]]


def test_what_compares_queries_with_queries_is_another_block() -> None:
    """The reference stores queries as documents, and filters by those."""
    queries, documents = drawn(20, 20, 0)
    masks = Filter().masks(queries, documents)
    assert (masks.allowed != masks.allowed_queries).any()
    assert (Filter().masks(queries, queries).allowed == Filter().masks(queries, queries).allowed_queries).all()


def positives(queries: list[str], documents: list[str]) -> tuple[list[list[bool]], list[list[bool]]]:
    """(i, j): document j answers query i by some pair of the batch; query j is asked of document i by some pair."""
    n, m = len(queries), len(documents)
    answers = [
        [any(queries[k] == queries[i] and documents[k] == documents[j] for k in range(n)) for j in range(m)]
        for i in range(n)
    ]
    asked = [
        [any(documents[k] == documents[i] and queries[k] == queries[j] for k in range(n)) for j in range(n)]
        for i in range(n)
    ]
    return answers, asked


def test_what_is_known_by_text_is_out_in_every_block_whatever_the_teacher_says() -> None:
    chance = np.random.default_rng(0)
    for _ in range(20):
        queries = [f"q{number}" for number in chance.integers(6, size=9)]
        documents = [f"d{number}" for number in chance.integers(6, size=14)]
        masks = Filter(margin=None).masks(*drawn(9, 14, 0), queries, documents)
        answers, asked = positives(queries, documents)
        own = np.eye(9, 14, dtype=bool)
        assert (masks.allowed.numpy() == (~np.array(answers) | own)).all()
        assert (masks.allowed_queries.numpy() == (~np.array(asked) | own[:, :9])).all()
        assert (masks.allowed_documents.numpy() == (~np.array(answers) | own)).all()


def test_duplicates_by_hand() -> None:
    queries = ["where?", "where?", "who?"]
    documents = ["here", "there", "she", "there", "he"]  # two hard negatives; the first answers "where?"
    masks = Filter(margin=None).masks(*drawn(3, 5, 0), queries, documents)
    assert masks.allowed.int().tolist() == [[1, 0, 1, 0, 1], [0, 1, 1, 0, 1], [1, 1, 1, 1, 1]]


def test_own_is_always_allowed_even_where_every_rule_says_no() -> None:
    masks = Filter(margin=2.0, threshold=-2.0).masks(*drawn(5, 8, 0))
    assert (masks.allowed == torch.eye(5, 8, dtype=torch.bool)).all()
    assert (masks.allowed_queries == torch.eye(5, dtype=torch.bool)).all()
    assert (masks.allowed_documents == torch.eye(5, 8, dtype=torch.bool)).all()


def test_a_rank_keeps_the_rows_of_its_queries() -> None:
    masks = Filter().masks(*drawn(6, 9, 0))
    assert listed(masks.of(slice(2, 4))) == [block[2:4] for block in listed(masks)]


def test_a_stored_and_a_live_teacher_say_the_same() -> None:
    queries, documents = drawn(12, 12, 1)
    stored = Stored(queries.numpy(), documents.numpy().astype(np.float64))
    texts = [str(row) for row in range(12)]
    sides = {"query": queries, "document": documents}
    live = Live(lambda asked, role: sides[role][[int(text) for text in asked]])
    rows = np.array([3, 0, 11])
    named = [texts[row] for row in rows]
    one, two = (Filter().masks(*teacher.vectors(rows, named, named)) for teacher in (stored, live))
    assert listed(one) == listed(two) == listed(Filter().masks(queries[rows], documents[rows]))
    with pytest.raises(InputError, match="hard negatives"):
        stored.vectors(rows, named, [*named, "a hard negative"])


def test_what_does_not_fit_together_is_refused() -> None:
    queries, documents = drawn(3, 5, 0)
    with pytest.raises(InputError, match=r"\(5, 4\) vectors of queries and \(3, 4\)"):
        Filter().masks(documents, queries)
    with pytest.raises(InputError, match="expected"):
        Filter().masks(queries, documents[:, :3])
    with pytest.raises(InputError, match="as texts"):
        Filter().masks(queries, documents, ["a"], ["b"] * 5)
    with pytest.raises(InputError, match="not a number"):
        Filter().masks(queries * torch.nan, documents)
    with pytest.raises(InputError, match="cannot filter"):
        Filter(margin=float("nan"))


def test_equal_scores_are_ties_whatever_order_they_were_summed_in() -> None:
    generator = torch.Generator().manual_seed(0)
    for width in (7, 128, 384):
        queries, documents = (torch.randn(40, width, generator=generator) for _ in range(2))
        documents[20:] = documents[:20]  # other texts, equal vectors
        queries[20:] = queries[:20]
        allowed = Filter().masks(queries, documents).allowed
        assert not allowed[torch.arange(40), (torch.arange(40) + 20) % 40].any()
