"""Collections: what a BEIR folder may hold, what is left out and counted, and what is refused with its place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vicinal import Corpus
from vicinal.errors import CollectionError, CorpusError
from vicinal.evaluation.collections import Collection

CORPUS = b'{"_id": "d1", "text": "cats purr"}\n{"_id": "d2", "title": "stars", "text": "shine"}\n'
QUERIES = b'{"_id": "q1", "text": "do cats purr"}\n{"_id": "q2", "text": "do stars shine"}\n'
QRELS = b"query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\n"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a collection's folder; a file given as None is not there."""

    def written(
        queries: bytes | None = QUERIES, qrels: bytes | None = QRELS, corpus: bytes | None = CORPUS, split: str = "test"
    ) -> Path:
        (tmp_path / "qrels").mkdir(exist_ok=True)
        for name, content in {"queries.jsonl": queries, f"qrels/{split}.tsv": qrels, "corpus.jsonl": corpus}.items():
            if content is not None:
                (tmp_path / name).write_bytes(content)
        return tmp_path

    return written


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_collection_has_its_folders_name_its_split_and_every_judgment(write: Write) -> None:
    collection = Collection.read(write())
    assert (collection.name, collection.split) == (write().name, "test")
    assert collection.queries == {"q1": "do cats purr", "q2": "do stars shine"}
    assert collection.judgments == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}
    assert [document.id for document in collection.corpus] == ["d1", "d2"]
    assert set(collection.counts.values()) == {0, 3}
    assert collection.counts["judgments"] == 3


# Threats that are handled: what is given, which queries and judgments come out, what is counted.
HANDLED: dict[str, tuple[dict[str, bytes], Mapping[str, Mapping[str, int]], dict[str, int]]] = {
    "queries x byte order mark": (
        {"queries": b"\xef\xbb\xbf" + QUERIES},
        {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}},
        {},
    ),
    "queries x Windows line ends": (
        {"queries": QUERIES.replace(b"\n", b"\r\n")},
        {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}},
        {},
    ),
    "queries x blank lines and no last line end": (
        {"queries": b"\n" + QUERIES.replace(b"\n", b"\n \n").rstrip()},
        {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}},
        {},
    ),
    "queries x an id twice": (
        {"queries": lines({"_id": "q1", "text": ""}, {"_id": "q1", "text": "the last wins"})},
        {"q1": {"d1": 2, "d2": 0}},
        {"queries_duplicated": 1, "queries_empty": 0, "judged_queries_absent": 1},
    ),
    "queries x empty text": (
        {"queries": lines({"_id": "q1", "text": " \n"}, {"_id": "q2", "text": "x"}, {"_id": "q3", "text": None})},
        {"q2": {"d2": 1}},
        {"queries_empty": 2, "queries_unjudged": 1},
    ),
    "queries x integer ids": (
        {"queries": lines({"_id": 7, "text": "x"}), "qrels": b"7\td1\t1\n"},
        {"7": {"d1": 1}},
        {},
    ),
    "queries x other keys": (
        {"queries": lines({"_id": "q2", "text": "x", "metadata": {"url": [1]}, "title": "not read"})},
        {"q2": {"d2": 1}},
        {},
    ),
    "queries x unjudged": (
        {"qrels": b"q1\td1\t1\n"},
        {"q1": {"d1": 1}},
        {"queries_unjudged": 1, "queries_without_positive": 0},
    ),
    "qrels x byte order mark": ({"qrels": b"\xef\xbb\xbf" + QRELS}, {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}, {}),
    "qrels x Windows line ends": (
        {"qrels": QRELS.replace(b"\n", b"\r\n")},
        {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}},
        {},
    ),
    "qrels x blank lines and no last line end": (
        {"qrels": b"\n\nq1\td1\t1\n\nq2\td2\t1"},
        {"q1": {"d1": 1}, "q2": {"d2": 1}},
        {},
    ),
    "qrels x no header": ({"qrels": QRELS.partition(b"\n")[2]}, {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}, {}),
    "qrels x another header": ({"qrels": b"qid\tpid\trelevance\nq1\td1\t1\n"}, {"q1": {"d1": 1}}, {}),
    "qrels x a query called query": (
        {"queries": lines({"_id": "query", "text": "x"}), "qrels": b"query\td1\t1\n"},
        {"query": {"d1": 1}},
        {},
    ),
    "qrels x TREC with spaces": ({"qrels": b"q1 0 d1 1\nq2 Q0 d2 3\n"}, {"q1": {"d1": 1}, "q2": {"d2": 3}}, {}),
    "qrels x TREC with tabs": ({"qrels": b"q1\t0\td1\t1\n"}, {"q1": {"d1": 1}}, {}),
    "qrels x ids with spaces and quotes": (
        {
            "queries": lines({"_id": 'a "b', "text": "x"}),
            "qrels": b'query-id\tcorpus-id\tscore\na "b\td 1\t1\n',
            "corpus": lines({"_id": "d 1", "text": "x"}),
        },
        {'a "b': {"d 1": 1}},
        {"judged_documents_absent": 0},
    ),
    "qrels x a judgment twice": (
        {"qrels": b"q1\td1\t0\nq1\td1\t3\n"},
        {"q1": {"d1": 3}},
        {"judgments_duplicated": 1, "judgments": 1},
    ),
    "qrels x unknown query": (
        {"qrels": b"q1\td1\t1\nq9\td1\t1\n"},
        {"q1": {"d1": 1}},
        {"judged_queries_absent": 1, "judgments": 1},
    ),
    "qrels x unknown document": (
        {"qrels": b"q1\td1\t1\nq1\td9\t1\n"},
        {"q1": {"d1": 1, "d9": 1}},
        {"judged_documents_absent": 1},
    ),
    "qrels x no positive grade": (
        {"qrels": b"q1\td1\t0\nq1\td2\t-1\nq2\td1\t-2\nq2\td2\t+1\n"},
        {"q2": {"d1": -2, "d2": 1}},
        {"queries_without_positive": 1, "queries_unjudged": 0},
    ),
}


@pytest.mark.parametrize("threat", HANDLED)
def test_what_can_be_understood_is_handled_and_counted(threat: str, write: Write) -> None:
    given_files, judgments, counts = HANDLED[threat]
    collection = Collection.read(write(**given_files))
    assert collection.judgments == judgments
    assert collection.queries.keys() == judgments.keys()
    assert counts.items() <= collection.counts.items()


# Threats that are refused: what is given, and what the message says.
REFUSED: dict[str, tuple[dict[str, bytes | None], str]] = {
    "queries x missing": ({"queries": None}, "has no queries.jsonl"),
    "queries x empty file": ({"queries": b""}, "any of the 0 queries"),
    "queries x cut line": ({"queries": QUERIES[:-10]}, "queries.jsonl, line 2 is not one JSON object"),
    "queries x no object": ({"queries": QUERIES + b"[1, 2]\n"}, "line 3 is of type list"),
    "queries x no id": ({"queries": lines({"text": "x"})}, "line 1 lacks '_id'"),
    "queries x empty id": ({"queries": lines({"_id": "", "text": "x"})}, "line 1 lacks '_id'"),
    "queries x id of another type": (
        {"queries": lines({"_id": 1.5, "text": "x"})},
        "line 1 holds a value of type float",
    ),
    "queries x no text": ({"queries": lines({"_id": "q1", "title": "x"})}, "line 1 lacks '_id' or 'text'"),
    "queries x text of another type": ({"queries": lines({"_id": "q1", "text": ["x"]})}, "type list under 'text'"),
    "queries x NUL": ({"queries": QUERIES + b"\0\0\0\n"}, "line 3 is not one JSON object"),
    "queries x not UTF-8": ({"queries": b'{"_id": "q1", "text": "caf\xe9"}\n'}, "line 1 is not UTF-8"),
    "queries x UTF-16": ({"queries": QUERIES.decode().encode("utf-16")}, "begins like UTF-16"),
    "queries x half a surrogate pair": (
        {"queries": b'{"_id": "q1", "text": "\\ud800"}\n'},
        "line 1 holds bytes or escapes",
    ),
    "queries x nested too deep": ({"queries": b'{"_id": "q1", "text": ' + b"[" * 100_000}, "line 1 is nested deeper"),
    "qrels x empty file": ({"qrels": b""}, "judges no document"),
    "qrels x header alone": ({"qrels": QRELS.partition(b"\n")[0]}, "judges no document"),
    "qrels x no query in common": ({"qrels": b"other\td1\t1\n"}, "judges no document"),
    "qrels x no document in common": ({"qrels": b"q1\tother\t1\n"}, "none of the 1 documents"),
    "qrels x nothing relevant": ({"qrels": b"q1\td1\t0\n"}, "grades of 1 or more"),
    "qrels x two columns": ({"qrels": QRELS + b"q1\td1\n"}, "test.tsv, line 5 is 'q1\\\\td1': expected a query's id"),
    "qrels x four columns, not TREC's": ({"qrels": b"q1\td1\t1\t1\n"}, "line 1 is"),
    "qrels x five columns": ({"qrels": b"q1\t0\td1\t1\t1\n"}, "line 1 is"),
    "qrels x empty id": ({"qrels": b"q1\t\t1\n"}, "line 1 is"),
    "qrels x a second header": ({"qrels": QRELS + QRELS}, "line 5 is"),
    "qrels x header in another order": ({"qrels": b"corpus-id\tquery-id\tscore\n"}, "line 1 is"),
    "qrels x grade with a point": ({"qrels": b"q1\td1\t1.0\n"}, "a whole number"),
    "qrels x grade with a dash in it": ({"qrels": b"q1\td1\t1_0\n"}, "a whole number"),
    "qrels x grade in other digits": ({"qrels": "q1\td1\t١\n".encode()}, "a whole number"),
    "qrels x grade beyond measure": ({"qrels": b"q1\td1\t2147483647\n"}, "up to 1,000,000"),
    "qrels x endless grade": ({"qrels": b"q1\td1\t" + b"9" * 10_000}, "up to 1,000,000"),
    "qrels x NUL": ({"qrels": b"q1\td\x001\t1\n"}, "line 1 is"),
    "qrels x not UTF-8": ({"qrels": b"q1\td1\t1\nq1\t\xff\t1\n"}, "line 2 is not UTF-8"),
    "qrels x UTF-16": ({"qrels": QRELS.decode().encode("utf-16")}, "line 1 is not UTF-8"),
    "corpus x missing": ({"corpus": None}, "has no corpus.jsonl"),
}


@pytest.mark.parametrize("threat", REFUSED)
def test_what_cannot_be_understood_is_refused_with_its_place(threat: str, write: Write) -> None:
    given_files, message = REFUSED[threat]
    with pytest.raises(CollectionError, match=message):
        Collection.read(write(**given_files))


def test_a_damaged_corpus_is_refused_as_a_corpus(write: Write) -> None:
    with pytest.raises(CorpusError, match=r"corpus.jsonl, line 3 is not one JSON object"):
        Collection.read(write(corpus=CORPUS + b"{"))


def test_a_readme_beside_the_queries_is_not_taken_for_the_corpus(write: Write) -> None:
    folder = write(corpus=None)
    (folder / "README.md").write_text("d1", encoding="utf-8")
    with pytest.raises(
        CollectionError, match=r"has no corpus.jsonl: expected it, or corpus.jsonl.gz or corpus.jsonl.zst"
    ):
        Collection.read(folder)


def test_a_missing_split_is_refused_with_those_that_are_there(write: Write) -> None:
    write(split="train")
    folder = write(split="dev")
    with pytest.raises(CollectionError, match=r"has no qrels/test.tsv: its splits are dev, train: choose"):
        Collection.read(folder)
    assert Collection.read(folder, split="dev").split == "dev"


def test_a_folder_without_any_judgments_is_refused(write: Write) -> None:
    with pytest.raises(CollectionError, match=r"has no qrels/test.tsv: expected judgments in it"):
        Collection.read(write(qrels=None))


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "nothing"):
        with pytest.raises(CollectionError, match="there is no folder"):
            Collection.read(path)


@pytest.mark.parametrize(("ending", "packed"), [(".gz", gzip.compress), (".zst", zstandard.ZstdCompressor().compress)])
def test_compressed_queries_are_read_and_cut_ones_are_refused(
    ending: str, packed: Callable[[bytes], bytes], write: Write
) -> None:
    folder = write(queries=None, corpus=None)
    (folder / f"corpus.jsonl{ending}").write_bytes(packed(CORPUS))
    (folder / f"queries.jsonl{ending}").write_bytes(packed(QUERIES))
    assert list(Collection.read(folder).queries) == ["q1", "q2"]
    (folder / f"queries.jsonl{ending}").write_bytes(packed(QUERIES)[:-6])
    with pytest.raises(CollectionError, match="is damaged or cut short"):
        Collection.read(folder)


@pytest.mark.parametrize(
    ("queries", "judgments"),
    [
        ({}, {}),
        ({"q": "text"}, {}),
        ({"q": "text"}, {"q": {"a": 0}}),
        ({"q": " "}, {"q": {"a": 1}}),
        ({"q": "text"}, {"q": {"a": 1}, "other": {"a": 1}}),
    ],
)
def test_a_collection_made_by_hand_keeps_the_same_promise(
    queries: dict[str, str], judgments: dict[str, dict[str, int]]
) -> None:
    corpus = Corpus.read([{"_id": "a", "text": "x"}])
    with pytest.raises(CollectionError):
        Collection("hand", corpus, queries, judgments)


ids = st.text(st.characters(codec="utf-8", exclude_characters="\0\t\r\n"), min_size=1).filter(
    lambda id: not id.startswith("\ufeff")
)
texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(queries=st.dictionaries(ids, texts, min_size=1, max_size=5), others=st.dictionaries(ids, st.integers(-3, 9)))
def test_what_is_written_is_what_is_read(queries: dict[str, str], others: dict[str, int], write: Write) -> None:
    judgments = {query: {**others, "d1": 1} for query in queries}
    rows = [f"{q}\t{d}\t{g}" for q, grades in judgments.items() for d, g in grades.items()]
    collection = Collection.read(
        write(
            queries=lines(*({"_id": id, "text": text} for id, text in queries.items())),
            qrels="\n".join(["query-id\tcorpus-id\tscore", *rows]).encode(),
        )
    )
    assert (collection.queries, collection.judgments) == (queries, judgments)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(junk=st.binary(max_size=40), where=st.sampled_from(["queries", "qrels"]), at=st.integers(0, 60))
def test_junk_anywhere_is_read_or_refused_but_never_crashes(junk: bytes, where: str, at: int, write: Write) -> None:
    whole = {"queries": QUERIES, "qrels": QRELS}[where]
    try:
        collection = Collection.read(write(**{where: whole[:at] + junk + whole[at:]}))
    except CollectionError as error:
        assert "expected" in str(error) or "again" in str(error) or "convert" in str(error)
    else:
        assert collection.queries.keys() == collection.judgments.keys()
