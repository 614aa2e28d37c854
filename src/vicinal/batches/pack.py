"""Clusters -> batches of exactly `size` pairs, other ones every epoch.

k-means gives clusters of any size. A large one is split: as many whole batches as it has, of its rows in a new random
order. What is left of each, fewer than `size` rows, is laid end to end along an order of the clusters and cut into
batches. Along `random`, clusters that meet have nothing in common but their domain; along `tour`, each next cluster is
the one nearest to the last that was not visited yet (the paper's greedy travelling salesman, from a random start), so
that merged clusters are neighbours. Every row is in one batch of an epoch, but for a remainder of fewer than `size`:
the seed alone decides a queue of all rows, and each epoch leaves out the next of it, so that none is left out twice
before all were.

>>> packed = pack(np.array([0, 0, 0, 1, 1, 1, 1, 2]), np.eye(3, dtype=np.float32), size=2)
>>> packed.batches.shape, len(packed.remainder)
((4, 2), 0)
>>> sorted(packed.batches.flatten().tolist())
[0, 1, 2, 3, 4, 5, 6, 7]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..vectors import Floats
from .base import Rows

ORDERS = ("random", "tour")


@dataclass(frozen=True)
class Packed:
    """The batches of one epoch, and the rows that are in none of them."""

    batches: Rows  # (batches, size)
    remainder: Rows


def pack(
    labels: npt.NDArray[Any],
    centroids: Floats,
    size: int,
    order: str = "random",
    *,
    seed: int = 0,
    epoch: int = 0,
    name: str = "",
) -> Packed:
    """Pack the rows 0..n-1 of one domain by their clusters; seed, epoch and the domain's name decide all chance."""
    check_packing(size, order)
    chance = np.random.default_rng([seed, epoch, *name.encode()])
    remainder = left_out(len(labels), size, seed, epoch, name)
    rows = chance.permutation(len(labels))
    rows = rows[~np.isin(rows, remainder)]
    rows = rows[np.argsort(labels[rows], kind="stable")]  # cluster after cluster, in random order within
    counts = np.bincount(labels[rows], minlength=len(centroids))
    ends = np.cumsum(counts)
    whole: list[Rows] = []
    parts: dict[int, Rows] = {}  # of each cluster, what no whole batch of its own has
    for number in np.flatnonzero(counts).tolist():
        members = rows[ends[number] - counts[number] : ends[number]]
        split = len(members) // size * size
        whole.append(members[:split])
        if split < len(members):
            parts[number] = members[split:]
    numbers = np.array(list(parts), dtype=np.int64)
    along = numbers[tour(centroids[numbers], chance) if order == "tour" else chance.permutation(len(numbers))]
    merged = [parts[number] for number in along.tolist()]
    batches = np.concatenate([*whole, *merged, np.zeros(0, dtype=np.int64)]).reshape(-1, size)
    return Packed(chance.permuted(batches, axis=1), remainder)  # so that each rank's slice is a random one


def check_packing(size: int, order: str) -> None:
    """Refuse batches that nobody could make."""
    if size < 1:
        raise InputError(f"batches of {size} pairs were asked for: expected 1 or more")
    if order not in ORDERS:
        raise InputError(f"clusters cannot be merged along {order!r}: take one of {', '.join(ORDERS)}")


def left_out(rows: int, size: int, seed: int, epoch: int, name: str = "") -> Rows:
    """The `rows % size` rows that an epoch leaves out.

    >>> [left_out(5, 2, seed=0, epoch=epoch).tolist() for epoch in range(6)]
    [[2], [4], [3], [0], [1], [2]]
    """
    queue = np.random.default_rng([seed, *name.encode()]).permutation(rows)
    count = rows % size
    return np.sort(queue[(epoch * count + np.arange(count)) % max(1, rows)])


def tour(centroids: Floats, chance: np.random.Generator) -> Rows:
    """A walk over all centroids, from a random one to the nearest that was not visited yet, and on.

    >>> line = np.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]], dtype=np.float32)
    >>> tour(line / np.linalg.norm(line, axis=1, keepdims=True), np.random.default_rng(0)).tolist()
    [3, 1, 2, 0]
    """
    if not len(centroids):
        return np.zeros(0, dtype=np.int64)
    path = [int(chance.integers(len(centroids)))]
    visited = np.zeros(len(centroids), dtype=np.float32)
    for _ in range(len(centroids) - 1):
        visited[path[-1]] = -np.inf
        path.append(int((centroids @ centroids[path[-1]] + visited).argmax()))
    return np.array(path, dtype=np.int64)
