"""Schedules: functions of a step's number, whoever asks and from wherever."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from vicinal.batches import sample
from vicinal.batches.plan import Domain, Plan
from vicinal.batches.sample import EveryPairOnce, Multinomial, slice_of
from vicinal.errors import InputError

WAYS = [EveryPairOnce(seed=3), Multinomial(alpha=0.5, seed=3), Multinomial(alpha=0, seed=3)]


def plan_of(*sizes: int, size: int = 4) -> Plan:
    domains, start = [], 0
    for number, rows in enumerate(sizes):
        labels = np.random.default_rng(number).integers(3, size=rows).astype(np.int32)
        domains.append(Domain(f"domain {number}", range(start, start + rows), labels, np.eye(3, dtype=np.float32)))
        start += rows
    return Plan("f", size=size, order="random", domains=tuple(domains))


PLAN = plan_of(41, 18, 3)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("start", [1, 13, 14, 29, 60])
def test_a_run_that_is_resumed_meets_what_it_would_have_met(way: Any, start: int) -> None:
    whole, resumed = list(islice(way.steps(PLAN), 80)), list(islice(way.steps(PLAN, start), 80 - start))
    for one, two in zip(whole[start:], resumed, strict=True):
        assert (one.epoch, one.domain) == (two.epoch, two.domain)
        assert (one.rows == two.rows).all()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_resumed_run_may_begin_in_any_block_of_draws(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "DRAWS_AT_ONCE", 8)
    test_a_run_that_is_resumed_meets_what_it_would_have_met(way, 16)
    test_a_run_that_is_resumed_meets_what_it_would_have_met(way, 29)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_step_says_the_domain_that_its_rows_are_of(way: Any) -> None:
    for step in islice(way.steps(PLAN), 60):
        assert {PLAN.domain_of(int(row)).name for row in step.rows} == {step.domain}


def test_every_pair_is_met_once_an_epoch_in_an_order_that_mixes_domains() -> None:
    steps = list(islice(EveryPairOnce().steps(PLAN), 3 * len(PLAN)))
    orders: list[list[str]] = []
    met: list[set[frozenset[int]]] = []
    for epoch in range(3):
        mine = steps[epoch * len(PLAN) : (epoch + 1) * len(PLAN)]
        assert {step.epoch for step in mine} == {epoch}
        rows = np.concatenate([step.rows for step in mine])
        assert len(set(rows.tolist())) == len(rows) == 4 * len(PLAN)
        orders.append([step.domain for step in mine])
        met.append({frozenset(step.rows.tolist()) for step in mine})
    assert orders[0] != sorted(orders[0])
    assert orders[0] != orders[1]
    assert not met[0] & met[1] and not met[1] & met[2], "batches are other ones, and not only in another order"


@pytest.mark.parametrize(("alpha", "share"), [(0, 0.5), (0.5, 2 / 3), (1, 0.8)])
def test_domains_are_met_as_often_as_their_size_to_the_power_of_alpha(alpha: float, share: float) -> None:
    plan, way = plan_of(400, 100, 3), Multinomial(alpha, seed=1)
    assert way.shares(plan) == pytest.approx({"domain 0": share, "domain 1": 1 - share})
    met = [step.domain for step in islice(way.steps(plan), 2000)]
    assert met.count("domain 0") / 2000 == pytest.approx(share, abs=0.05)  # five standard deviations
    assert "domain 2" not in met, "it has no whole batch"


def test_a_domain_that_is_drawn_often_begins_its_own_next_epoch() -> None:
    mine = [step for step in islice(Multinomial(alpha=0).steps(PLAN), 200) if step.domain == "domain 1"]
    assert [step.epoch for step in mine] == [place // 4 for place in range(len(mine))]
    for first in range(0, len(mine) - 4, 4):
        rows = np.concatenate([step.rows for step in mine[first : first + 4]]).tolist()
        assert len(set(rows)) == 16


def test_the_parts_of_all_ranks_are_the_batch() -> None:
    rows = next(EveryPairOnce().steps(PLAN)).rows
    for world in (1, 2, 4):
        assert (np.concatenate([slice_of(rows, rank, world) for rank in range(world)]) == rows).all()
    with pytest.raises(InputError, match="multiple of 3"):
        slice_of(rows, 0, 3)
    with pytest.raises(InputError, match="rank 2 of 2"):
        slice_of(rows, 2, 2)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_plan_without_a_batch_and_a_step_before_the_first_are_refused(way: Any) -> None:
    with pytest.raises(InputError, match="largest domain has 3"):
        next(way.steps(plan_of(3, 2)))
    with pytest.raises(InputError, match="step -1"):
        next(way.steps(PLAN, -1))


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf")])
def test_an_alpha_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha"):
        Multinomial(alpha)
