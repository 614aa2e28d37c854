"""k-means: both engines find what is there, and neither ever goes down."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from vicinal.batches import cluster as room
from vicinal.batches.cluster import ENGINES, KMeans, cluster
from vicinal.errors import InputError, MissingExtra

QUICK = {"steps": 20, "tries": 3}


def partition(labels: Any) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}


@pytest.mark.parametrize("engine", ENGINES)
def test_well_separated_clusters_are_found(gaussians: Any, engine: str) -> None:
    vectors, of = gaussians(300, 5)
    found = cluster(vectors, 5, KMeans(engine=engine, tries=8, steps=20))
    assert partition(found.labels) == partition(of)
    assert found.objective > 0.99 and found.moved_by == 300


def test_both_engines_find_the_same_and_say_the_same_of_it(gaussians: Any) -> None:
    vectors, _ = gaussians(400, 6, seed=3)
    one, two = (cluster(vectors, 6, KMeans(engine=engine, tries=8, steps=20)) for engine in ENGINES)
    assert partition(one.labels) == partition(two.labels)
    assert one.objective == pytest.approx(two.objective, abs=1e-4)
    assert one.steps[-1] == pytest.approx(two.steps[-1], abs=1e-4), "in the same unit"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_gives_the_same_labels_and_another_seed_others(gaussians: Any, engine: str) -> None:
    vectors, _ = gaussians(500, 4, spread=2.0)
    one, two, other = (cluster(vectors, 20, KMeans(engine=engine, seed=seed, **QUICK)) for seed in (0, 0, 1))
    assert (one.labels == two.labels).all() and (one.centroids == two.centroids).all()
    assert (one.labels != other.labels).any()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_the_objective_never_falls(gaussians: Any, engine: str, spread: float) -> None:
    vectors, _ = gaussians(400, 3, spread=spread, seed=1)
    found = cluster(vectors, 30, KMeans(engine=engine, tries=2, steps=30))
    assert len(found.steps) > 2
    if engine == "torch":  # faiss splits a large cluster where one is empty, which may cost
        assert min(np.diff(found.steps)) > -1e-6
    assert found.steps[-1] > found.steps[0]
    assert found.objective >= found.steps[-1] - 1e-6


def test_more_tries_are_never_worse(gaussians: Any) -> None:
    vectors, _ = gaussians(400, 12, seed=2)
    objectives = [cluster(vectors, 12, KMeans(engine="torch", tries=tries, steps=20)).objective for tries in (1, 2, 6)]
    assert objectives == sorted(objectives)
    assert objectives[0] < objectives[-1]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pair_belongs_to_the_centroid_nearest_to_its_document_and_query(gaussians: Any, engine: str) -> None:
    vectors, _ = gaussians(200, 4, spread=2.0)
    found = cluster(vectors, 9, KMeans(engine=engine, **QUICK))
    rows = vectors.reshape(200, -1).astype(np.float32)  # [d;q]
    scores = rows @ found.centroids.T
    assert (scores[np.arange(200), found.labels] >= scores.max(axis=1) - 1e-5).all()
    assert np.linalg.norm(found.centroids, axis=1) == pytest.approx(np.ones(9), abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_document_near_anothers_query_makes_them_neighbours(engine: str) -> None:
    a, b, c, d = np.eye(4, dtype=np.float16)
    vectors = np.array([[a, b], [b, a], [c, d], [d, c]])  # by [d;q] alone, all four are at right angles
    found = cluster(vectors, 2, KMeans(engine=engine, steps=10, tries=12))
    turned = cluster(vectors[:, ::-1], 2, KMeans(engine=engine, steps=10, tries=12))
    assert found.objective == pytest.approx(turned.objective, abs=1e-5), "which of the two comes first does not matter"
    mirrored = vectors[[0, 2]].reshape(2, -1), vectors[[1, 3]].reshape(2, -1)
    near = [np.abs(side.astype(np.float32) @ found.centroids.T).max() for side in mirrored]
    assert min(near) > 0.5


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("k", [1, 7, 8])
def test_as_many_clusters_as_pairs_or_one_for_all_are_no_special_case(gaussians: Any, engine: str, k: int) -> None:
    vectors, _ = gaussians(8, 2)
    found = cluster(vectors, k, KMeans(engine=engine, **QUICK))
    assert found.centroids.shape == (k, 32)
    assert 0 <= found.labels.min() <= found.labels.max() < k


@pytest.mark.parametrize("engine", ENGINES)
def test_pairs_that_are_all_alike_or_without_any_word_are_clustered_somehow(engine: str) -> None:
    for vectors in (np.zeros((50, 2, 4), dtype=np.float16), np.full((50, 2, 4), 0.5, dtype=np.float16)):
        found = cluster(vectors, 5, KMeans(engine=engine, **QUICK))
        assert len(found.labels) == 50 and np.isfinite(found.centroids).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sample_moves_the_centroids_only_where_it_is_asked_for_and_all_pairs_get_a_label(
    gaussians: Any, engine: str
) -> None:
    vectors, of = gaussians(600, 4)
    all_of_them = cluster(vectors, 4, KMeans(engine=engine, tries=6, steps=10))
    some = cluster(vectors, 4, KMeans(engine=engine, tries=6, steps=10, most_pairs=100))
    assert (all_of_them.moved_by, some.moved_by) == (600, 100)
    assert partition(some.labels) == partition(of)
    with pytest.raises(InputError, match="100 pairs cannot move 101"):
        cluster(vectors, 101, KMeans(engine=engine, most_pairs=100))


def test_faiss_moves_its_centroids_by_every_row_even_where_they_are_few(gaussians: Any) -> None:
    """By itself it would look at 256 rows a centroid: 512 of these 4,000."""
    vectors, _ = gaussians(2000, 2, spread=4.0)
    found = cluster(vectors, 2, KMeans(tries=3, steps=40))
    best = cluster(vectors, 2, KMeans(engine="torch", tries=3, steps=40))
    assert found.objective == pytest.approx(best.objective, abs=2e-5)


def test_in_sixteen_bit_nearly_the_same_is_found(gaussians: Any) -> None:
    vectors, of = gaussians(300, 5)
    found = cluster(vectors, 5, KMeans(engine="torch", precision="bf16", tries=8, steps=20))
    assert partition(found.labels) == partition(of)


def test_how_many_rows_are_looked_at_together_changes_nothing(gaussians: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = gaussians(3000, 5, spread=1.0)
    one = cluster(vectors, 5, KMeans(engine="torch", **QUICK))
    monkeypatch.setattr(room, "SCORES_AT_ONCE", 1)
    two = cluster(vectors, 5, KMeans(engine="torch", **QUICK))
    assert partition(one.labels) == partition(two.labels)


def test_without_faiss_the_engine_faiss_says_what_to_install(gaussians: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = gaussians(20, 2)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"vicinal\[train\]"):
        cluster(vectors, 2)
    assert len(cluster(vectors, 2, KMeans(engine="torch", **QUICK)).labels) == 20


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_not_a_number_is_refused(gaussians: Any, engine: str) -> None:
    vectors, _ = gaussians(20, 2)
    vectors[7, 1, 3] = np.nan
    with pytest.raises(InputError, match="not a number"):
        cluster(vectors, 2, KMeans(engine=engine, **QUICK))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"engine": "other"}, "'other'"),
        ({"precision": "int8"}, "int8"),
        ({"device": "cuda"}, "take engine torch"),
        ({"precision": "bf16"}, "take engine torch"),
        ({"steps": 0}, "steps=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        KMeans(**asked)


@pytest.mark.parametrize("k", [0, 21])
def test_more_clusters_than_pairs_are_refused(gaussians: Any, k: int) -> None:
    with pytest.raises(InputError, match=f"{k} clusters of 20 pairs"):
        cluster(gaussians(20, 2)[0], k)


@pytest.mark.parametrize("seed", range(5))
def test_a_cluster_that_nobody_is_in_goes_to_the_pair_that_is_served_worst(seed: int) -> None:
    one, two, three = np.eye(3, 4, dtype=np.float16)
    vectors = np.array([[one, one]] * 30 + [[two, two], [three, three]])  # a start that draws the last two is rare
    found = cluster(vectors, 3, KMeans(engine="torch", tries=1, steps=10, seed=seed))
    assert found.objective == pytest.approx(1, abs=1e-6)
    assert partition(found.labels) == {frozenset(range(30)), frozenset([30]), frozenset([31])}
