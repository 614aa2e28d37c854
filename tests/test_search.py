"""Search: scorers add up, stages compose, and an index gives what it holds and refuses what it cannot compare."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vicinal
from vicinal import Corpus, Document, Encoder, Index, files
from vicinal.documents import DocumentStore
from vicinal.encoder import shipped
from vicinal.errors import DamagedIndex, IndexRefused, InputError
from vicinal.index.base import NO_ROW, Floats, Ranking
from vicinal.index.lexical import BM25
from vicinal.index.segments import verify
from vicinal.search import MODES, Lexical, Scorer, Stage, as_json, rank, scorer_of, standardised

ROWS = 12


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is flushed when is tested in test_crash.py; that the system does it would take most of the time here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Table(Scorer):
    """A scorer whose scores are given."""

    def __init__(self, scores: Sequence[float]) -> None:
        self.table = np.array(scores, dtype=np.float32)

    def scores(self, queries: Sequence[str]) -> Floats:
        return np.tile(self.table, (len(queries), 1))


SCORES = st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.25, 0.5, 1.0]), min_size=ROWS, max_size=ROWS)
TABLES = SCORES.map(Table)
STAGES = st.tuples(TABLES, st.integers(1, ROWS + 3)).map(lambda given: given[0].top(given[1]))


def shown(ranking: Ranking) -> list[list[tuple[int, float]]]:
    return [
        [(int(row), float(score)) for row, score in zip(rows, scores, strict=True) if row != NO_ROW]
        for rows, scores in zip(ranking.rows, ranking.scores, strict=True)
    ]


# --- Stages.


@settings(deadline=None)
@given(STAGES, STAGES, STAGES)
def test_stages_are_associative(a: Stage, b: Stage, c: Stage) -> None:
    assert shown(((a >> b) >> c)(["q", "r"])) == shown((a >> (b >> c))(["q", "r"]))


@settings(deadline=None)
@given(TABLES, TABLES, st.integers(1, ROWS + 3), st.integers(1, ROWS + 3))
def test_the_second_stage_chooses_among_what_the_first_found(a: Table, b: Table, many: int, few: int) -> None:
    (found,) = shown(a.top(many)(["q"]))
    (chosen,) = shown((a.top(many) >> b.top(few))(["q"]))
    candidates = sorted((row for row, _ in found), key=lambda row: (-b.table[row], row))
    expected = [row for row in candidates if b.table[row] > -np.inf][:few]
    assert chosen == [(row, float(b.table[row])) for row in expected]


@settings(deadline=None)
@given(STAGES)
def test_keeping_everything_by_the_same_score_changes_nothing(stage: Stage) -> None:
    table = Table(range(ROWS))
    assert shown((table.top(ROWS) >> table.top(3))(["q"])) == shown(table.top(3)(["q"]))


def test_a_stage_keeps_one_hit_or_more() -> None:
    for k in (0, -1):
        with pytest.raises(InputError, match=f"-k {k} was asked for"):
            Table([1.0]).top(k)


# --- Scorers.


@settings(deadline=None)
@given(TABLES, TABLES, st.sampled_from([-2.0, 0.5, 3.0]))
def test_scorers_add_up_row_by_row(a: Table, b: Table, weight: float) -> None:
    both = a + weight * b
    with np.errstate(invalid="ignore"):
        expected = a.table + np.float32(weight) * b.table
    if not np.isnan(expected).any() and (expected < np.inf).all():
        np.testing.assert_array_equal(both.scores(["q"])[0], expected)
        assert shown(both.top(5)(["q"])) == shown(Table(list(expected)).top(5)(["q"]))


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100, width=16), min_size=2, max_size=30))
def test_standardised_scores_have_mean_0_and_deviation_1_or_are_all_0(scores: list[float]) -> None:
    found = standardised(Table(scores)).scores(["q"])[0].astype(np.float64)
    if len(set(scores)) == 1:
        assert not found.any()
    elif np.std(scores) > 1e-3:
        assert abs(found.mean()) < 1e-4 and abs(found.std() - 1) < 1e-4


def test_rows_that_are_no_hits_do_not_count_when_scores_are_standardised() -> None:
    with_dead, without = Table([1.0, -np.inf, 3.0, -np.inf]), Table([1.0, 3.0])
    found = standardised(with_dead).scores(["q"])[0]
    assert found[[0, 2]].tolist() == standardised(without).scores(["q"])[0].tolist()
    assert (found[[1, 3]] == -np.inf).all()
    assert (standardised(Table([-np.inf] * 2)).scores(["q"]) == -np.inf).all()
    assert standardised(Table([])).scores(["q"]).shape == (1, 0)


def test_damage_is_not_hidden_by_standardising() -> None:
    for bad in (np.nan, np.inf):
        with pytest.raises(DamagedIndex):
            standardised(Table([1.0, bad, 3.0])).top(1)(["q"])


def test_words_alone_find_only_rows_that_share_one_also_among_candidates(tmp_path: Path) -> None:
    lexical = Lexical(BM25.build(tmp_path, ["rent is due", "roofs leak", "the rent", ""], language="english"))
    assert [row for row, _ in shown(lexical.top(4)(["rent"]))[0]] == [2, 0]
    assert [row for row, _ in shown((Table([1, 1, 1, 1]).top(2) >> lexical.top(4))(["rent"]))[0]] == [0]
    both = Table([0, 0, 0, 5]) + lexical
    assert [row for row, _ in shown(both.top(4)(["rent"]))[0]] == [3, 2, 0, 1], "added up, every row counts"


def test_a_mode_asks_only_for_the_parts_that_it_needs() -> None:
    def no() -> Any:
        raise AssertionError

    table: Any = Table([1.0, 2.0])
    assert scorer_of("dense", lambda: table, no) is table and scorer_of("bm25", no, lambda: table) is table
    with pytest.raises(InputError, match="choose one of dense, bm25, dense"):
        scorer_of("sparse", no, no)


@pytest.mark.parametrize("rows", [0, 1, 1 << 22, 1 << 30])
def test_many_queries_are_ranked_in_turns_and_in_order(rows: int) -> None:
    queries = [str(n) for n in range(10)]
    seen: list[list[str]] = []

    def keep(asked: Sequence[str], candidates: Ranking | None) -> Ranking:
        seen.append(list(asked))
        return Ranking(np.array([[int(query)] for query in asked]), np.ones((len(asked), 1), dtype=np.float32))

    found = [int(row) for ranking in rank(Stage(keep), queries, rows) for (row,) in ranking.rows]
    assert found == list(range(10)) and [query for asked in seen for query in asked] == queries
    assert max(map(len, seen)) * rows <= max(1 << 24, rows)


# --- An index.


LAW = [
    Document("rent", "On rent", "The tenant pays the rent.", {"year": 1999}),
    Document("roof", "", "The landlord repairs the roof in winter."),
    Document("empty", " ", "\n"),
    Document("court", "Of courts", "Who loses may appeal to a higher court.", {"tags": ["a", {"b": None}]}),
]


@pytest.fixture(scope="module")
def law(tmp_path_factory: pytest.TempPathFactory, tiny: Encoder) -> Index:
    return Index.build(tmp_path_factory.mktemp("law") / "law.vicinal", tiny, Corpus.read(LAW))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_finds_what_is_meant(law: Index, mode: str) -> None:
    hits = law.search("who pays the tenant's rent", 3, mode)
    assert hits[0].id == "rent" and all(a.score >= b.score for a, b in itertools.pairwise(hits))
    assert "empty" not in [hit.id for hit in law.search("roof", 100, mode)]


def test_a_hit_is_its_document(law: Index) -> None:
    (hit,) = law.search("tenant rent", 1, "bm25")
    document = LAW[0]
    assert (hit.id, hit.title, hit.metadata) == (document.id, document.title, document.metadata)
    assert hit.text == document.text[slice(*hit.span)] == document.text and hit.span == (0, len(document.text))
    assert json.loads(files.canonical_json(as_json(hit)))["span"] == [0, len(document.text)]


def test_the_same_query_gives_the_same_bytes_every_time_and_after_opening_again(law: Index, tiny: Encoder) -> None:
    def told(index: Index) -> str:
        return files.canonical_json([as_json(h) for mode in MODES for h in index.search("rent for a roof", 5, mode)])

    first = told(law)
    assert told(law) == first
    with Index.open(law.path, tiny) as again:
        assert told(again) == first
    with Index.open(law.path) as alone:
        assert told(alone) == first, "with the encoder that it finds itself"


def test_scores_are_those_of_the_encoder_and_of_bm25(law: Index, tiny: Encoder) -> None:
    contents = [document.content for document in LAW if document.content]
    documents, query = tiny.encode_documents(contents).dense, tiny.encode_queries(["rent"]).dense
    found = {hit.id: hit.score for hit in law.search("rent", 10)}
    ids = [document.id for document in LAW if document.content]
    np.testing.assert_allclose([found[id] for id in ids], documents @ query[0], atol=1e-3)


def test_fewer_dimensions_are_searched_when_asked(law: Index) -> None:
    with Index.open(law.path) as index:
        few = index.search("who pays the rent", 4, dim=8)
    assert [hit.score for hit in few] != [hit.score for hit in law.search("who pays the rent", 4)]
    for dim in (0, 65):
        with pytest.raises(InputError, match=f"--dim {dim} "):
            law.search("rent", dim=dim)
    with pytest.raises(InputError, match="mode bm25 has none"):
        law.search("rent", mode="bm25", dim=8)


@pytest.mark.parametrize(
    ("query", "more", "said"),
    [
        ("", {}, "the query is empty"),
        (" \n", {}, "the query is empty"),
        ("caf\udce9", {}, "no text in UTF-8"),
        ("caf\udce9", {"mode": "bm25"}, "no text in UTF-8"),
        ("rent", {"mode": "magic"}, "no mode 'magic'"),
        ("rent", {"k": 0}, "-k 0 "),
    ],
)
def test_a_query_that_is_none_is_refused(law: Index, query: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        law.search(query, **more)


@pytest.mark.parametrize("query", ["?!", "東京", "\0", "x" * 100_000, "\U0001f600", "a b c d e f", "\ufeffrent"])
def test_any_text_is_a_query(law: Index, query: str) -> None:
    for mode in MODES:
        assert len(law.search(query, 2, mode)) <= 2


@pytest.mark.parametrize("k", [1, 3, 10**12])
def test_more_hits_than_there_are_are_not_given(law: Index, k: int) -> None:
    assert len(law.search("rent roof court", k)) == min(k, 3)
    assert len(law.search_vector(np.ones(64), k)) == min(k, 3)


def test_pipelines_run_over_an_index(law: Index) -> None:
    stage = law.scorer("bm25").top(2) >> law.scorer("dense").top(1)
    ((hit,),) = law.hits(stage(["the rent of a court"]))
    assert hit.id in ("rent", "court")


def test_what_an_index_tells_of_itself(law: Index, tiny: Encoder) -> None:
    told = law.info()
    assert {key: told[key] for key in ("documents", "passages", "dim", "context", "format", "lexical", "refused")} == {
        "documents": 4,
        "passages": 3,
        "dim": 64,
        "context": None,
        "format": 1,
        "lexical": "english",
        "refused": [],
    }
    assert told["model"] == tiny.settings and told["counts"]["empty"] == 1 and len(law) == 4
    assert told["bytes"] == sum(path.stat().st_size for path in law.path.rglob("*") if path.is_file())
    assert json.loads(files.canonical_json(told)) == told


# --- Encoders that do not belong to it.


def test_an_index_refuses_a_query_of_another_encoder(law: Index, tiny: Encoder) -> None:
    class Other:
        def __getattr__(self, name: str) -> Any:
            return {"fingerprint": "f" * 64, "name": "other"}.get(name) or getattr(tiny, name)

    with pytest.raises(IndexRefused, match=r"holds vectors of the model tiny .*, this encoder is other"):
        Index.open(law.path, Other())  # type: ignore[arg-type]
    shorter = vicinal.load("tiny", precision="fp32", max_query_tokens=7)
    with pytest.raises(IndexRefused, match="load it with max_query_tokens=512"):
        Index.open(law.path, shorter)
    with pytest.raises(InputError, match=r"hold 64-dim vectors, the query has 3: was it encoded by another model\?"):
        law.search_vector([1, 0, 0])


def test_the_encoder_is_loaded_by_the_settings_that_the_index_was_built_with(tmp_path: Path) -> None:
    encoder = vicinal.load("tiny", precision="bf16", pooling="cls", max_document_tokens=9, max_query_tokens=5)
    Index.build(tmp_path / "i", encoder, Corpus.read(LAW)).close()
    with Index.open(tmp_path / "i") as index:
        assert index.encoder.settings == encoder.settings
        found = index.search("who pays the rent", 2)
    with Index.open(tmp_path / "i", encoder) as index:
        assert index.search("who pays the rent", 2) == found


def test_a_model_that_is_gone_is_named(tmp_path: Path, tiny: Encoder) -> None:
    folder = next(model.folder for model in shipped() if model.name == "tiny")
    shutil.copytree(folder, tmp_path / "model")
    Index.build(tmp_path / "i", vicinal.load(tmp_path / "model"), Corpus.read(LAW)).close()
    shutil.rmtree(tmp_path / "model")
    with Index.open(tmp_path / "i") as index:
        assert index.search("rent", mode="bm25"), "words need no model"
        with pytest.raises(IndexRefused, match=r"was built with the model .*model, but there is no"):
            index.search("rent")


# --- Vectors of another model.


def test_vectors_of_another_model_are_searched_by_vector_and_by_word(tmp_path: Path) -> None:
    vectors = np.eye(4, dtype=np.float32)
    ids = [document.id for document in LAW]
    with Index.from_vectors(tmp_path / "i", ids, vectors, LAW) as index:
        assert index.is_new and [hit.id for hit in index.search_vector([0, 0, 0.1, 1], 2)] == ["court", "empty"]
        assert index.search("appeals", 1, "bm25")[0].text == LAW[3].text
        for mode in ("dense", "dense+bm25"):
            with pytest.raises(IndexRefused, match=r"cannot encode a query: search it with Index\.search_vector"):
                index.search("rent", mode=mode)
        assert index.info()["model"] is None
    with pytest.raises(IndexRefused, match="holds vectors of another model"):
        Index.open(tmp_path / "i", vicinal.load("tiny"))


def test_ids_alone_are_enough_and_leave_no_words(tmp_path: Path) -> None:
    with Index.from_vectors(tmp_path / "i", (str(n) for n in range(3)), np.eye(3)) as index:
        (hit,) = index.search_vector([0, 1, 0], 1)
        assert (hit.id, hit.text, hit.title, hit.span) == ("1", "", "", (0, 0))
        assert index.info()["counts"]["empty"] == 0 and index.info()["refused"] == ["export", "info --against"]
        with pytest.raises(IndexRefused, match="holds no words"):
            index.search("rent", mode="bm25")


def test_a_vector_of_zeros_is_never_a_hit(tmp_path: Path) -> None:
    with Index.from_vectors(tmp_path / "i", list("abc"), np.array([[1, 0], [0, 0], [0, 1]]) * 1.0) as index:
        assert [hit.id for hit in index.search_vector([1, 1], 9)] == ["a", "c"] and len(index) == 3


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ">f4", np.longdouble])
@pytest.mark.parametrize("mapped", [False, True])
def test_vectors_may_be_of_any_floats_and_lie_in_a_file(tmp_path: Path, kind: Any, mapped: bool) -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 8)).astype(kind)
    if mapped:
        np.save(tmp_path / "v.npy", vectors)
        vectors = np.load(tmp_path / "v.npy", mmap_mode="r")
    with Index.from_vectors(tmp_path / "i", [str(n) for n in range(50)], vectors) as index:
        for n in (0, 20, 49):
            assert index.search_vector(np.asarray(vectors[n], dtype=np.float64), 1)[0].id == str(n)


@pytest.mark.parametrize("factor", [1e-300, 1e-45, 1e-10, 1.0, 1e30, 1e300])
def test_how_long_vectors_are_does_not_matter(tmp_path: Path, factor: float) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 8))
    with Index.from_vectors(tmp_path / "i", [str(n) for n in range(20)], vectors * factor) as index:
        assert [hit.id for hit in index.search_vector(vectors[7] * factor, 1)] == ["7"]


def test_other_vectors_are_another_index(tmp_path: Path) -> None:
    Index.from_vectors(tmp_path / "i", ["a", "b"], np.eye(2)).close()
    assert not Index.from_vectors(tmp_path / "i", ["a", "b"], np.eye(2)).is_new
    with pytest.raises(IndexRefused, match="differs in its vectors"):
        Index.from_vectors(tmp_path / "i", ["a", "b"], np.eye(2)[::-1])
    with Index.from_vectors(tmp_path / "i", ["a", "b"], np.eye(2)[::-1], overwrite=True) as index:
        assert index.search_vector([1, 0], 1)[0].id == "b"


DOCUMENT = Document("", text="text")


@pytest.mark.parametrize(
    ("ids", "vectors", "documents", "said"),
    [
        (["a"], np.ones(3), None, r"shape \(3,\)"),
        (["a"], np.ones((1, 2, 3)), None, r"shape \(1, 2, 3\)"),
        (["a"], np.ones((1, 0)), None, r"shape \(1, 0\)"),
        (["a"], np.ones((1, 2), dtype=int), None, "type int64"),
        (["a"], np.ones((1, 2), dtype=complex), None, "type complex128"),
        (["a"], np.array([["x", "y"]]), None, "type <U1"),
        (["a"], np.array([[object()]]), None, "type object"),
        (["a", "b"], np.ones((1, 2)), None, "1 vectors and 2 different ids"),
        (["a", "a"], np.ones((2, 2)), None, "2 vectors and 1 different ids"),
        ([], np.ones((1, 2)), None, "holds no documents"),
        ("abc", np.ones((3, 2)), None, "put it into brackets"),
        ([1, 2], np.ones((2, 2)), None, "id 0 is 1: expected text"),
        ([""], np.ones((1, 2)), None, "id 0 is '': expected text that is not empty"),
        (["a\udce9"], np.ones((1, 2)), None, "no text in UTF-8"),
        (["a", "b"], np.ones((2, 2)), [Document("b"), Document("a")], "id 0 is 'a', its document's own 'b'"),
        (["a", "b"], [[1.0], [1.0, 2.0]], None, "the vectors make no table|no table can be made"),
        (["a", "b"], np.ones((2, 2)), [DOCUMENT], "vector 1 has no id, or no document"),
        (["a"], np.ones((1, 2)), [DOCUMENT] * 2, "vector 1 has no id, or no document"),
        (["a"], np.ones((1, 2)), ["text"], "vector 0 has no id, or no document"),
        (["a", "b"], np.array([[1, 2], [np.nan, 0]]), None, "vector 1 .counted from 0. holds NaN or infinity"),
        (["a", "b"], np.array([[np.inf, 2], [1, 0]]), None, "vector 0 .counted from 0. holds NaN or infinity"),
    ],
)
def test_vectors_that_cannot_be_indexed_are_refused_and_leave_nothing(
    tmp_path: Path, ids: Any, vectors: Any, documents: Any, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        Index.from_vectors(tmp_path / "i", ids, vectors, documents)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "vector",
    [np.zeros(64), np.full(64, np.nan), np.ones((1, 64)), 5.0, ["a"] * 64, [[1], [1, 2]], [None] * 64, [True] * 64],
)
def test_a_query_that_is_no_vector_is_refused(law: Index, vector: Any) -> None:
    with pytest.raises(InputError, match="finite numbers"):
        law.search_vector(vector)
    with pytest.raises(InputError, match="k=0"):
        law.search_vector(np.ones(64), 0)


# --- Round trips.


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
METADATA = st.dictionaries(TEXT, st.none() | st.integers() | TEXT | st.lists(st.booleans()), max_size=2)
DOCUMENTS = st.builds(Document, id=TEXT.filter(bool), title=TEXT, text=TEXT, metadata=METADATA)


@settings(deadline=None, max_examples=40)
@given(st.lists(DOCUMENTS, min_size=1, max_size=9, unique_by=lambda document: document.id))
def test_what_goes_in_comes_out(documents: list[Document]) -> None:
    vectors = np.random.default_rng(0).normal(size=(len(documents), 16)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "i"
        with Index.from_vectors(path, [document.id for document in documents], vectors, documents) as index:
            hits = [index.search_vector(vector, 1)[0] for vector in vectors]
        assert verify(path) == []
    for document, hit in zip(documents, hits, strict=True):
        assert Document(hit.id, hit.title, hit.text, hit.metadata) == document
        assert hit.score == pytest.approx(1, abs=1e-5)


def test_an_export_is_a_corpus_again_and_gives_the_same_index(tmp_path: Path, tiny: Encoder, law: Index) -> None:
    law.export(tmp_path / "law.jsonl")
    again = Corpus.read(tmp_path / "law.jsonl")
    assert list(again) == list(law.segments[0].documents)
    with Index.build(tmp_path / "again", tiny, again) as index:
        assert index.search("rent", 3) == law.search("rent", 3)


def test_nothing_is_exported_into_the_index_itself(law: Index) -> None:
    with pytest.raises(InputError, match="lies inside the index"):
        law.export(law.path / "out.jsonl")


def test_a_closed_index_is_closed(tmp_path: Path) -> None:
    index = Index.from_vectors(tmp_path / "i", ["a"], np.ones((1, 2)))
    index.close()
    with pytest.raises(Exception, match="closed"):
        index.search_vector([1, 1])
    assert isinstance(index.segments[0].documents, DocumentStore)


def test_there_is_no_index_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "none", tmp_path / "file"):
        with pytest.raises(
            IndexRefused, match=r"there is no index at .*(: make one with `vicinal index|a file: give the folder)"
        ):
            Index.open(place)


def test_what_is_no_encoder_no_corpus_and_no_query_is_refused(tmp_path: Path, tiny: Encoder) -> None:
    for encoder, corpus in (("tiny", Corpus.read([DOCUMENT])), (tiny, "docs.jsonl"), (tiny, [{"text": "cats"}])):
        with pytest.raises(InputError, match=r"expected an encoder, vicinal\.load\(name\), and a corpus"):
            Index.build(tmp_path / "i", encoder, corpus)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    with (
        Index.build(tmp_path / "i", tiny, Corpus.read([DOCUMENT])) as index,
        pytest.raises(InputError, match="NoneType"),
    ):
        index.search(None)  # type: ignore[arg-type]


def test_the_least_integer_has_a_length_too(tmp_path: Path) -> None:
    with Index.from_vectors(tmp_path / "i", ["a", "b"], np.eye(2, dtype=np.float32)) as index:
        for kind in (np.int8, np.int64):
            least = np.iinfo(kind).min
            found = {hit.id: hit.score for hit in index.search_vector(np.array([least, 0], dtype=kind), 2)}
            assert found == {"a": -1.0, "b": 0.0}
