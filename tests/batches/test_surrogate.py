"""Surrogate vectors: what they tell apart, and what becomes of those that are kept on disk."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vicinal
from vicinal import files
from vicinal.batches.surrogate import Model, Sparse, Surrogate, Vectors, Words, columns, surrogate_of, truncated_svd
from vicinal.errors import InputError

WORDS = Words(dim=8)


def nearest_topics(toy: Any, vectors: Vectors) -> float:
    """How often the document nearest to a query, its own aside, is of the query's topic."""
    rows = toy.domains["cooking"]
    of = vectors.of_domain["cooking"].astype(np.float32)
    scores = of[:, 1] @ of[:, 0].T
    np.fill_diagonal(scores, -np.inf)
    return float(np.mean([toy.topic(rows[i]) == toy.topic(rows[j]) for i, j in enumerate(scores.argmax(axis=1))]))


def sparse(dense: np.ndarray) -> Sparse:  # type: ignore[type-arg]
    rows, columns = np.nonzero(dense)
    starts = np.searchsorted(rows, np.arange(len(dense) + 1))
    return Sparse(starts, columns, dense[rows, columns].astype(np.float32), dense.shape[1])


@pytest.mark.parametrize("weights", ["tfidf", "bm25"])
def test_a_query_is_nearest_to_documents_of_its_own_topic(toy: Any, tmp_path: Path, weights: str) -> None:
    vectors = Vectors.of(toy, Words(dim=8, weights=weights), tmp_path)
    assert nearest_topics(toy, vectors) > 0.95
    assert {name: of.shape for name, of in vectors.of_domain.items()} == {"cooking": (103, 2, 8), "law": (57, 2, 8)}
    lengths = np.linalg.norm(vectors.of_domain["law"].astype(np.float32), axis=2)
    assert np.abs(lengths - 1).max() < 2e-3


def test_a_sparse_matrix_multiplies_as_the_dense_one_does() -> None:
    chance = np.random.default_rng(0)
    dense = chance.standard_normal((7, 5)).astype(np.float32) * (chance.random((7, 5)) < 0.4)
    dense[3] = 0
    dense[:, 2] = 0
    matrix, other = sparse(dense), torch.from_numpy(chance.standard_normal((5, 3)).astype(np.float32))
    assert torch.allclose(matrix.times(other), torch.from_numpy(dense) @ other, atol=1e-6)
    left = torch.from_numpy(chance.standard_normal((7, 3)).astype(np.float32))
    assert torch.allclose(matrix.transposed.times(left), torch.from_numpy(dense).T @ left, atol=1e-6)


def test_the_decomposition_finds_the_directions_that_the_exact_one_finds() -> None:
    chance = np.random.default_rng(0)
    signal = chance.standard_normal((60, 4)) * [8, 6, 4, 3] @ chance.standard_normal((4, 40))
    dense = (signal + 0.01 * chance.standard_normal((60, 40))).astype(np.float32)
    found = truncated_svd(sparse(dense), 4).numpy()
    exact = np.linalg.svd(dense)[2][:4].T
    assert np.abs(found.T @ found - np.eye(4)).max() < 1e-4
    assert np.abs(np.abs(exact.T @ found) - np.eye(4)).max() < 1e-2, "the same ones, in the same order, but for signs"


def test_a_matrix_of_low_rank_fills_up_with_zeros() -> None:
    dense = np.outer(np.arange(1, 5), [1, 0, 2]).astype(np.float32)
    found = truncated_svd(sparse(dense), 6)
    assert found.shape == (3, 6)
    assert found.norm(dim=0).tolist() == pytest.approx([1, 0, 0, 0, 0, 0], abs=1e-5)


def test_texts_without_a_known_word_are_zero_and_nothing_breaks() -> None:
    embed = WORDS.fit_texts(["cats purr", "stars shine"])
    assert embed(["", "unheard", "cats purr"], "query").norm(dim=1).round().tolist() == [0, 0, 1]
    assert WORDS.fit_texts(["", " "])(["", "x"], "query").tolist() == [[0] * 8] * 2
    assert WORDS.fit_texts([])(["x"], "query").shape == (1, 8)


def test_no_more_texts_are_looked_at_than_asked_for(toy: Any) -> None:
    Words(dim=2, most_texts=20).fit(toy, toy.domains["cooking"])
    assert toy.asked == 20


def test_any_function_from_texts_to_vectors_serves_and_is_brought_down_to_size(toy: Any, tmp_path: Path) -> None:
    wide = torch.randn(200, 40, generator=torch.Generator().manual_seed(0))

    def embed(texts: Sequence[str], role: str) -> torch.Tensor:
        return torch.stack([wide[toy.topic(int(text.split()[-1]))] for text in texts])

    vectors = Vectors.of(toy, Model(embed, "a function", dim=4), tmp_path)
    assert nearest_topics(toy, vectors) == 1
    of = torch.from_numpy(vectors.of_domain["cooking"].astype(np.float32))
    full = torch.nn.functional.normalize(wide[:4], dim=1)
    assert torch.allclose(of[:4, 0] @ of[:4, 0].T, full @ full.T, atol=5e-3), "four topics lie in four dimensions"


def test_an_encoder_serves_and_its_context_is_part_of_its_name(toy: Any) -> None:
    tiny = vicinal.load("tiny", precision="fp32")
    plain = surrogate_of("tiny", lambda name: tiny)
    assert plain.fit(toy, toy.domains["law"])(["a", "b"], "query").shape == (2, plain.dim)
    context = tiny.context(vicinal.Corpus.read([{"id": str(n), "text": f"text {n}"} for n in range(9)]))
    assert plain.record["name"] != surrogate_of("tiny", lambda name: tiny.with_context(context)).record["name"]


@pytest.mark.parametrize("broken", [torch.full((2, 4), torch.nan), torch.zeros(1, 4)])
def test_a_model_that_gives_no_numbers_is_refused(toy: Any, tmp_path: Path, broken: torch.Tensor) -> None:
    with pytest.raises(InputError, match="vectors of"):
        Vectors.of(toy, Model(lambda texts, role: broken, "broken", dim=4), tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_was_made_is_read_again_and_any_other_setting_is_another_file(toy: Any, tmp_path: Path) -> None:
    first = Vectors.of(toy, WORDS, tmp_path)
    toy.asked = 0
    again = Vectors.of(toy, WORDS, tmp_path)
    assert toy.asked == 0
    assert all((first.of_domain[name] == again.of_domain[name]).all() for name in toy.domains)
    others: list[Surrogate] = [Words(dim=9), Words(dim=8, weights="bm25"), Words(dim=8, seed=1)]
    for count, other in enumerate(others, start=2):
        Vectors.of(toy, other, tmp_path)
        assert len(list(tmp_path.iterdir())) == 2 * count
    toy.fingerprint = "other pairs"
    Vectors.of(toy, WORDS, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 * (len(others) + 2)


def test_whatever_byte_of_a_kept_file_is_changed_it_is_made_anew_and_said(toy: Any, tmp_path: Path) -> None:
    first = Vectors.of(toy, WORDS, tmp_path).of_domain["law"].copy()
    path = min(tmp_path.iterdir(), key=lambda path: path.stat().st_size)  # the smaller domain's
    whole = path.read_bytes()
    damaged = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(0, len(whole), 397)]
    for content in [*damaged, whole[: len(whole) // 2], whole + b"x", b"", b"junk"]:
        path.write_bytes(content)
        with pytest.warns(UserWarning, match="of domain law .* made anew"):
            vectors = Vectors.of(toy, WORDS, tmp_path)
        assert (vectors.of_domain["law"] == first).all()
        assert path.read_bytes() == whole


def test_a_file_of_other_settings_under_this_name_is_not_taken(toy: Any, tmp_path: Path) -> None:
    Vectors.of(toy, WORDS, tmp_path / "one")
    Vectors.of(toy, Words(dim=8, seed=1), tmp_path / "two")
    for mine, theirs in zip(sorted((tmp_path / "one").iterdir()), sorted((tmp_path / "two").iterdir()), strict=True):
        theirs.replace(mine)
    with pytest.warns(UserWarning, match="another's"):
        Vectors.of(toy, WORDS, tmp_path / "one")


@pytest.mark.parametrize("at", ["flush", "rename"])
def test_killed_before_it_is_published_nothing_is_there(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    class Killed(BaseException):
        pass

    def die(*paths: Path) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(files, at, die)
        patched.setattr(files, "remove", lambda path: None)  # who is killed does not tidy up
        with pytest.raises(Killed):
            Vectors.of(toy, WORDS, tmp_path)
    assert [path.name[-8:] for path in tmp_path.iterdir()] == [".partial"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nearest_topics(toy, Vectors.of(toy, WORDS, tmp_path)) > 0.95


def test_a_domain_of_nothing_has_no_vectors(toys: Any, tmp_path: Path) -> None:
    toy = toys({"none": 0, "one": 1})
    for _ in range(2):
        of = Vectors.of(toy, WORDS, tmp_path).of_domain
        assert {name: rows.shape for name, rows in of.items()} == {"none": (0, 2, 8), "one": (1, 2, 8)}


def test_words_land_in_the_same_columns_in_every_process() -> None:
    code = "from vicinal.batches.surrogate import columns; print([columns('english')(word) for word in ('cat', 'the')])"
    ours = columns("english")
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(vicinal.__file__).parent.parent)},
    )
    assert told.stdout.strip() == str([ours("cat"), ours("the")]) == str([ours("cats"), -1])


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(InputError, match="weighted by 'best'"):
        Words(weights="best")
    with pytest.raises(InputError, match="0 dimensions"):
        Words(dim=0)


def test_where_the_spectrum_falls_slowly_nearly_all_that_can_be_kept_is_kept() -> None:
    dense = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)  # as flat as it gets
    found = truncated_svd(sparse(dense), 5).numpy()
    most = (np.linalg.svd(dense)[1][:5] ** 2).sum()
    assert 0.92 < ((dense @ found) ** 2).sum() / most <= 1.0001


def test_a_documents_vector_comes_first_and_its_querys_second(toy: Any, tmp_path: Path) -> None:
    def embed(texts: Sequence[str], role: str) -> torch.Tensor:
        return torch.tensor([[1.0, 0.0] if role == "document" else [0.0, 1.0]] * len(texts))

    of = Vectors.of(toy, Model(embed, "roles", dim=2), tmp_path).of_domain["law"]
    assert (of == np.eye(2)).all()
