"""Regression to a teacher's vectors, written out by hand; a head where dimensions differ."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from vicinal.errors import InputError
from vicinal.losses import Regression

TARGETS = (
    [[1.0, 2.0, 2.0], [0.0, -4.0, 3.0], [2.0, 1.0, 0.0]],
    [[0.0, 1.0, 1.0], [2.0, 2.0, 1.0], [1.0, -1.0, 0.5]],
)


def one_less_cosine(left: list[float], right: list[float]) -> float:
    dot = sum(a * b for a, b in zip(left, right, strict=True))
    return 1 - dot / math.sqrt(sum(a * a for a in left) * sum(b * b for b in right))


def targets() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(TARGETS[0], dtype=torch.float64), torch.tensor(TARGETS[1], dtype=torch.float64)


def test_it_is_the_formula_by_hand(hand: Any) -> None:
    views = hand.views(targets=targets())
    sides = zip((views.queries.tolist(), views.documents.tolist()), TARGETS, strict=True)
    distances = [one_less_cosine(a, b) for ours, theirs in sides for a, b in zip(ours, theirs, strict=True)]
    assert Regression()(views).item() == pytest.approx(sum(distances) / 6, abs=1e-12)


def test_it_is_half_the_squared_distance_of_normalised_vectors(hand: Any) -> None:
    views = hand.views(targets=targets())
    distances = [
        (ours - theirs / theirs.norm(dim=1, keepdim=True)).square().sum(dim=1).mean()
        for ours, theirs in zip(views.at(), targets(), strict=True)
    ]
    assert Regression()(views).item() == pytest.approx(sum(distances).item() / 4, abs=1e-12)  # type: ignore[union-attr]


def test_a_head_at_a_size_is_its_first_columns(hand: Any) -> None:
    head = torch.nn.Linear(3, 2).double()
    wanted = (torch.randn(3, 2, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64))
    views = hand.views(targets=wanted)
    total = 0.0
    for raw, target in zip((views.queries, views.documents), wanted, strict=True):
        for vector, goal in zip(raw.tolist(), target.tolist(), strict=True):
            length = math.hypot(*vector[:2])
            turned = [
                sum(w * v / length for w, v in zip(row[:2], vector[:2], strict=True)) + b
                for row, b in zip(head.weight.tolist(), head.bias.tolist(), strict=True)
            ]
            total += one_less_cosine(turned, goal)
    assert Regression(head)(views, 2).item() == pytest.approx(total / 6, abs=1e-12)


def test_the_head_learns_with_the_student(hand: Any) -> None:
    head = torch.nn.Linear(3, 2).double()
    Regression(head)(hand.views(targets=(torch.ones(3, 2), torch.ones(3, 2)))).backward()
    assert head.weight.grad is not None and head.weight.grad.abs().sum() > 0


def test_only_the_first_documents_may_have_targets(hand: Any) -> None:
    views = hand.views(targets=(targets()[0], targets()[1][:2]))
    queries = [one_less_cosine(a, b) for a, b in zip(views.queries.tolist(), TARGETS[0], strict=True)]
    documents = [one_less_cosine(a, b) for a, b in zip(views.documents.tolist()[:2], TARGETS[1][:2], strict=True)]
    assert Regression()(views).item() == pytest.approx(sum(queries) / 6 + sum(documents) / 4, abs=1e-12)


@pytest.mark.parametrize(
    ("given", "head", "told"),
    [
        (None, None, "teacher's vectors"),
        ((torch.ones(3, 2), torch.ones(3, 2)), None, r"3 dimensions, the teacher's 2.*Linear\(3, 2\)"),
        ((torch.ones(3, 3), torch.ones(3, 3)), torch.nn.Linear(2, 3), "head takes 2 dimensions"),
        ((torch.ones(2, 3), torch.ones(3, 3)), None, "3 queries, and a teacher's vectors of 2"),
        ((torch.ones(3, 3), torch.ones(4, 3)), None, "3 documents, and a teacher's vectors of 4"),
    ],
)
def test_what_does_not_fit_is_refused(hand: Any, given: Any, head: torch.nn.Linear | None, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Regression(head)(hand.views(targets=given))
