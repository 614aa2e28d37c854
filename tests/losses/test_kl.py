"""KL to a teacher's scores, written out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from vicinal.errors import InputError
from vicinal.losses import KL

TEACHER = [[0.9, 0.3, -0.2], [0.1, 0.4, -math.inf], [-math.inf, -math.inf, 0.7]]
T, TEACHER_T = 0.3, 0.5


def test_it_is_the_formula_by_hand_over_what_is_allowed_and_known(hand: Any) -> None:
    total = 0.0
    for i in range(3):
        counted = [j for j in range(3) if hand.allowed[i][j] and TEACHER[i][j] > -math.inf]
        target, student = (
            {j: math.exp(scores[i][j] / heat) for j in counted} for scores, heat in ((TEACHER, TEACHER_T), (hand.qd, T))
        )
        for j in counted:
            t, s = target[j] / sum(target.values()), student[j] / sum(student.values())
            total += t * (math.log(t) - math.log(s))
    views = hand.views(allowed=torch.tensor(hand.allowed), teacher=torch.tensor(TEACHER))
    assert total > 0.01
    assert KL(T, TEACHER_T)(views).item() == pytest.approx(total / 3, abs=1e-7)  # the teacher came in 32 bit


def test_a_student_that_agrees_has_no_loss_whatever_the_teachers_offset(hand: Any) -> None:
    scores = torch.tensor(hand.qd, dtype=torch.float64)
    views = hand.views(teacher=2 * scores + torch.tensor([[1.0], [-5.0], [0.0]]))
    assert KL(T, 2 * T)(views).item() == pytest.approx(0, abs=1e-12)


def test_a_query_of_which_nothing_is_known_teaches_nothing(hand: Any) -> None:
    scores = torch.tensor([TEACHER[0], [-math.inf] * 3, [-math.inf] * 3])
    one = KL(T)(hand.views(teacher=scores))
    none = KL(T)(hand.views(teacher=torch.full((3, 3), -math.inf)))
    assert one > 0 and none == 0


def test_without_a_teacher_it_says_so(hand: Any) -> None:
    with pytest.raises(InputError, match="teacher"):
        KL()(hand.views())


@pytest.mark.parametrize("name", ["temperature", "teacher_temperature"])
def test_a_temperature_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name} is 0"):
        KL(**{name: 0.0})
