"""Significance: p values worked by hand and by trying every flip, and what results may be compared."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.errors import InputError
from vicinal.evaluation import significance
from vicinal.evaluation.significance import compare, holm, interval, p_value


def result(
    values: dict[str, Any], measure: str = "nDCG@10", collection: str = "c", split: str = "test"
) -> dict[str, Any]:
    return {"per_query": {measure: values}, "settings": {"collection": collection, "split": split}}


# Differences in tenths; how many of the 2^n ways to flip are at least as far from zero.
BY_HAND = [
    ([], 1 / 1),
    ([0, 0], 1 / 1),
    ([5], 2 / 2),
    ([1, 1, 1], 2 / 8),
    ([3, 2, -1], 4 / 8),  # 4: +++ 6, ++- 4, and their mirror images
    ([1, 2, 3, 4, 5], 2 / 32),
    ([1, 2, 3, -4, 5], 2 * 7 / 32),  # 7 of 15, so what is negative sums to 4 at most: none, 1, 2, 3, 4, 1 2, 1 3
]


@pytest.mark.parametrize(("tenths", "p"), BY_HAND)
def test_p_is_what_was_counted_by_hand(tenths: list[int], p: float) -> None:
    assert p_value(np.array(tenths) / 10) == p


@given(st.lists(st.integers(-9, 9), max_size=8))
def test_p_is_the_share_of_all_flips_that_are_as_far_from_zero(tenths: list[int]) -> None:
    flips = [
        sum(sign * d for sign, d in zip(signs, tenths, strict=True)) for signs in product([1, -1], repeat=len(tenths))
    ]
    as_far = sum(abs(flip) >= abs(sum(tenths)) for flip in flips)
    assert p_value(np.array(tenths) / 10) == as_far / len(flips)


def test_drawn_flips_agree_with_all_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = np.random.default_rng(3).normal(0.1, 0.3, 16)
    exact = p_value(differences)
    monkeypatch.setattr(significance, "EXACT_QUERIES", 0)
    assert 0.05 < exact < 0.95
    assert p_value(differences, draws=40_000) == pytest.approx(exact, abs=0.01)


def test_what_was_found_counts_among_the_drawn_flips_so_p_is_never_zero() -> None:
    assert p_value(np.full(100, 0.5), draws=999) == 1 / 1000


def test_the_same_seed_gives_the_same_p_and_another_seed_another() -> None:
    differences = np.random.default_rng(0).normal(0.03, 0.3, 200)
    assert p_value(differences, seed=1) == p_value(differences, seed=1) != p_value(differences, seed=2)


def test_equal_systems_are_told_apart_as_often_as_p_says() -> None:
    random = np.random.default_rng(0)
    ps = [p_value(random.normal(0, 1, 40), draws=199) for _ in range(400)]
    assert [np.mean([p <= level for p in ps]) for level in (0.05, 0.5)] == pytest.approx([0.05, 0.5], abs=0.04)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_a_and_b_swapped_change_signs_and_nothing_else(differences: list[float]) -> None:
    d = np.array(differences)
    assert p_value(d, draws=200) == p_value(-d, draws=200)
    low, high = interval(d, draws=200)
    assert interval(-d, draws=200) == pytest.approx((-high, -low))
    assert d.min() - 1e-9 <= low <= high <= d.max() + 1e-9


def test_the_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    intervals = [interval(random.normal(0.2, 1, 100), draws=400) for _ in range(300)]
    assert np.mean([low <= 0.2 <= high for low, high in intervals]) == pytest.approx(0.95, abs=0.03)


def test_drawing_keeps_memory_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "NUMBERS_AT_ONCE", 1000)
    asked: list[int] = []

    def draw(random: np.random.Generator, rows: int) -> np.ndarray:
        asked.append(rows)
        return random.normal(size=rows)

    assert len(significance._drawn(draw, 300, 100, seed=0)) == 100
    assert sum(asked) == 100
    assert max(asked) == 3


def test_holm_multiplies_the_smallest_most_and_never_falls() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


def test_results_are_paired_by_query_and_the_difference_is_a_minus_b() -> None:
    a = result({"q1": 0.5, "q2": 1.0, "only a": 0.0, "q3": 0.6})
    b = result({"q3": 0.1, "only b": 1.0, "q2": 0.6, "q1": 0.2, "only b too": 1.0})
    (pair,) = compare({"a.json": a, "b.json": b})["pairs"]
    assert {name: pair[name] for name in ("a", "b", "queries", "unpaired")} == {
        "a": "a.json",
        "b": "b.json",
        "queries": 3,
        "unpaired": 3,
    }
    assert pair["difference"] == pytest.approx((0.3 + 0.4 + 0.5) / 3)
    assert pair["p"] == pair["p_holm"] == 2 / 8
    assert 0.3 <= pair["low"] <= pair["difference"] <= pair["high"] <= 0.5


def test_every_pair_is_compared_and_holm_takes_their_number_into_account() -> None:
    compared = compare(
        {name: result({f"q{i}": value for i in range(9)}) for name, value in [("x", 0.1), ("y", 0.2), ("z", 0.2)]}
    )
    assert compared["measure"] == "nDCG@10"
    assert [(pair["a"], pair["b"]) for pair in compared["pairs"]] == [("x", "y"), ("x", "z"), ("y", "z")]
    assert [pair["p"] for pair in compared["pairs"]] == [2 / 512, 2 / 512, 1.0]
    assert [pair["p_holm"] for pair in compared["pairs"]] == [6 / 512, 6 / 512, 1.0]
    assert json.loads(json.dumps(compared, allow_nan=False)) == compared


def test_the_modes_of_one_result_are_compared_with_each_other() -> None:
    one = result({"q": 0.5})
    one["modes"] = {"dense": result({"q": 0.5}), "bm25": result({"q": 0.25})}
    (pair,) = compare({"r.json": one})["pairs"]
    assert (pair["a"], pair["b"], pair["difference"]) == ("r.json:dense", "r.json:bm25", 0.25)


def test_several_results_are_compared_by_their_first_modes() -> None:
    one, two = result({"q": 0.5}), result({"q": 0.75})
    one["modes"] = {"dense": result({"q": 0.5}), "bm25": result({"q": 0.25})}
    assert [pair["difference"] for pair in compare({"one": one, "two": two})["pairs"]] == [-0.25]


GOOD = result({"q": 0.5})
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another collection": (
        {"a": GOOD, "b": result({"q": 1}, collection="other")},
        "a is on the collection 'c', b on 'other'",
    ),
    "another split": ({"a": GOOD, "b": result({"q": 1}, split="dev")}, "a is on the split 'test', b on 'dev'"),
    "no query in common": ({"a": GOOD, "b": result({"r": 1})}, "a and b have no query in common"),
    "no queries": ({"a": GOOD, "b": result({})}, "a and b have no query in common"),
    "another measure": ({"a": GOOD, "b": result({"q": 1}, measure="MAP")}, r"b has no nDCG@10: it has MAP"),
    "no measure": ({"a": {**GOOD, "per_query": {}}, "b": GOOD}, "a has no nDCG@10: it has no measure at all"),
    "nothing": ({}, "0 was given"),
    "one with one mode": ({"a": {**GOOD, "modes": {"dense": GOOD}}}, "1 was given"),
    "one without modes": ({"a": GOOD}, "a has no 'modes'"),
    "no result": ({"a": GOOD, "b": [1, 2]}, "b has no 'settings': expected a result that `vicinal evaluate"),
    "no object": ({"a": None, "b": GOOD}, "a has no 'settings'"),
    "no per_query": ({"a": GOOD, "b": {"settings": GOOD["settings"]}}, "b has no 'per_query'"),
    "a mean in place of values": ({"a": GOOD, "b": {**GOOD, "per_query": {"nDCG@10": 0.5}}}, "b has no 'nDCG@10'"),
    "text in place of a number": ({"a": GOOD, "b": result({"q": "0.5"})}, r"b gives query 'q' the nDCG@10 '0.5'"),
    "no number": ({"a": GOOD, "b": result({"q": float("nan")})}, "expected a number from 0 to 1"),
    "per cent": ({"a": GOOD, "b": result({"q": 57.1})}, "expected a number from 0 to 1"),
    "beyond floats": ({"a": GOOD, "b": result({"q": 10**400})}, "expected a number from 0 to 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused(case: str) -> None:
    results, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        compare(results)


def test_a_measure_may_be_written_in_small_letters_and_an_unknown_one_is_refused() -> None:
    assert compare({"a": GOOD, "b": GOOD}, "ndcg@10")["measure"] == "nDCG@10"
    with pytest.raises(InputError, match="did you mean nDCG"):
        compare({"a": GOOD, "b": GOOD}, "nDGC@10")
