"""The filtered contrastive loss, written out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from vicinal.errors import InputError
from vicinal.losses import Contrastive, Views

T = 0.3


def test_it_is_the_formula_by_hand(hand: Any) -> None:
    rows = [
        -math.log(math.exp(hand.qd[i][i] / T) / sum(math.exp(hand.qd[i][j] / T) for j in range(3))) for i in range(3)
    ]
    assert Contrastive(T)(hand.views()).item() == pytest.approx(sum(rows) / 3, abs=1e-12)


def test_what_is_not_allowed_is_not_in_the_partition_function(hand: Any) -> None:
    parts = [sum(math.exp(hand.qd[i][j] / T) for j in range(3) if hand.allowed[i][j]) for i in range(3)]
    rows = [-math.log(math.exp(hand.qd[i][i] / T) / parts[i]) for i in range(3)]
    loss = Contrastive(T)(hand.views(allowed=torch.tensor(hand.allowed)))
    assert loss.item() == pytest.approx(sum(rows) / 3, abs=1e-12)


def test_both_directions_are_the_formula_by_hand_and_the_filter_turns_with_them(hand: Any) -> None:
    total = 0.0
    for i in range(3):
        own = math.exp(hand.qd[i][i] / T)
        asked = sum(math.exp(hand.qd[i][j] / T) for j in range(3) if hand.allowed[i][j])
        asking = sum(math.exp(hand.qd[j][i] / T) for j in range(3) if hand.allowed[j][i])
        total += (-math.log(own / asked) - math.log(own / asking)) / 2
    loss = Contrastive(T, both=True)(hand.views(allowed=torch.tensor(hand.allowed)))
    assert loss.item() == pytest.approx(total / 3, abs=1e-12)


@pytest.mark.parametrize("both", [False, True])
def test_the_same_side_joins_the_partition_function_as_in_gistembed(hand: Any, both: bool) -> None:
    queries = [[False, True, False], [True, True, True], [False, True, False]]  # the diagonal never counts
    documents = [[True, False, True], [False, False, False], [True, True, True]]
    total = 0.0
    for i in range(3):
        own = math.exp(hand.qd[i][i] / T)
        beside = sum(math.exp(hand.qq[i][j] / T) for j in range(3) if queries[i][j] and i != j)
        beside += sum(math.exp(hand.dd[i][j] / T) for j in range(3) if documents[i][j] and i != j)
        asked = beside + sum(math.exp(hand.qd[i][j] / T) for j in range(3) if hand.allowed[i][j])
        asking = beside + sum(math.exp(hand.qd[j][i] / T) for j in range(3) if hand.allowed[j][i])
        total += -math.log(own / asked) if not both else (-math.log(own / asked) - math.log(own / asking)) / 2
    views = hand.views(
        allowed=torch.tensor(hand.allowed),
        allowed_queries=torch.tensor(queries),
        allowed_documents=torch.tensor(documents),
    )
    assert Contrastive(T, both, same_side=True)(views).item() == pytest.approx(total / 3, abs=1e-12)


def test_the_same_side_without_masks_is_all_others(hand: Any) -> None:
    everything = torch.ones(3, 3, dtype=torch.bool)
    masked = hand.views(allowed=everything, allowed_queries=everything, allowed_documents=everything)
    loss = Contrastive(T, both=True, same_side=True)
    assert loss(hand.views()).item() == pytest.approx(loss(masked).item(), abs=1e-12)


def test_hard_negatives_are_further_columns(hand: Any) -> None:
    plain = hand.views()
    views = Views(plain.queries[:2], plain.documents)
    rows = [
        -math.log(math.exp(hand.qd[i][i] / T) / sum(math.exp(hand.qd[i][j] / T) for j in range(3))) for i in range(2)
    ]
    assert Contrastive(T)(views).item() == pytest.approx(sum(rows) / 2, abs=1e-12)


def test_queries_of_others_are_negatives_of_documents_and_nothing_is_asked_of_them(hand: Any) -> None:
    plain = hand.views()
    views = Views(
        plain.queries[:2], plain.documents, others=plain.queries[2:], allowed_others=torch.tensor([[False, True]])
    )
    assert Contrastive(T)(views) == Contrastive(T)(Views(plain.queries[:2], plain.documents))
    total = 0.0
    for i, rows in ((0, (0, 1)), (1, (0, 1, 2))):
        own = math.exp(hand.qd[i][i] / T)
        asked = sum(math.exp(hand.qd[i][j] / T) for j in range(3))
        asking = sum(math.exp(hand.qd[j][i] / T) for j in rows)
        total += (-math.log(own / asked) - math.log(own / asking)) / 2
    assert Contrastive(T, both=True)(views).item() == pytest.approx(total / 2, abs=1e-12)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_is_none_is_refused(temperature: float) -> None:
    with pytest.raises(InputError, match="temperature"):
        Contrastive(temperature)
