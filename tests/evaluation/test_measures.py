"""Measures: numbers worked by hand, and equality with formulas written out again, slowly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.errors import InputError
from vicinal.evaluation.measures import MAP, MAX_GRADE, MRR, Measure, P, Recall, nDCG, score

GRADES = {"a": 3, "b": 2, "c": 1, "d": 0, "e": -1}
RANKING = ["b", "x", "a", "d", "c"]

BY_HAND = {
    # grades in order of the ranking: 2 0 3 0 1; in the best order: 3 2 1
    nDCG: (2 / log2(2) + 3 / log2(4) + 1 / log2(6)) / (3 / log2(2) + 2 / log2(3) + 1 / log2(4)),
    nDCG @ 3: (2 / log2(2) + 3 / log2(4)) / (3 / log2(2) + 2 / log2(3) + 1 / log2(4)),
    nDCG @ 1: 2 / 3,
    MRR: 1,
    MRR @ 10: 1,
    Recall @ 1: 1 / 3,
    Recall @ 3: 2 / 3,
    Recall @ 100: 1,
    MAP: (1 / 1 + 2 / 3 + 3 / 5) / 3,
    MAP @ 3: (1 / 1 + 2 / 3) / 3,
    P @ 1: 1,
    P @ 5: 3 / 5,
    P @ 10: 3 / 10,
}


@pytest.mark.parametrize("measure", BY_HAND, ids=str)
def test_a_measure_is_what_was_worked_out_by_hand(measure: Measure) -> None:
    assert value(measure, GRADES, RANKING) == pytest.approx(BY_HAND[measure], abs=1e-12)


def test_the_reciprocal_rank_is_zero_beyond_the_cutoff() -> None:
    ranking = ["x", "d", "e", "c"]
    assert value(MRR, GRADES, ranking) == value(MRR @ 4, GRADES, ranking) == 1 / 4
    assert value(MRR @ 3, GRADES, ranking) == 0


def test_gains_are_linear_in_the_grade() -> None:
    # With gains 2^grade - 1 it would be (1 + 7 / log2(3)) / (7 + 1 / log2(3)) = 0.710.
    assert value(nDCG @ 10, {"a": 3, "b": 1}, ["b", "a"]) == pytest.approx((1 + 3 / log2(3)) / (3 + 1 / log2(3)))


def test_a_query_without_hits_scores_zero_and_is_there() -> None:
    judgments = {"found": {"a": 1}, "nothing": {"a": 1}, "absent": {"a": 1}, "unfindable": {"a": 0}, "empty": {}}
    run = {"found": ["a"], "nothing": [], "unfindable": ["a"], "empty": ["a"]}
    for values in score(judgments, run, [nDCG @ 10, MRR, Recall @ 10, MAP, P @ 1]).values():
        assert values == {"found": 1.0, "nothing": 0.0, "absent": 0.0, "unfindable": 0.0, "empty": 0.0}
        assert list(values) == list(judgments)


def test_queries_that_are_not_judged_are_ignored() -> None:
    assert score({"q": {"a": 1}}, {"q": ["a"], "other": ["b"]}, [MAP]) == {"MAP": {"q": 1.0}}
    assert score({}, {"other": ["b"]}, [MAP]) == {"MAP": {}}


def test_a_document_that_stands_twice_counts_where_it_stands_first() -> None:
    assert value(MAP, {"a": 1, "b": 1}, ["a", "x", "a", "b"]) == pytest.approx((1 / 1 + 2 / 3) / 2)


def test_a_relevant_document_that_is_not_there_to_be_found_counts_as_missed() -> None:
    assert value(Recall @ 10, {"a": 1, "gone": 1}, ["a"]) == 1 / 2
    assert value(nDCG @ 10, {"a": 1, "gone": 2}, ["a"]) == pytest.approx(1 / (2 + 1 / log2(3)))


@pytest.mark.parametrize("hits", [2, 1000, 20_000])
def test_our_order_is_measured_to_the_last_hit_whatever_the_ids_are(hits: int) -> None:
    for ids in (range(hits), range(hits, 0, -1)):
        ranking = [f"{id:06d}" for id in ids]
        assert value(MRR, {ranking[-1]: 1}, ranking) == 1 / hits
        assert value(MRR, {ranking[-2]: 1}, ranking) == 1 / (hits - 1)


@pytest.mark.parametrize("id", ["", "a b", "a\0b", "\ud800", "\tq", "東京", "1"])
def test_an_id_may_be_any_text(id: str) -> None:
    run = {id: [f"{id}!", id]}
    assert score({id: {id: 1}}, run, [MAP, MRR @ 10]) == {"MAP": {id: 0.5}, "MRR@10": {id: 0.5}}


def test_a_grade_that_would_fill_the_memory_is_refused() -> None:
    assert value(nDCG @ 10, {"a": MAX_GRADE}, ["a"]) == 1
    with pytest.raises(
        InputError, match=r"document 'a' has the grade 1000001 for query 'q': expected at most 1,000,000"
    ):
        value(nDCG @ 10, {"a": MAX_GRADE + 1}, ["a"])


@pytest.mark.parametrize("measure", [Recall, P], ids=str)
def test_a_measure_that_needs_a_cutoff_says_so(measure: Measure) -> None:
    with pytest.raises(InputError, match=f"write {measure}@10"):
        value(measure, GRADES, RANKING)


@pytest.mark.parametrize("cutoff", [0, -1])
def test_a_cutoff_is_one_or_more(cutoff: int) -> None:
    with pytest.raises(InputError, match="expected a cutoff of 1 or more"):
        value(nDCG @ cutoff, GRADES, RANKING)


@given(st.sampled_from([nDCG, MRR, Recall, MAP, P]), st.none() | st.integers(1, 10**8))
def test_a_measure_is_read_as_it_is_written(measure: Measure, cutoff: int | None) -> None:
    measure = measure if cutoff is None else measure @ cutoff
    assert Measure.parse(str(measure)) == Measure.parse(f" {str(measure).upper()} ") == measure


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nDGC@10", "did you mean nDCG"),
        ("recal", "did you mean Recall"),
        (
            "accuracy",
            r"there is no measure 'accuracy': expected nDCG, MRR, Recall, MAP, P, with a cutoff as in nDCG@10",
        ),
        ("", "there is no measure ''"),
        ("P@0", "with a cutoff as in"),
        ("P@-1", "with a cutoff as in"),
        ("P@1.5", "with a cutoff as in"),
        ("P@", "with a cutoff as in"),
        ("@10", "with a cutoff as in"),
        ("P@١", "with a cutoff as in"),
    ],
)
def test_what_is_no_measure_is_refused_with_the_nearest(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Measure.parse(text)


documents = st.text("abcdefghij", min_size=1, max_size=1)


@settings(deadline=None)
@given(
    st.dictionaries(documents, st.integers(-2, 4)),
    st.lists(documents, unique=True),
    st.sampled_from([nDCG, MRR, Recall, MAP, P]),
    st.integers(1, 12),
)
def test_every_measure_equals_its_formula(
    grades: dict[str, int], ranking: list[str], measure: Measure, cutoff: int
) -> None:
    assert value(measure @ cutoff, grades, ranking) == pytest.approx(slowly(measure.name, cutoff, grades, ranking))


def slowly(name: str, k: int, grades: Mapping[str, int], ranking: Sequence[str]) -> float:
    """The five formulas once more, place by place, with nothing in common with the library's way."""
    relevant = [id for id in grades if grades[id] >= 1]
    if not relevant:
        return 0.0
    found = [1 if id in relevant else 0 for id in ranking]
    if name == "nDCG":
        gains = [max(grades.get(id, 0), 0) for id in ranking]
        ideal = sorted((grades[id] for id in relevant), reverse=True)
        dcg, best = (sum(g / log2(i + 2) for i, g in enumerate(some[:k])) for some in (gains, ideal))
        return dcg / best
    if name == "MRR":
        return max((hit / (i + 1) for i, hit in enumerate(found[:k])), default=0.0)
    if name == "MAP":
        return sum(hit * sum(found[: i + 1]) / (i + 1) for i, hit in enumerate(found[:k])) / len(relevant)
    return sum(found[:k]) / {"Recall": len(relevant), "P": k}[name]


def value(measure: Measure, grades: Mapping[str, int], ranking: Sequence[str]) -> float:
    return score({"q": grades}, {"q": ranking}, [measure])[str(measure)]["q"]
