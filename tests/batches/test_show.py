"""A look at a batch, and its difficulty."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vicinal.batches.cluster import KMeans
from vicinal.batches.plan import Plan
from vicinal.batches.sample import EveryPairOnce
from vicinal.batches.show import Difficulty, difficulty, difficulty_of, histogram, look, show
from vicinal.batches.surrogate import Vectors, Words
from vicinal.errors import InputError, MissingExtra

QUICK = KMeans(steps=10, tries=2)


@pytest.fixture
def vectors(toy: Any, tmp_path: Path) -> Vectors:
    return Vectors.of(toy, Words(dim=8), tmp_path)


def test_what_is_shown_is_what_a_schedule_meets(toy: Any, vectors: Vectors, tmp_path: Path) -> None:
    plan = Plan.of(toy, vectors, size=10, kmeans=QUICK)
    steps = list(islice(EveryPairOnce(seed=2).steps(plan, start=len(plan)), len(plan)))
    for batch in (0, 7, 14):
        seen = look(plan, toy, vectors, batch=batch, seed=2, epoch=1)
        assert (seen.rows == steps[batch].rows).all() and seen.domain == steps[batch].domain
        assert seen.queries == toy.column("query", seen.rows) and seen.documents == toy.column("document", seen.rows)
        assert sum(seen.clusters.values()) == 10
    asked = show(
        toy, Words(dim=8), batch=7, size=10, seed=2, epoch=1, kmeans=QUICK, folder=tmp_path / "elsewhere"
    ).record()
    assert asked == look(plan, toy, vectors, batch=7, seed=2, epoch=1).record()
    assert json.loads(json.dumps(asked, allow_nan=False))["pairs"][0]["row"] == steps[7].rows[0]


def test_difficulty_is_what_a_double_loop_says() -> None:
    chance = np.random.default_rng(0)
    batch = chance.standard_normal((6, 2, 3)).astype(np.float32)
    others = [[float(batch[i, 1] @ batch[j, 0]) for j in range(6) if j != i] for i in range(6)]
    assert difficulty_of(batch)[0] == pytest.approx(np.mean(others), abs=1e-5)
    assert difficulty_of(batch)[1] == pytest.approx(np.mean([max(line) for line in others]), abs=1e-5)
    assert difficulty_of(batch[:1]) == (0, 0)


def test_batches_of_neighbours_are_harder_than_random_ones(toy: Any, vectors: Vectors) -> None:
    hard = difficulty(Plan.of(toy, vectors, size=10, cluster_size=25, kmeans=QUICK), vectors)
    easy = difficulty(Plan.of(toy, None, size=10), vectors)
    assert hard.mean.shape == hard.highest.shape == (15,) == easy.mean.shape
    assert hard.mean.mean() > easy.mean.mean() + 0.3
    assert (hard.highest >= hard.mean).all()


def test_the_histogram_is_a_picture_and_the_same_every_time(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    measured = {name: Difficulty(chance.random(50), chance.random(50)) for name in ("random", "tour")}
    for name in ("one.png", "two.png"):
        histogram(tmp_path / name, measured)
    assert (tmp_path / "one.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    histogram(tmp_path / "none.png", {"none": Difficulty(np.zeros(0), np.zeros(0))})


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"vicinal\[train\]"):
        histogram(tmp_path / "one.png", {})


@pytest.mark.parametrize("asked", [{"batch": 15}, {"batch": -1}, {"batch": 0, "epoch": -1}])
def test_a_batch_that_there_is_not_is_refused(toy: Any, vectors: Vectors, asked: dict[str, int]) -> None:
    with pytest.raises(InputError, match="asked for"):
        look(Plan.of(toy, vectors, size=10, kmeans=QUICK), toy, vectors, **asked)
