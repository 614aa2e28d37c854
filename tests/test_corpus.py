"""What a corpus promises, whatever its documents lie in. What becomes of broken files is in test_threats.py."""

from __future__ import annotations

import csv
import datetime
import decimal
import gc
import gzip
import io
import json
import os
import random
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal import corpus as rooms
from vicinal.corpus import Corpus, default_index_name
from vicinal.documents import Document, DocumentStore
from vicinal.errors import CorpusError, InputError

Row = dict[str, Any]

ROWS: list[Row] = [
    {"id": "a", "title": "On bats", "text": "They sleep by day.", "kind": "mammal"},
    {"id": "b", "title": "", "text": 'a "quoted", comma\tand tab', "kind": ""},
    {"id": "c", "title": "lines", "text": "one\ntwo\r\nthree\rfour\u2028five\n\ufeffsix", "kind": "ﬁ ligature"},
    {"id": "a", "title": "On bats", "text": "They hang by their feet.", "kind": "mammal"},
    {"id": "d", "title": "", "text": "", "kind": "NUL \0 and emoji 🦇"},
]


def as_jsonl(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def as_csv(rows: list[Row], delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows: list[Row], **options: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink, **options)
    return sink.getvalue()


def as_zst(content: bytes) -> bytes:
    return bytes(pyarrow.compress(content, codec="zstd", asbytes=True))


def halves(compress: Callable[[bytes], bytes], content: bytes) -> bytes:
    """Two members or frames, one after the other."""
    return compress(content[: len(content) // 2]) + compress(content[len(content) // 2 :])


CONTAINERS: dict[str, Callable[[list[Row]], bytes]] = {
    "docs.jsonl": as_jsonl,
    "docs.ndjson": as_jsonl,
    "docs.json": as_jsonl,
    "DOCS.JSONL": as_jsonl,
    "docs.jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows)),
    "members.jsonl.gz": lambda rows: halves(gzip.compress, as_jsonl(rows)),
    "docs.jsonl.zst": lambda rows: as_zst(as_jsonl(rows)),
    "frames.jsonl.zst": lambda rows: halves(as_zst, as_jsonl(rows)),
    "marked.jsonl": lambda rows: b"\xef\xbb\xbf" + as_jsonl(rows),
    "windows.jsonl": lambda rows: as_jsonl(rows).replace(b"\n", b"\r\n"),
    "blank.jsonl": lambda rows: b"\n \t\n" + as_jsonl(rows).replace(b"\n", b"\n\n"),
    "open-ended.jsonl": lambda rows: as_jsonl(rows).removesuffix(b"\n"),
    "docs.csv": as_csv,
    "marked.csv": lambda rows: b"\xef\xbb\xbf" + as_csv(rows),
    "docs.csv.gz": lambda rows: gzip.compress(as_csv(rows)),
    "docs.csv.zst": lambda rows: as_zst(as_csv(rows)),
    "docs.tsv": lambda rows: as_csv(rows, "\t"),
    "docs.parquet": as_parquet,
    "small-groups.parquet": lambda rows: as_parquet(rows, row_group_size=2),
}


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def expected(rows: Iterable[Row]) -> list[Document]:
    """The policy as a dictionary: a row without an id is known by its number, the last of one id wins in its place."""
    model: dict[str, Document] = {}
    for number, row in enumerate(rows):
        id = str(row.get("id") if row.get("id") not in (None, "") else number)
        rest = {key: value for key, value in row.items() if key not in ("id", "title", "text")}
        model[id] = Document(id, row.get("title") or "", row.get("text") or "", rest)
    return list(model.values())


# --- The same rows are the same corpus.


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_same_rows_are_the_same_documents_and_fingerprint_in_every_container(name: str, tmp_path: Path) -> None:
    corpus = Corpus.read(written(tmp_path, name, CONTAINERS[name](ROWS)))
    assert corpus.fingerprint() == Corpus.read(ROWS).fingerprint()
    assert list(corpus) == expected(ROWS)
    assert (len(corpus), corpus.counts.rows, corpus.counts.duplicated, corpus.counts.empty) == (4, 5, 1, 1)


@pytest.mark.parametrize(
    "rows",
    [
        iter(ROWS),
        (row for row in ROWS),
        tuple(ROWS),
        [Document(row["id"], row["title"], row["text"], {"kind": row["kind"]}) for row in ROWS],
        [{"_id": row["id"], **{key: row[key] for key in ("kind", "text", "title")}} for row in ROWS],
    ],
    ids=["iterator", "generator", "tuple", "documents", "_id and another order of keys"],
)
def test_the_same_rows_are_the_same_corpus_without_a_file(rows: Iterable[Any]) -> None:
    corpus = Corpus.read(rows)
    assert corpus.fingerprint() == Corpus.read(ROWS).fingerprint()
    assert list(corpus) == list(corpus) == expected(ROWS)


def test_a_hugging_face_dataset_is_read_as_its_rows() -> None:
    datasets = pytest.importorskip("datasets")
    for dataset in (datasets.Dataset.from_list(ROWS), datasets.Dataset.from_list(ROWS).to_iterable_dataset()):
        assert list(Corpus.read(dataset)) == expected(ROWS)


def test_a_dataset_of_several_splits_is_refused() -> None:
    datasets = pytest.importorskip("datasets")
    with pytest.raises(CorpusError, match=r"one mapping was given .with 'train'.: .* one split"):
        Corpus.read(datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)))


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_a_beir_folder_is_its_corpus(ending: str, tmp_path: Path) -> None:
    written(tmp_path, f"corpus.jsonl{ending}", CONTAINERS[f"docs.jsonl{ending}"](ROWS))
    written(tmp_path, "queries.jsonl", b"{}\n")
    written(tmp_path, "README.md", b"where it is from")
    corpus = Corpus.read(tmp_path)
    assert list(corpus) == expected(ROWS)
    assert corpus.counts.ignored_files == 0


TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ROW = st.fixed_dictionaries(
    {"text": st.none() | TEXT},
    optional={"id": st.none() | st.integers(-5, 5) | TEXT, "title": st.none() | TEXT, "year": JSON, "🦇": JSON},
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=8), st.booleans())
def test_what_is_written_as_jsonl_is_read_back(rows: list[Row], ascii: bool) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=ascii) + "\n" for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus.read(written(Path(folder), "docs.jsonl", lines.encode()))
        assert list(corpus) == expected(rows)
        assert corpus.fingerprint() == Corpus.read(rows).fingerprint()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.fixed_dictionaries({"id": TEXT, "title": TEXT, "text": TEXT}), min_size=1, max_size=8))
def test_what_is_written_as_a_table_is_read_back(rows: list[Row]) -> None:
    for name in ("docs.csv", "docs.tsv", "docs.parquet"):
        with tempfile.TemporaryDirectory() as folder:
            assert list(Corpus.read(written(Path(folder), name, CONTAINERS[name](rows)))) == expected(rows)


@settings(max_examples=120, deadline=None)
@given(
    st.binary(max_size=60), st.sampled_from(["docs.jsonl", "docs.csv", "docs.jsonl.gz", "docs.csv.zst", "a.parquet"])
)
def test_any_bytes_are_read_or_refused_in_a_sentence(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), name, b"text\n" + content if name == "docs.csv" else content)
        for skip in (False, True):
            try:
                assert len(Corpus.read(path, skip_bad_rows=skip)) > 0
            except CorpusError as error:
                assert str(error).startswith(str(path)) and "\n" not in str(error)


# --- Rows and their ids.


def test_a_row_without_an_id_is_known_by_its_number() -> None:
    corpus = Corpus.read(
        [{"text": "zero"}, {"id": "x", "text": "one"}, {"id": "", "text": "two"}, {"id": None, "text": "3"}]
    )
    assert [document.id for document in corpus] == ["0", "x", "2", "3"]
    assert corpus.counts.numbered == 3


def test_skipped_rows_move_no_number() -> None:
    rows: list[Any] = [{"text": "zero"}, {"text": 1}, {"text": "two"}]
    corpus = Corpus.read(rows, skip_bad_rows=True)
    assert [document.id for document in corpus] == ["0", "2"]
    assert (corpus.counts.rows, corpus.counts.skipped, corpus.counts.documents) == (3, 1, 2)


def test_a_number_that_is_also_an_id_is_a_duplicate_like_any_other() -> None:
    corpus = Corpus.read([{"id": 1, "text": "explicit"}, {"text": "by number"}, {"id": "1", "text": "last"}])
    assert [(document.id, document.text) for document in corpus] == [("1", "last")]
    assert corpus.counts.duplicated == 2


def test_id_comes_before_underscore_id_which_is_then_metadata() -> None:
    (document,) = Corpus.read([{"id": "a", "_id": "b", "text": "t"}])
    assert (document.id, document.metadata) == ("a", {"_id": "b"})


def test_a_document_keeps_metadata_that_is_named_like_a_column() -> None:
    document = Document("a", "title", "text", {"id": 5, "title": "other"})
    assert list(Corpus.read([document])) == [document]


def test_dates_and_decimals_become_text_in_rows_and_in_parquet(tmp_path: Path) -> None:
    row = {
        "text": "t",
        "day": datetime.date(2024, 5, 17),
        "moment": datetime.datetime(2024, 5, 17, 12, 30, tzinfo=datetime.UTC),
        "price": decimal.Decimal("1.10"),
        "many": [datetime.date(1987, 1, 2)],
    }
    told = {"day": "2024-05-17", "moment": "2024-05-17T12:30:00+00:00", "price": "1.10", "many": ["1987-01-02"]}
    for source in ([row], written(tmp_path, "docs.parquet", as_parquet([row]))):
        (document,) = Corpus.read(source)
        assert document.metadata == told


class NeverEqual(datetime.date):
    """As pandas' NaT is."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


NEVER_EQUAL = NeverEqual(1970, 1, 1)
LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("docs.jsonl", "is of type str where an object"),
        (7, "is of type int where an object"),
        ({"body": "t"}, "has neither 'text' nor 'title' .but 'body'."),
        ({}, "has neither 'text' nor 'title' .but nothing."),
        ({"text": 5}, "holds a value of type int under 'text' where text was expected"),
        ({"text": b"bytes"}, "holds a value of type bytes under 'text'"),
        ({"text": "t", "title": ["t"]}, "holds a value of type list under 'title'"),
        ({"text": "t", "id": 1.0}, "holds a value of type float under 'id' where text or an integer was expected"),
        ({"text": "t", "id": True}, "holds a value of type bool under 'id'"),
        ({"text": "t", "id": 10**5000}, "holds an integer of 16,610 bits under 'id'"),
        ({"text": "t", "n": 10**5000}, "holds an integer of 16,610 bits under 'n'"),
        ({"text": "t", "n": float("nan")}, "holds nan under 'n'"),
        ({"text": "t", "n": [float("-inf")]}, "holds -inf under 'n'"),
        ({"text": "t", "n": decimal.Decimal("sNaN")}, "holds sNaN under 'n'"),
        ({"text": "t", "n": NEVER_EQUAL}, "holds a value of type NeverEqual under 'n'"),
        ({"text": "t", "n": {1, 2}}, "holds a value of type set under 'n'"),
        ({"text": "t", "n": {"deep": b""}}, "holds a value of type bytes under 'n'"),
        ({"text": "t", "n": {1: 2}}, "holds a key of type int where text was expected"),
        ({"text": "t", 1: 2}, "holds a key of type int where text was expected"),
        ({"text": "t", "n": LOOP}, "is nested deeper than 100 levels under 'n'"),
        ({"text": "\ud800"}, "holds bytes or escapes under 'text' that are no text"),
        ({"text": "t", "n": ["\udc80"]}, "holds bytes or escapes under 'n'"),
        ({"text": "t", "\udc80": 1}, r"holds bytes or escapes under '\\udc80'"),
        (Document("\ud800"), "holds bytes or escapes under 'id'"),
        (Document("a", text=None), None),  # type: ignore[arg-type]
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_a_row_that_is_no_document_is_refused_or_skipped(row: Any, why: str | None) -> None:
    if why is None:
        assert list(Corpus.read([row])) == [Document("a")]
        return
    rows = [{"text": "good"}, row, {"text": "good"}]
    with pytest.raises(CorpusError, match=rf"the list, row 1 \(counted from 0\) {why}.*--skip-bad-rows"):
        len(Corpus.read(rows))
    assert [document.id for document in Corpus.read(rows, skip_bad_rows=True)] == ["0", "2"]


@pytest.mark.parametrize("source", [{"text": "t"}, Document("a"), b"docs.jsonl", "", 5, None], ids=repr)
def test_what_is_neither_a_path_nor_rows_is_refused_at_the_door(source: Any) -> None:
    with pytest.raises(CorpusError, match=r"was given.*: expected"):
        Corpus.read(source)


# --- Folders of texts.


def test_a_folder_of_texts_is_read_in_one_order_with_paths_as_ids(tmp_path: Path) -> None:
    for name in (
        "c/y.md",
        "b.txt",
        "a/z.md",
        "a/b/c.markdown",
        "a.TXT",
        ".hidden.txt",
        ".git/x.md",
        "picture.png",
        "a/data.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    corpus = Corpus.read(tmp_path)
    assert [document.id for document in corpus] == ["a.TXT", "b.txt", "a/z.md", "a/b/c.markdown", "c/y.md"]
    assert {document.text for document in corpus} == {"one\ntwo"}
    assert corpus.counts.ignored_files == 2


def test_a_folder_that_cannot_be_listed_is_refused_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").mkdir()
    written(tmp_path, "a.txt", b"a")
    corpus, scandir = Corpus.read(tmp_path, skip_bad_rows=True), os.scandir

    def refuse(folder: Path) -> Any:
        if folder.name == "locked":
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CorpusError, match=r"no permission .Permission denied: .*locked"):
        corpus.fingerprint()


def test_a_name_that_is_not_utf8_is_no_id(tmp_path: Path) -> None:
    try:
        written(tmp_path, "caf\udce9.txt", b"a")
    except OSError as error:
        pytest.skip(f"no such names on this system: {error}")
    with pytest.raises(CorpusError, match=r"'caf\\udce9.txt' holds bytes or escapes under 'id'"):
        len(Corpus.read(tmp_path))


# --- Lazily, by id, twice.


def test_a_file_is_stored_without_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", None)
    corpus = Corpus.read(written(tmp_path, "docs.jsonl", as_jsonl(ROWS)))
    assert corpus.store(tmp_path / "one.sqlite").fingerprint == corpus.fingerprint()


@pytest.mark.parametrize("spooled", [False, True])
def test_what_is_stored_is_the_corpus_before_and_after_a_spool(spooled: bool, tmp_path: Path) -> None:
    bad = {**ROWS[0], "kind": float("inf")}
    corpus = Corpus.read(written(tmp_path, "docs.jsonl", as_jsonl([*ROWS, bad])), skip_bad_rows=True)
    if spooled:
        assert len(corpus) == 4
    counts = corpus.store(tmp_path / "documents.sqlite")
    assert counts == corpus.counts
    assert (counts.rows, counts.documents, counts.duplicated, counts.skipped) == (6, 4, 1, 1)
    assert counts.fingerprint == corpus.fingerprint() == Corpus.read(ROWS).fingerprint()
    with DocumentStore.open(tmp_path / "documents.sqlite") as store:
        assert list(store) == list(corpus) == expected(ROWS)


def test_what_was_spooled_needs_its_file_no_more(tmp_path: Path) -> None:
    path = written(tmp_path, "docs.jsonl", as_jsonl(ROWS))
    corpus = Corpus.read(path)
    counts = corpus.counts
    path.unlink()
    assert list(corpus) == expected(ROWS)
    assert corpus.store(tmp_path / "documents.sqlite") == counts and corpus.fingerprint() == counts.fingerprint


def test_a_spool_stores_the_same_bytes_as_the_file(tmp_path: Path) -> None:
    corpus = Corpus.read(written(tmp_path, "docs.jsonl", as_jsonl(ROWS)))
    corpus.store(tmp_path / "streamed")
    assert len(corpus) == 4
    corpus.store(tmp_path / "copied")
    assert (tmp_path / "streamed").read_bytes() == (tmp_path / "copied").read_bytes()


def test_a_name_that_is_taken_is_refused_and_kept(tmp_path: Path) -> None:
    taken = written(tmp_path, "taken", b"mine")
    for corpus in (Corpus.read(ROWS), Corpus.read(written(tmp_path, "docs.jsonl", as_jsonl(ROWS)))):
        with pytest.raises(InputError, match="exists"):
            corpus.store(taken)
    assert taken.read_bytes() == b"mine"


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OSError, match="No space"):
        Corpus.read(ROWS).store(tmp_path / "documents.sqlite")
    assert not list(tmp_path.iterdir())


def test_by_id_finds_each_document_and_nothing_else() -> None:
    corpus = Corpus.read(ROWS)
    assert corpus.by_id("a").text == "They hang by their feet."
    with pytest.raises(KeyError, match="nobody"):
        corpus.by_id("nobody")


def test_a_generator_is_read_once_and_only_when_needed() -> None:
    read = []

    def rows() -> Iterator[Row]:
        for row in ROWS:
            read.append(row["id"])
            yield row

    corpus = Corpus.read(rows())
    assert not read
    assert corpus.fingerprint() and list(corpus) == list(corpus) and len(corpus) == 4 and corpus.by_id("b")
    assert read == ["a", "b", "c", "a", "d"]


def test_what_a_failed_generator_has_left_is_not_taken_for_the_whole() -> None:
    corpus = Corpus.read(iter([{"text": "one"}, {"text": 2}, {"text": "three"}]))
    with pytest.raises(CorpusError, match="row 1"):
        list(corpus)
    with pytest.raises(CorpusError, match="read before and reading failed"):
        list(corpus)


def test_an_error_of_the_rows_own_is_passed_on() -> None:
    def rows() -> Iterator[Row]:
        yield ROWS[0]
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone") as caught:
        len(Corpus.read(rows()))
    assert not isinstance(caught.value, CorpusError)


def test_the_temporary_file_goes_with_the_corpus_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    documents = iter(Corpus.read(ROWS))
    assert next(documents).id == "a" and list(tmp_path.iterdir())
    assert [document.id for document in documents] == ["b", "c", "d"]
    del documents
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_failed_spool_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(CorpusError):
        len(Corpus.read([{"text": "one"}, {"text": 2}]))
    assert not list(tmp_path.iterdir())


def test_many_threads_share_one_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    corpus, found = Corpus.read(row for row in ROWS), []
    threads = [threading.Thread(target=lambda: found.append(corpus.by_id("c").title)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["lines"] * 8 and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["generator", "docs.jsonl.gz", "docs.csv", "docs.parquet"])
def test_memory_is_flat(kind: str, tmp_path: Path) -> None:
    noise = random.Random(0)
    rows: Iterable[Row] = ({"id": str(n), "text": f"{noise.getrandbits(10_000):x}"} for n in range(8_000))  # 20 MB
    source = rows if kind == "generator" else written(tmp_path, kind, CONTAINERS[kind](list(rows)))
    corpus = Corpus.read(source)
    tracemalloc.start()
    corpus.store(tmp_path / "documents.sqlite")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000


# --- What the operating system or the environment says.


def test_a_field_of_a_table_may_be_larger_than_the_csv_module_allows(tmp_path: Path) -> None:
    before = csv.field_size_limit(100)
    try:
        (document,) = Corpus.read(written(tmp_path, "docs.csv", b'text\n"' + b"word\n" * 100_000 + b'"\n'))
    finally:
        csv.field_size_limit(before)
    assert len(document.text) == 500_000


def test_a_row_over_the_limit_is_a_bad_row_and_the_next_line_keeps_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "ROW_BYTES", 50)
    for length in (48, 49, 50, 51, 99, 100, 101, 102, 103, 150, 153, 400):
        long = b'{"text": "' + b"x" * (length - 12) + b'"}'
        assert len(long) == length
        path = written(tmp_path, "docs.jsonl", b'{"text": "a"}\n' + long + b'\n{"text": 5}\n{"text": "b"}\n')
        corpus = Corpus.read(path, skip_bad_rows=True)
        assert [document.id for document in corpus] == (["0", "1", "3"] if length < 50 else ["0", "3"])
        with pytest.raises(CorpusError, match="line 3 holds" if length < 50 else "line 2 is longer than 50 bytes"):
            len(Corpus.read(path))


def test_a_text_over_the_limit_is_a_bad_row_also_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "ROW_BYTES", 50)
    assert len(Corpus.read([{"text": "x" * 50}])) == 1
    with pytest.raises(CorpusError, match=r"row 0 .* holds 51 characters under 'text' where at most 50"):
        len(Corpus.read([{"text": "x" * 51}]))


def test_a_text_file_over_the_limit_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "ROW_BYTES", 50)
    written(tmp_path, "a.txt", b"x" * 50)
    written(tmp_path, "b.txt", b"x" * 51)
    assert Corpus.read(tmp_path, skip_bad_rows=True).counts.skipped == 1
    with pytest.raises(CorpusError, match=r"'b.txt' is longer than 50 bytes"):
        len(Corpus.read(tmp_path))


@pytest.mark.parametrize("value", [True, False, None, 0, -(2**70), 1.5, "", [], {}, [None, [True]], {"a": {"b": [1]}}])
def test_a_value_of_json_stays_what_it_is(value: Any) -> None:
    (document,) = Corpus.read([{"text": "t", "value": value}])
    assert document.metadata == {"value": value} and type(document.metadata["value"]) is type(value)


@pytest.mark.parametrize(
    "row",
    ["a," + "x" * 60, "x" * 30 + "," + "y" * 30, 'a,"' + "x" * 30 + "\n" + "y" * 30 + '"', 'a,"' + "x\n" * 40],
    ids=["field", "line", "quoted field", "field that is never closed"],
)
@pytest.mark.parametrize("skip", [False, True])
def test_a_table_over_the_limit_is_never_cut_in_silence(
    row: str, skip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "ROW_BYTES", 50)
    path = written(tmp_path, "docs.csv", f"id,text\na,a\n{row}\nb,b\n".encode())
    with pytest.raises(CorpusError, match=r"line 3 (is longer than 50 bytes|is not .* field limit)"):
        len(Corpus.read(path, skip_bad_rows=skip))


def test_a_file_without_permission_is_refused_at_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    path = written(tmp_path, "docs.jsonl", as_jsonl(ROWS))
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CorpusError, match=r"docs.jsonl cannot be read: no permission"):
        Corpus.read(path)


def test_a_disk_error_on_the_way_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    path = written(tmp_path, "docs.jsonl", as_jsonl(ROWS))
    corpus = Corpus.read(path)
    monkeypatch.setattr(Path, "open", lambda *_, **__: Failing())
    with pytest.raises(CorpusError, match=r"docs.jsonl cannot be read: .*\(Input/output error\)"):
        corpus.fingerprint()


def test_a_full_disk_is_not_taken_for_a_damaged_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, rows: Iterable[Document], **_: Any) -> None:
        next(iter(rows))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DocumentStore, "write", full)
    with pytest.raises(OSError, match="No space") as caught:
        Corpus.read(written(tmp_path, "docs.jsonl.gz", gzip.compress(as_jsonl(ROWS)))).store(tmp_path / "x")
    assert not isinstance(caught.value, CorpusError)


# --- Names.


@pytest.mark.parametrize(
    ("corpus", "index"),
    [
        ("docs.jsonl", "docs.vicinal"),
        ("data/docs.jsonl.gz", "data/docs.vicinal"),
        ("docs.TSV.ZST", "docs.vicinal"),
        ("docs.v2.parquet", "docs.v2.vicinal"),
        ("docs", "docs.vicinal"),
        ("docs.unknown", "docs.unknown.vicinal"),
        ("docs.gz", "docs.gz.vicinal"),
    ],
)
def test_an_index_is_named_after_its_corpus(corpus: str, index: str) -> None:
    assert default_index_name(corpus) == Path(index)


def test_a_folders_index_stands_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.csv").mkdir()
    monkeypatch.chdir(tmp_path / "notes.csv")
    for name in (".", str(tmp_path / "notes.csv"), f"{tmp_path / 'notes.csv'}{os.sep}"):
        assert default_index_name(name).resolve() == (tmp_path / "notes.csv.vicinal").resolve()
    with pytest.raises(InputError, match="no name"):
        default_index_name(Path(tmp_path.anchor))


def test_numbers_of_numpy_are_numbers_and_metadata_is_a_mapping() -> None:
    rows = [{"id": np.int64(7), "text": "a", "seen": np.float32(0.5), "tags": np.array(["x", "y"]), "is": np.True_}]
    (document,) = Corpus.read(rows)
    assert (document.id, document.metadata) == ("7", {"seen": 0.5, "tags": ["x", "y"], "is": True})
    with pytest.raises(CorpusError, match=r"row 0 .* holds metadata of type NoneType"):
        list(Corpus.read([Document("a", text="x", metadata=None)]))  # type: ignore[arg-type]
