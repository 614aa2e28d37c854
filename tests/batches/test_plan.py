"""Plans: the promises of an epoch, and what is refused of a file."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vicinal
from vicinal.batches.cluster import KMeans
from vicinal.batches.plan import Domain, Plan
from vicinal.batches.sample import EveryPairOnce, Multinomial
from vicinal.batches.surrogate import Vectors, Words
from vicinal.errors import InputError

QUICK = KMeans(steps=10, tries=2)


def planned(pairs: Any, folder: Path, **asked: Any) -> Plan:
    return Plan.of(pairs, Vectors.of(pairs, Words(dim=8), folder), **{"size": 10, "kmeans": QUICK, **asked})


@pytest.mark.parametrize("order", ["random", "tour"])
def test_an_epoch_has_each_pair_once_but_for_the_stated_remainder(toy: Any, tmp_path: Path, order: str) -> None:
    plan = planned(toy, tmp_path, order=order)
    assert plan.remainder == {"cooking": 3, "law": 7}
    left = []
    for epoch in range(3):
        batches = plan.epoch(seed=0, epoch=epoch)
        assert batches.shape == (len(plan), 10) == (15, 10)
        rows = batches.flatten().tolist()
        assert len(set(rows)) == len(rows)
        left.append(set(range(len(toy))) - set(rows))
        assert [len(left[-1] & set(rows)) for rows in toy.domains.values()] == [3, 7]
    assert not left[0] & left[1] and not left[1] & left[2]


def test_a_batch_is_of_one_domain(toy: Any, tmp_path: Path) -> None:
    plan = planned(toy, tmp_path)
    domains = [{plan.domain_of(int(row)).name for row in batch} for batch in plan.epoch()]
    assert domains == [{"cooking"}] * 10 + [{"law"}] * 5


def test_batches_are_made_of_neighbours_and_random_ones_are_not(toy: Any, tmp_path: Path) -> None:
    def topics(plan: Plan, epoch: int) -> float:
        return float(np.mean([len({toy.topic(int(row)) for row in batch}) for batch in plan.epoch(epoch=epoch)]))

    clustered, by_chance = planned(toy, tmp_path, cluster_size=25), Plan.of(toy, None, size=10)
    for epoch in range(3):
        assert topics(clustered, epoch) < 2.2 < 3.5 < topics(by_chance, epoch)
    assert by_chance.remainder == clustered.remainder


def test_batches_differ_between_epochs_and_between_seeds(toy: Any, tmp_path: Path) -> None:
    plan = planned(toy, tmp_path)
    one, *others = (set(map(frozenset, plan.epoch(seed, epoch).tolist())) for seed, epoch in ((0, 0), (0, 1), (1, 0)))
    assert all(len(one & other) <= 1 for other in others)


def test_what_is_planned_is_the_same_in_every_process(toy: Any, tmp_path: Path) -> None:
    plan = planned(toy, tmp_path)
    plan.save(tmp_path / "plan.safetensors")
    code = (
        "import sys, types; from vicinal.batches.plan import Plan;"
        "from vicinal.batches.sample import EveryPairOnce, Multinomial; from itertools import islice;"
        "plan = Plan.load(sys.argv[1], types.SimpleNamespace(fingerprint='toy'));"
        "ways = [EveryPairOnce(1), Multinomial(seed=1)];"
        "print([step.rows.tolist() for way in ways for step in islice(way.steps(plan), 20)])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "plan.safetensors")],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(vicinal.__file__).parent.parent)},
    )
    ways = [EveryPairOnce(1), Multinomial(seed=1)]
    assert told.stdout.strip() == str([step.rows.tolist() for way in ways for step in islice(way.steps(plan), 20)])


def test_domains_that_look_alike_are_packed_by_chances_of_their_own() -> None:
    labels, centroid = np.zeros(40, dtype=np.int32), np.ones((1, 2), dtype=np.float32)
    domains = tuple(Domain(name, range(start, start + 40), labels, centroid) for name, start in (("a", 0), ("b", 40)))
    one, two = np.split(Plan("f", size=8, order="random", domains=domains).epoch(), 2)
    assert (one != two - 40).any()


def test_a_cluster_size_of_its_own_changes_clusters_and_not_batches(toy: Any, tmp_path: Path) -> None:
    plan = planned(toy, tmp_path, cluster_size=40)
    assert [len(domain.centroids) for domain in plan.domains] == [3, 2]
    assert plan.epoch().shape == planned(toy, tmp_path).epoch().shape
    assert dataclasses.replace(plan, size=20).epoch().shape == (7, 20)


def test_a_domain_smaller_than_a_batch_is_all_remainder(toys: Any, tmp_path: Path) -> None:
    toy = toys({"none": 0, "few": 7, "many": 21})
    plan = planned(toy, tmp_path)
    assert (len(plan), plan.remainder) == (2, {"few": 7, "many": 1})
    assert plan.epoch().min() >= 7


def test_the_sampling_is_stated_where_there_was_some(toy: Any, tmp_path: Path) -> None:
    assert planned(toy, tmp_path).describe()["sampled"] == {}
    asked = dataclasses.replace(QUICK, most_pairs=60)
    assert planned(toy, tmp_path, kmeans=asked).describe()["sampled"] == {"cooking": 60}


def test_a_saved_plan_is_the_same_to_the_bit(toy: Any, tmp_path: Path) -> None:
    made = planned(toy, tmp_path)
    made.save(tmp_path / "plan.safetensors")
    loaded = Plan.load(tmp_path / "plan.safetensors", toy)
    assert (loaded.epoch(5, 6) == made.epoch(5, 6)).all()
    assert (loaded.fingerprint, loaded.describe()) == (made.fingerprint, made.describe())
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "plan.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    by_chance = Plan.of(toy, None, size=10)
    by_chance.save(tmp_path / "chance.safetensors")
    assert (Plan.load(tmp_path / "chance.safetensors", toy).epoch() == by_chance.epoch()).all()


def test_a_plan_of_other_pairs_is_refused(toy: Any, toys: Any, tmp_path: Path) -> None:
    planned(toy, tmp_path).save(tmp_path / "plan.safetensors")
    other = toys({"cooking": 103, "law": 57})
    other.fingerprint = "changed"
    with pytest.raises(InputError, match="other pairs"):
        Plan.load(tmp_path / "plan.safetensors", other)
    with pytest.raises(InputError, match="other pairs"):
        Plan.of(other, Vectors.of(toy, Words(dim=8), tmp_path))


def test_whatever_byte_of_a_saved_plan_is_changed_it_is_refused_or_the_same(toy: Any, tmp_path: Path) -> None:
    made = planned(toy, tmp_path)
    path = tmp_path / "plan.safetensors"
    made.save(path)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 13):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            loaded = Plan.load(path, toy)
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
        else:  # a byte of what is only told, such as a setting, or of white space
            assert (loaded.epoch() == made.epoch()).all() or loaded.fingerprint != made.fingerprint
    assert refused > 0.7 * len(range(0, len(whole), 13))


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff" * 100])
def test_what_is_no_plan_is_refused(toy: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="not a saved plan"):
        Plan.load(tmp_path / "plan.safetensors", toy)
    with pytest.raises(InputError, match="there is no file"):
        Plan.load(tmp_path / "absent.safetensors", toy)


@pytest.mark.parametrize("asked", [{"size": 0}, {"order": "best"}, {"cluster_size": -1}])
def test_what_cannot_be_asked_for_is_refused(toy: Any, asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"asked for|'best'"):
        Plan.of(toy, None, **asked)
