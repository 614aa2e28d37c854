"""Toy pairs: domains of topics, whose texts share words with their own topic alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from vicinal.batches.base import Halves


class Toy:
    """Pairs of some domains: row r of a domain is about topic r % topics."""

    fingerprint = "toy"

    def __init__(self, sizes: Mapping[str, int], topics: int = 4) -> None:
        self.domains: dict[str, range] = {}
        self.topics = topics
        start = 0
        for name, size in sizes.items():
            self.domains[name] = range(start, start + size)
            start += size
        self.asked = 0  # texts that were read

    def __len__(self) -> int:
        return sum(map(len, self.domains.values()))

    def take(self, rows: Sequence[int]) -> list[Any]:
        return list(zip(self.column("query", rows), self.column("document", rows), strict=True))

    def column(self, name: str, rows: Sequence[int]) -> list[str]:
        self.asked += len(rows)
        return [self._text(name, int(row)) for row in rows]

    def topic(self, row: int) -> int:
        start = next(rows.start for rows in self.domains.values() if row in rows)
        return (row - start) % self.topics

    def _text(self, name: str, row: int) -> str:
        if not 0 <= row < len(self):
            raise IndexError(row)
        chance = np.random.default_rng([row, len(name)])
        said = " ".join(f"topic{self.topic(row)}word{n}" for n in chance.integers(12, size=8))
        return f"{said} {name} number {row}"


@pytest.fixture
def toy() -> Toy:
    return Toy({"cooking": 103, "law": 57})


@pytest.fixture
def toys() -> type[Toy]:
    """To make others than `toy`."""
    return Toy


@pytest.fixture
def gaussians() -> Callable[..., tuple[Halves, Any]]:
    """`_gaussians`, for every test file."""
    return _gaussians


def _gaussians(rows: int, centres: int, dim: int = 16, spread: float = 0.1, seed: int = 0) -> tuple[Halves, Any]:
    """Vectors around well-separated directions, and which direction each is of."""
    chance = np.random.default_rng(seed)
    directions = np.linalg.qr(chance.standard_normal((dim, dim)))[0][:centres]
    of = chance.integers(centres, size=rows)
    points = directions[of][:, None, :] + spread * chance.standard_normal((rows, 2, dim)) / dim**0.5
    return (points / np.linalg.norm(points, axis=2, keepdims=True)).astype(np.float16), of
