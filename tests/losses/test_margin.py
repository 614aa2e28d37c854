"""Margin-MSE, written out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from vicinal.errors import InputError
from vicinal.losses import MarginMSE

TEACHER = [[5.0, 1.0, 2.0], [0.5, 4.0, 3.0], [1.0, 2.0, 6.0]]


def by_hand(hand: Any, teacher: list[list[float]], scale: float) -> float:
    total = 0.0
    for i in range(3):
        errors = [
            (scale * (hand.qd[i][i] - hand.qd[i][j]) - (teacher[i][i] - teacher[i][j])) ** 2
            for j in range(3)
            if j != i and hand.allowed[i][j] and min(teacher[i][j], teacher[i][i]) > -math.inf
        ]
        total += sum(errors) / max(len(errors), 1)
    return total / 3


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_it_is_the_formula_by_hand_over_what_is_allowed(hand: Any, scale: float) -> None:
    views = hand.views(allowed=torch.tensor(hand.allowed), teacher=torch.tensor(TEACHER))
    assert MarginMSE(scale)(views).item() == pytest.approx(by_hand(hand, TEACHER, scale), abs=1e-9)


def test_what_is_unknown_is_left_out_and_an_unknown_own_document_leaves_out_its_query(hand: Any) -> None:
    teacher = [[5.0, 1.0, 2.0], [0.5, -math.inf, 3.0], [1.0, -math.inf, 6.0]]
    views = hand.views(allowed=torch.tensor(hand.allowed), teacher=torch.tensor(teacher))
    assert MarginMSE()(views).item() == pytest.approx(by_hand(hand, teacher, 1.0), abs=1e-9)


def test_a_teacher_with_the_same_margins_leaves_no_loss_wherever_its_scores_lie(hand: Any) -> None:
    scores = 3 * torch.tensor(hand.qd, dtype=torch.float64) + torch.tensor([[10.0], [0.0], [-7.0]])
    assert MarginMSE(scale=3.0)(hand.views(teacher=scores)).item() == pytest.approx(0, abs=1e-12)


def test_without_a_teacher_or_a_scale_it_says_so(hand: Any) -> None:
    with pytest.raises(InputError, match="teacher"):
        MarginMSE()(hand.views())
    with pytest.raises(InputError, match="scale"):
        MarginMSE(scale=0.0)
