"""Matryoshka and sums: by hand, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from vicinal.errors import InputError
from vicinal.losses import KL, Contrastive, MarginMSE, Matryoshka, Sum, Views

T = 0.3


def contrastive_by_hand(views: Views, size: int) -> float:
    queries, documents = ([row[:size] for row in side.tolist()] for side in (views.queries, views.documents))
    total = 0.0
    for i, query in enumerate(queries):
        powers = [
            math.exp(sum(a * b for a, b in zip(query, one, strict=True)) / math.hypot(*query) / math.hypot(*one) / T)
            for one in documents
        ]
        total -= math.log(powers[i] / sum(powers))
    return total / len(queries)


def test_it_is_the_weighted_sum_over_sizes_by_hand(hand: Any) -> None:
    views = hand.views()
    views = Views(views.queries + 1, views.documents)  # a query of leading zeros has no direction there
    expected = 0.5 * contrastive_by_hand(views, 2) + 2.0 * contrastive_by_hand(views, 3)
    assert Matryoshka(Contrastive(T), (2, 3), (0.5, 2.0))(views).item() == pytest.approx(expected, abs=1e-12)
    without = contrastive_by_hand(views, 2) + contrastive_by_hand(views, 3)
    assert Matryoshka(Contrastive(T), (3, 2))(views).item() == pytest.approx(without, abs=1e-12)


def test_the_correction_is_asked_for_at_each_size(hand: Any) -> None:
    asked: list[int] = []

    def correct(size: int) -> torch.Tensor:
        asked.append(size)
        return torch.eye(size, dtype=torch.float64)

    views = hand.views()
    Matryoshka(Contrastive(T), (1, 3))(Views(views.queries, views.documents, correct=correct))
    assert set(asked) == {1, 3}


def test_grouping_a_sum_changes_nothing(hand: Any) -> None:
    views = hand.views(teacher=torch.rand(3, 3, dtype=torch.float64))
    a, b, c = (0.5, Contrastive(T)), (2.0, KL()), (0.25, MarginMSE())
    sums = [Sum((a, b, c)), Sum(((1.0, Sum((a, b))), c)), Sum((a, (1.0, Sum((b, c)))))]
    values = [loss(views).item() for loss in sums]
    expected = 0.5 * Contrastive(T)(views) + 2.0 * KL()(views) + 0.25 * MarginMSE()(views)
    assert values == pytest.approx([expected.item()] * 3, abs=1e-12)


def test_a_sum_of_none_and_weights_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="no losses"):
        Sum(())
    for weight in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="weight"):
            Sum(((1.0, Contrastive()), (weight, Contrastive())))


@pytest.mark.parametrize(
    ("sizes", "weights"), [((), None), ((0, 2), None), ((2, 2), None), ((2, 3), (1.0,)), ((2, 3), (1.0, 0.0))]
)
def test_what_cannot_be_sizes_is_refused(sizes: tuple[int, ...], weights: tuple[float, ...] | None) -> None:
    with pytest.raises(InputError, match="Matryoshka"):
        Matryoshka(Contrastive(), sizes, weights)


def test_a_size_above_the_vectors_is_refused_and_so_is_a_size_from_outside(hand: Any) -> None:
    with pytest.raises(InputError, match=r"\(2, 4\), but vectors have 3"):
        Matryoshka(Contrastive(), (2, 4))(hand.views())
    with pytest.raises(InputError, match="sizes of its own"):
        Matryoshka(Matryoshka(Contrastive(), (1,)), (2,))(hand.views())
