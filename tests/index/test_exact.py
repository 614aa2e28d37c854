"""Exact search: what is its own, beside the laws of all engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import safe_open
from safetensors.numpy import save

from vicinal.errors import DamagedIndex, InputError
from vicinal.index import exact
from vicinal.index.base import NO_ROW
from vicinal.index.build import storable
from vicinal.index.exact import Exact
from vicinal.vectors import final

NUMBERS = st.floats(-100, 100, width=16)


def reference(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Cosines in 64 bit; a vector without length has cosine 0 with everything."""
    q, r = queries.astype(np.float64), rows.astype(np.float64)
    lengths = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(r, axis=1)
    return q @ r.T / np.where(lengths > 0, lengths, 1)


@settings(deadline=None, max_examples=60)
@given(
    arrays.arrays(np.float16, st.tuples(st.integers(1, 40), st.just(5)), elements=NUMBERS),
    arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.just(5)), elements=NUMBERS),
    st.integers(1, 50),
)
def test_it_is_the_truth(rows: np.ndarray, queries: np.ndarray, k: int) -> None:
    engine, truth = Exact([torch.from_numpy(rows)]), reference(queries, rows)
    np.testing.assert_allclose(engine.scores(queries), truth, atol=5e-7)
    ranking = engine.top(queries, k)
    for found, scores, line in zip(ranking.rows, ranking.scores, truth, strict=True):
        np.testing.assert_allclose(scores, np.sort(line)[::-1][:k], atol=5e-7)
        assert len(set(found.tolist())) == min(k, len(rows))


@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_how_many_rows_are_derived_at_a_time_does_not_show(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    numbers = np.random.default_rng(0)
    rows, queries = (
        torch.from_numpy(numbers.normal(size=(50, 8))).half(),
        numbers.normal(size=(70, 8)).astype(np.float32),
    )
    dead = np.array([3, 48, 49, 6, 7])
    whole = Exact([rows], dead=dead)
    scores, ranking = whole.scores(queries), whole.top(queries, 9)
    monkeypatch.setattr(exact, "CHUNK_ROWS", chunk)
    monkeypatch.setattr(exact, "SCORES_AT_ONCE", chunk * 16)  # and queries 16 at a time
    parts = Exact([rows[:11], rows[11:]], dead=dead)
    assert parts.scores(queries).tobytes() == scores.tobytes()
    again = parts.top(queries, 9)
    assert again.rows.tolist() == ranking.rows.tolist() and again.scores.tobytes() == ranking.scores.tobytes()


def test_the_scores_of_chosen_rows_are_those_among_all() -> None:
    numbers = np.random.default_rng(0)
    rows, queries = (
        torch.from_numpy(numbers.normal(size=(50, 8))).half(),
        numbers.normal(size=(4, 8)).astype(np.float32),
    )
    engine = Exact([rows[:20], rows[20:]], dim=6, dead=np.array([7]))
    chosen = np.concatenate([numbers.integers(0, 50, (4, 9)), np.full((4, 1), NO_ROW), np.full((4, 1), 7)], axis=1)
    found = engine.scores_at(queries, chosen)
    expected = np.take_along_axis(engine.scores(queries), np.maximum(chosen, 0), axis=1)
    assert (found[:, :9] == expected[:, :9]).all() and (found[:, 9:] == -np.inf).all()
    with pytest.raises(IndexError):
        engine.scores_at(queries, np.full((4, 1), 50))


def test_fewer_dimensions_are_truncated_before_they_are_normalised() -> None:
    rows = torch.tensor([[3.0, 4.0, 100.0], [1.0, 0.0, 0.0]])
    assert Exact([rows], dim=2).scores(np.array([[1, 0, 50]], dtype=np.float32)).round(6).tolist() == [
        [np.float32(0.6), 1.0]
    ]


def test_how_long_a_vector_is_does_not_matter() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32))
    query = np.random.default_rng(1).normal(size=(1, 8)).astype(np.float32)
    once = Exact([rows]).scores(query)
    for factor in (2.0**-40, 2.0**30):
        assert (Exact([rows * factor]).scores(query * np.float32(factor)) == once).all()


def test_a_query_of_another_width_is_refused_with_both_widths_named() -> None:
    engine = Exact([torch.ones(2, 4)])
    with pytest.raises(InputError, match="hold 4-dim vectors, the query has 3: was it encoded by another model"):
        engine.top(np.ones((1, 3), dtype=np.float32), 1)
    for dim in (0, -1, 5):
        with pytest.raises(InputError, match=f"--dim {dim} "):
            Exact([torch.ones(2, 4)], dim=dim)


def test_rows_that_are_no_numbers_any_more_are_damage() -> None:
    for bad in (float("nan"), float("inf")):
        engine = Exact([torch.tensor([[1.0, 0.0], [bad, 0.0]])])
        with pytest.raises(DamagedIndex, match="verify"):
            engine.top(np.ones((1, 2), dtype=np.float32), 1)


def test_without_rows_there_are_no_hits() -> None:
    engine = Exact([])
    assert len(engine) == 0 and engine.scores(np.ones((2, 3), dtype=np.float32)).shape == (2, 0)
    assert engine.top(np.ones((2, 3), dtype=np.float32), 5).rows.shape == (2, 0)


def test_mapped_rows_stay_on_the_disk_and_give_the_same(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float16)
    (tmp_path / "rows.safetensors").write_bytes(save({"dense": rows}))
    with safe_open(tmp_path / "rows.safetensors", framework="pt") as opened:
        mapped = opened.get_tensor("dense")
    query = np.ones((1, 16), dtype=np.float32)
    assert (Exact([mapped]).scores(query) == Exact([torch.from_numpy(rows)]).scores(query)).all()


@settings(deadline=None, max_examples=60)
@given(
    arrays.arrays(np.float64, (3, 6), elements=st.floats(-1, 1)),
    st.sampled_from([2.0**e for e in (-1000, -149, -130, -40, -7, 0, 14, 15, 100, 127, 900)]),
    st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_storing_in_16_bit_keeps_directions_of_any_length(unit: np.ndarray, factor: float, kind: type) -> None:
    with np.errstate(over="ignore", under="ignore"):
        raw = (unit * factor).astype(kind)
    if not np.isfinite(raw).all():
        return
    stored = torch.from_numpy(storable(raw))
    assert torch.isfinite(stored).all()
    for row, kept in zip(raw.astype(np.float64), final(stored).double().numpy(), strict=True):
        largest = np.abs(row).max()
        if largest > 0 and np.abs(row / largest).min() >= 0:
            exact_direction = row / largest / np.linalg.norm(row / largest)
            assert kept @ exact_direction > 1 - 1e-6
        else:
            assert not kept.any()


def test_what_is_no_number_is_not_stored() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(InputError, match="NaN or infinity"):
            storable(np.array([[1, 2], [bad, 0]], dtype=np.float32))


def test_bending_the_query_is_bending_the_rows() -> None:
    numbers = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 8, generator=numbers)
    rows[7], rows[11] = 0, torch.tensor([1.0, *[0] * 7])  # nothing, and what the correction takes away
    rows[40:50] = rows[3]
    correction = torch.randn(6, 6, generator=numbers)
    correction[0] = 0
    queries = torch.randn(5, 8, generator=numbers)
    bent = final(rows, 6, correction).double()
    expected = final(queries, 6, correction).double() @ bent.T
    engine = Exact([rows[:20], rows[20:]], dim=6, correction=correction)
    chosen = np.tile(np.arange(60), (5, 1))
    first, again = engine.scores(queries.numpy()), engine.scores(queries.numpy())
    np.testing.assert_allclose(first, expected, atol=5e-7)
    assert first.tobytes() == again.tobytes() == engine.scores_at(queries.numpy(), chosen).tobytes()
    assert all(len(set(line[[3, *range(40, 50)]].tolist())) == 1 for line in first)
    assert (first[:, 7] == 0).all()
    np.testing.assert_array_equal(engine.top(queries.numpy(), 60).scores, -np.sort(-first, axis=1))
