"""A plan -> the schedule that a training run follows, step after step, from any step on.

Two schedules, with one silhouette: `EveryPairOnce` goes through all batches of an epoch in a random order, then through
the next epoch's; `Multinomial` draws a domain for each step with p_i ~ n_i^alpha and takes that domain's next batch
(GTE, arXiv 2308.03281, alpha 0.5), so that small domains are met more often than their size would have it. A step is a
number and the schedule a function of it: a run that is resumed at step 1000 passes `start=1000` and meets what it would
have met.

Where several processes train together, a step is one batch for all of them: the plan's `size` is the number of
processes times the pairs of each, and `slice_of` gives each rank its part. That is how Contextual Document Embeddings
shares negatives: all ranks see one cluster of one domain.

>>> from .plan import Domain, Plan
>>> domain = Domain("d", range(6), np.zeros(6, dtype=np.int32), np.ones((1, 2), dtype=np.float32))
>>> plan = Plan("f", size=2, order="random", domains=(domain,))
>>> from itertools import islice
>>> [step.epoch for step in islice(EveryPairOnce().steps(plan), 5)]
[0, 0, 0, 1, 1]
>>> resumed = next(EveryPairOnce().steps(plan, start=4))
>>> (resumed.rows == list(islice(EveryPairOnce().steps(plan), 5))[4].rows).all()
np.True_
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import InputError
from .base import Rows
from .plan import Domain, Plan

DRAWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Step:
    """One batch of a schedule."""

    epoch: int  # of all domains, or where domains are drawn, of its own
    domain: str
    rows: Rows  # (size,)


class Schedule(Protocol):
    """Steps without end; the caller stops."""

    def steps(self, plan: Plan, start: int = 0) -> Iterator[Step]: ...


@dataclass(frozen=True)
class EveryPairOnce:
    """All batches of an epoch in a random order, then those of the next."""

    seed: int = 0

    def steps(self, plan: Plan, start: int = 0) -> Iterator[Step]:
        _check(plan, start)
        epoch, first = divmod(start, len(plan))
        while True:
            for rows in self.epoch(plan, epoch)[first:]:
                yield Step(epoch, plan.domain_of(int(rows[0])).name, rows)
            epoch, first = epoch + 1, 0

    def epoch(self, plan: Plan, epoch: int) -> Rows:
        """The batches of one epoch in the order that they are met in."""
        batches = plan.epoch(self.seed, epoch)
        return batches[np.random.default_rng([self.seed, epoch]).permutation(len(batches))]


@dataclass(frozen=True)
class Multinomial:
    """Each step's domain is drawn with p_i ~ n_i^alpha: 1 by size, 0 all alike; those without a batch never are."""

    alpha: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < float("inf"):
            raise InputError(f"alpha {self.alpha} was asked for: expected 0 (all domains alike) to 1 (by their sizes)")

    def shares(self, plan: Plan) -> dict[str, float]:
        """How often each domain is drawn."""
        weights = {d.name: len(d.rows) ** self.alpha for d in _whole(plan)}
        return {name: weight / sum(weights.values()) for name, weight in weights.items()}

    def steps(self, plan: Plan, start: int = 0) -> Iterator[Step]:
        _check(plan, start)
        domains, shares = _whole(plan), list(self.shares(plan).values())
        met = np.zeros(len(domains), dtype=np.int64)  # batches of each domain before this step
        block, first = divmod(start, DRAWS_AT_ONCE)
        for before in range(block):
            met += np.bincount(self._draws(shares, before), minlength=len(domains))
        met += np.bincount(self._draws(shares, block)[:first], minlength=len(domains))
        held: dict[int, tuple[int, Rows]] = {}  # of each domain, the epoch that is under way
        while True:
            for place in self._draws(shares, block)[first:].tolist():
                domain = domains[place]
                epoch, batch = divmod(int(met[place]), len(domain.rows) // plan.size)
                if held.get(place, (-1,))[0] != epoch:
                    held[place] = epoch, self._shuffled(plan, domain, epoch)
                yield Step(epoch, domain.name, held[place][1][batch])
                met[place] += 1
            block, first = block + 1, 0

    def _draws(self, shares: list[float], block: int) -> Rows:
        return np.random.default_rng([self.seed, block]).choice(len(shares), size=DRAWS_AT_ONCE, p=shares)

    def _shuffled(self, plan: Plan, domain: Domain, epoch: int) -> Rows:
        batches = plan.epoch_of(domain, self.seed, epoch)
        return np.random.default_rng([self.seed, epoch, *domain.name.encode()]).permutation(batches)


def slice_of(rows: Rows, rank: int, world: int) -> Rows:
    """The part of a batch that one of `world` processes takes; all parts together are the batch.

    >>> [slice_of(np.arange(6), rank, world=3).tolist() for rank in range(3)]
    [[0, 1], [2, 3], [4, 5]]
    """
    if not 0 <= rank < world:
        raise InputError(f"rank {rank} of {world} processes was asked for: expected 0 to {world - 1}")
    if len(rows) % world:
        raise InputError(
            f"a batch of {len(rows)} pairs cannot be shared equally by {world} processes: choose a multiple of {world}"
        )
    each = len(rows) // world
    return rows[rank * each : (rank + 1) * each]


def _whole(plan: Plan) -> list[Domain]:
    return [domain for domain in plan.domains if len(domain.rows) >= plan.size]


def _check(plan: Plan, start: int) -> None:
    if start < 0:
        raise InputError(f"step {start} was asked for: expected 0 or more")
    if not len(plan):
        most = max((len(domain.rows) for domain in plan.domains), default=0)
        raise InputError(
            f"there is no batch of {plan.size} pairs: the largest domain has {most}; ask for smaller batches"
        )
