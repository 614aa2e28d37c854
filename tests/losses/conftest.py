"""Three queries and three documents in plain numbers, for formulas that are written out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from vicinal.losses import Views

QUERIES = [[3.0, 4.0, 0.0], [1.0, -2.0, 2.0], [0.0, 0.5, 0.5]]
DOCUMENTS = [[2.0, 1.0, 2.0], [0.0, -3.0, 4.0], [1.0, 1.0, -1.0]]
ALLOWED = [[True, False, True], [True, True, True], [False, True, True]]


def cosine(left: list[float], right: list[float]) -> float:
    dot = sum(a * b for a, b in zip(left, right, strict=True))
    return dot / math.sqrt(sum(a * a for a in left)) / math.sqrt(sum(b * b for b in right))


def table(left: list[list[float]], right: list[list[float]]) -> list[list[float]]:
    return [[cosine(a, b) for b in right] for a in left]


@dataclass(frozen=True)
class Hand:
    """The numbers, their cosines in plain Python, and the views they make."""

    qd: list[list[float]]
    qq: list[list[float]]
    dd: list[list[float]]
    allowed: list[list[bool]]

    def views(self, **known: Tensor | tuple[Tensor, Tensor]) -> Views:
        double = {"dtype": torch.float64}
        return Views(torch.tensor(QUERIES, **double), torch.tensor(DOCUMENTS, **double), **known)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads wait for each other far longer than these numbers take, where other work shares the processor."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def hand() -> Hand:
    return Hand(table(QUERIES, DOCUMENTS), table(QUERIES, QUERIES), table(DOCUMENTS, DOCUMENTS), ALLOWED)
