"""Whether a difference between two results is more than chance: results of `evaluate` in, a row per pair out.

The one idea: were two systems equally good, then of a query's two values either might have been either system's. So the
signs of the differences per query are flipped at random, and p is how often the mean difference is then at least as far
from zero as the one that was found (Fisher's randomisation test; Smucker et al., "A comparison of statistical
significance tests for information retrieval evaluation", CIKM 2007). Up to `EXACT_QUERIES` differing queries every flip
is tried; beyond, `DRAWS` random ones, and the one that was found counts among them: p = (1 + as far) / (1 + DRAWS).

>>> ours = {"per_query": {"MAP": {"q1": 0.9, "q2": 0.6, "q3": 0.5}}, "settings": {"collection": "c", "split": "test"}}
>>> base = {"per_query": {"MAP": {"q1": 0.5, "q2": 0.3, "q3": 0.3}}, "settings": {"collection": "c", "split": "test"}}
>>> pair, = compare({"ours": ours, "base": base}, "MAP")["pairs"]
>>> pair["a"], pair["b"], round(pair["difference"], 3), pair["p"], pair["queries"]
('ours', 'base', 0.3, 0.25, 3)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .measures import Measure

EXACT_QUERIES = 16  # 65,536 ways to flip
DRAWS = 10_000  # the error of p = 0.05 is then 0.002
NUMBERS_AT_ONCE = 1 << 22  # of draws x queries held in memory, 8 bytes each
SAME = ("collection", "split")  # settings that two results must have in common

Vector = npt.NDArray[np.float64]


def compare(
    results: Mapping[str, Any], measure: str = "nDCG@10", *, draws: int = DRAWS, seed: int = 0
) -> dict[str, Any]:
    """Compare results pairwise over the queries that both have, by the first mode of each.

    One result alone has its modes compared with each other. Of every pair: `difference` is the mean of a minus the mean
    of b, `low` and `high` bound its 95 % interval (percentiles of a paired bootstrap), `p` is two-sided, `p_holm` is
    adjusted for the number of pairs (Holm's step-down), `unpaired` counts the queries that only one of them has.
    """
    measure = str(Measure.parse(measure))
    values = {name: _values(name, result, measure) for name, result in _entries(results).items()}
    pairs: list[dict[str, Any]] = []
    for a, b in combinations(values, 2):
        shared = [query for query in values[a] if query in values[b]]
        if not shared:
            raise InputError(f"{a} and {b} have no query in common: expected results on the same collection and split")
        differences = np.array([values[a][query] - values[b][query] for query in shared])
        low, high = interval(differences, draws=draws, seed=seed)
        pairs.append(
            {
                "a": a,
                "b": b,
                "difference": float(differences.mean()),
                "low": low,
                "high": high,
                "p": p_value(differences, draws=draws, seed=seed),
                "queries": len(shared),
                "unpaired": len(values[a].keys() ^ values[b].keys()),
            }
        )
    for pair, p_holm in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = p_holm
    return {"measure": measure, "pairs": pairs}


def p_value(differences: Vector, *, draws: int = DRAWS, seed: int = 0) -> float:
    """The two-sided p of a paired randomisation test.

    >>> p_value(np.array([1.0, 1.0, 1.0]))  # of eight ways to flip, +++ and --- are as far from zero
    0.25
    """
    d = differences[differences != 0]  # flipping a zero changes nothing
    # Sums that are equal on paper come out in another last digit when their terms change signs.
    found = abs(d.sum()) - 1e-9 * np.abs(d).sum()
    if len(d) <= EXACT_QUERIES:
        bits = np.arange(2 ** len(d))[:, None] >> np.arange(len(d)) & 1
        return float((np.abs((1.0 - 2.0 * bits) @ d) >= found).mean())

    def as_far(random: np.random.Generator, rows: int) -> Vector:
        signs = random.integers(0, 2, (rows, len(d)), dtype=np.int8) * 2.0 - 1.0
        return np.abs(signs @ d) >= found  # type: ignore[no-any-return]

    return (1 + int(_drawn(as_far, len(d), draws, seed).sum())) / (1 + draws)


def interval(differences: Vector, *, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean difference: queries drawn with replacement, percentiles of their means.

    >>> interval(np.array([0.5, 0.5, 0.5]))
    (0.5, 0.5)
    """

    def means(random: np.random.Generator, rows: int) -> Vector:
        picked = random.integers(0, len(differences), (rows, len(differences)))
        return differences[picked].mean(axis=1)  # type: ignore[no-any-return]

    low, high = np.percentile(_drawn(means, len(differences), draws, seed), [2.5, 97.5])
    return float(low), float(high)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values for their number: the smallest times n, the next times n - 1, and so on, never falling.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, ps[place] * (len(ps) - rank)))
        adjusted[place] = highest
    return adjusted


def _drawn(draw: Callable[[np.random.Generator, int], Vector], width: int, draws: int, seed: int) -> Vector:
    """`draws` numbers, as many at a time as keep draws x width within bounds."""
    random = np.random.default_rng(seed)
    rows = max(1, NUMBERS_AT_ONCE // width)
    return np.concatenate([draw(random, min(rows, draws - start)) for start in range(0, draws, rows)])


def _entries(results: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared with what, by name."""
    settings = {name: _part(name, result, "settings") for name, result in results.items()}
    if len(results) > 1:
        first = next(iter(results))
        for name, setting in product(results, SAME):
            one, other = settings[first].get(setting), settings[name].get(setting)
            if one != other:
                raise InputError(
                    f"{first} is on the {setting} {one!r}, {name} on {other!r}: expected results on the same queries"
                )
        return dict(results)
    for name, result in results.items():
        modes = _part(name, result, "modes")
        if len(modes) > 1:
            return {f"{name}:{mode}": entry for mode, entry in modes.items()}
    raise InputError(f"two results are compared, or the modes of one: {len(results)} was given, with one mode at most")


def _values(name: str, entry: Any, measure: str) -> Mapping[str, float]:
    """Each query's value of a measure in a result, or in one mode of it."""
    measures = _part(name, entry, "per_query")
    if measure not in measures:
        raise InputError(f"{name} has no {measure}: it has {', '.join(measures) or 'no measure at all'}")
    values = _part(name, measures, measure)
    for query, value in values.items():
        if not (isinstance(value, int | float) and 0 <= value <= 1):
            raise InputError(f"{name} gives query {query!r} the {measure} {value!r}: expected a number from 0 to 1")
    return values


def _part(name: str, entry: Any, key: str) -> Mapping[str, Any]:
    part = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(part, Mapping):
        raise InputError(f"{name} has no {key!r}: expected a result that `vicinal evaluate --json FILE` wrote")
    return part
