"""Packing: nothing is lost or repeated, whatever the clusters; batches change, and stay among neighbours."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from vicinal.batches.pack import ORDERS, left_out, pack, tour
from vicinal.errors import InputError


def centroids(count: int, seed: int = 0) -> Any:
    drawn = np.random.default_rng(seed).standard_normal((count, 6)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@given(
    sizes=some.lists(some.integers(0, 40), max_size=12),
    size=some.integers(1, 17),
    order=some.sampled_from(ORDERS),
    seed=some.integers(0, 9),
    epoch=some.integers(0, 30),
)
def test_split_and_merge_never_lose_or_repeat_a_row(
    sizes: list[int], size: int, order: str, seed: int, epoch: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    packed = pack(labels, centroids(len(sizes)), size, order, seed=seed, epoch=epoch)
    assert packed.batches.shape == (sum(sizes) // size, size)
    assert len(packed.remainder) == sum(sizes) % size
    assert sorted([*packed.batches.flatten().tolist(), *packed.remainder.tolist()]) == list(range(sum(sizes)))


@given(sizes=some.lists(some.integers(0, 40), min_size=1, max_size=12), size=some.integers(1, 17))
def test_a_large_cluster_has_whole_batches_of_its_own(sizes: list[int], size: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    packed = pack(labels, centroids(len(sizes)), size)
    counts = np.bincount(np.delete(labels, packed.remainder), minlength=len(sizes))
    pure = sum(len(set(batch.tolist())) == 1 for batch in labels[packed.batches])
    assert pure >= (counts // size).sum()


@pytest.mark.parametrize("order", ORDERS)
def test_seed_and_epoch_decide_everything_and_each_decides_something(order: str) -> None:
    labels, middle = np.random.default_rng(0).integers(9, size=400), centroids(9)

    def sets(**asked: Any) -> set[frozenset[int]]:
        return set(map(frozenset, pack(labels, middle, 16, order, **asked).batches.tolist()))

    assert sets(seed=1, epoch=2) == sets(seed=1, epoch=2)
    for other in ({"seed": 0, "epoch": 2}, {"seed": 1, "epoch": 3}, {"seed": 1, "epoch": 2, "name": "law"}):
        assert not sets(seed=1, epoch=2) & sets(**other)


@given(rows=some.integers(1, 60), size=some.integers(1, 20), seed=some.integers(0, 5))
def test_no_row_is_left_out_twice_before_all_were(rows: int, size: int, seed: int) -> None:
    each = rows % size
    times = np.zeros(rows, dtype=int)
    for epoch in range(rows):
        out = left_out(rows, size, seed, epoch)
        assert len(set(out.tolist())) == each
        times[out] += 1
        assert times.max() - times.min() <= 1


def test_a_tour_visits_every_centroid_once_and_goes_to_the_nearest() -> None:
    middle = centroids(40)
    path = tour(middle, np.random.default_rng(0)).tolist()
    assert sorted(path) == list(range(40))
    for place, (here, there) in enumerate(pairwise(path)):
        ahead = path[place + 1 :]
        assert there == ahead[int((middle[ahead] @ middle[here]).argmax())]
    assert path != tour(middle, np.random.default_rng(1)).tolist()


def test_along_a_tour_those_that_are_merged_are_nearer_than_along_chance(gaussians: Any) -> None:
    vectors, of = gaussians(600, 12, dim=64, spread=0.5)
    fine = of * 8 + np.random.default_rng(0).integers(8, size=600)  # small clusters, eight about each direction
    rows = vectors.reshape(600, -1).astype(np.float32)
    middle = np.array([rows[fine == label].mean(axis=0) for label in range(96)])
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)

    def alike(order: str, epoch: int) -> float:
        found = pack(fine, middle, 24, order, epoch=epoch).batches
        return float(np.mean([(rows[batch] @ rows[batch].T).mean() for batch in found]))

    by_chance, along = ([alike(order, epoch) for epoch in range(4)] for order in ORDERS)
    assert min(along) > max(by_chance) + 0.2


def test_each_part_of_a_batch_is_a_random_part() -> None:
    """A rank takes a slice: it must not be the one that gets what was merged in last."""
    labels = np.repeat([0, 1], 8)
    first = [labels[pack(labels, centroids(2), 16, epoch=epoch).batches[0][:8]].sum() for epoch in range(40)]
    assert 3 < np.mean(first) < 5 and max(first) < 8


@pytest.mark.parametrize(("size", "order", "told"), [(0, "random", "0 pairs"), (4, "best", "'best'")])
def test_what_cannot_be_asked_for_is_refused(size: int, order: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        pack(np.zeros(3, dtype=int), centroids(1), size, order)
