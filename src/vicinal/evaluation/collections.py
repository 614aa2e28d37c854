"""A collection: a corpus, queries, and judgments of which documents answer them.

A folder in BEIR's layout enters; what leaves holds only queries that can be measured: with a text and at least one
relevant document (a grade of 1 or more; 0 and less is not relevant). What was left out, and why, is in `counts`.

    FOLDER/corpus.jsonl      {"_id": "d1", "title": "...", "text": "..."}      also .gz or .zst; see corpus.py
    FOLDER/queries.jsonl     {"_id": "q1", "text": "..."}                      also .gz or .zst; other keys are ignored
    FOLDER/qrels/SPLIT.tsv   query-id, corpus-id, score between tabs           the line that says so may be missing;
                             TREC's four columns (query, 0, document, grade) are read too

    same query or judgment twice      the last one counts, as in a corpus
    judged document not in the corpus stays: it can never be found, and measures know that it was to be found
    damaged line                      refuses the collection, and says where

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     (Path(folder) / "qrels").mkdir()
...     for name, text in {
...         "corpus.jsonl": '{"_id": "d1", "text": "cats purr"}',
...         "queries.jsonl": '{"_id": 1, "text": "do cats purr"}\\n{"_id": 2, "text": "do stars shine"}',
...         "qrels/test.tsv": "query-id\\tcorpus-id\\tscore\\n1\\td1\\t2",
...     }.items():
...         _ = (Path(folder) / name).write_text(text, encoding="utf-8")
...     collection = Collection.read(folder)
>>> collection.queries, collection.judgments, collection.counts["queries_unjudged"]
({'1': 'do cats purr'}, {'1': {'d1': 2}}, 1)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..corpus import COMPRESSIONS, BadRow, Corpus, Tally, document_of, reader_of_file
from ..errors import CollectionError, CorpusError
from ..files import explain
from .measures import MAX_GRADE

HEADERS = ("query-id", "query_id", "qid", "query")  # how the line above the judgments begins, where there is one
TREC_ITERATIONS = ("0", "Q0")
_GRADE = re.compile(r"[+-]?[0-9]{1,18}")

Judgments = dict[str, dict[str, int]]  # query -> document -> grade


@dataclass(frozen=True)
class Collection:
    """A corpus, queries and judgments; every query has a text, and a document that is relevant to it."""

    name: str
    corpus: Corpus
    queries: Mapping[str, str]
    judgments: Mapping[str, Mapping[str, int]]
    counts: Mapping[str, int] = field(default_factory=dict)  # what was left out, or is odd
    split: str = ""

    def __post_init__(self) -> None:
        if not self.queries:
            raise CollectionError(f"{self.name} has no query: expected at least one with a relevant document")
        for id in {**self.queries, **self.judgments}:
            if not self.queries.get(id, "").strip() or not _has_positive(self.judgments.get(id, {})):
                raise CollectionError(
                    f"query {id!r} of {self.name} lacks a text or a relevant document: leave it out of both"
                )

    @classmethod
    def read(cls, folder: str | Path, split: str = "test") -> Collection:
        """Read a BEIR folder; of the queries, those that a split judges."""
        folder = Path(folder)
        if not folder.is_dir():
            raise CollectionError(
                f"there is no folder {folder}: expected one of corpus.jsonl, queries.jsonl and qrels/"
            )
        queries_path, qrels_path = _file(folder, "queries.jsonl"), _split_file(folder, split)
        corpus = Corpus.read(_file(folder, "corpus.jsonl"))
        queries, queries_duplicated = _queries(queries_path)
        judgments, judgments_duplicated = _judgments(qrels_path)
        kept = [id for id in queries if queries[id].strip() and _has_positive(judgments.get(id, {}))]
        if not kept:
            raise CollectionError(
                f"{qrels_path} judges no document relevant to any of the {len(queries):,} queries of {queries_path}: "
                "expected their ids in its first column, texts of theirs, and grades of 1 or more"
            )
        documents = {id for query in kept for id in judgments[query]}
        absent = sum(not _holds(corpus, id) for id in documents)
        if absent == len(documents):
            raise CollectionError(
                f"none of the {absent:,} documents that {qrels_path} judges is in {corpus.name}: "
                "expected ids of this corpus in its second column"
            )
        counts = {
            "judgments": sum(len(judgments[query]) for query in kept),
            "judgments_duplicated": judgments_duplicated,
            "judged_documents_absent": absent,
            "judged_queries_absent": sum(id not in queries for id in judgments),
            "queries_duplicated": queries_duplicated,
            "queries_empty": sum(not text.strip() for text in queries.values()),
            "queries_unjudged": sum(id not in judgments for id in queries),
            "queries_without_positive": sum(not _has_positive(judgments[id]) for id in queries if id in judgments),
        }
        return cls(
            name=folder.resolve().name,
            corpus=corpus,
            queries={id: queries[id] for id in kept},
            judgments={id: judgments[id] for id in kept},
            counts=counts,
            split=split,
        )


def _has_positive(grades: Mapping[str, int]) -> bool:
    return any(grade > 0 for grade in grades.values())


def _holds(corpus: Corpus, id: str) -> bool:
    try:
        corpus.by_id(id)
    except KeyError:
        return False
    return True


def _file(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}{ending}" for ending in ("", *COMPRESSIONS)):
        if path.is_file():
            return path
    raise CollectionError(f"{folder} has no {name}: expected it, or {' or '.join(name + c for c in COMPRESSIONS)}")


def _split_file(folder: Path, split: str) -> Path:
    path = folder / "qrels" / f"{split}.tsv"
    if path.is_file():
        return path
    there = sorted(other.stem for other in path.parent.glob("*.tsv"))
    rather = f"its splits are {', '.join(there)}: choose one with --split" if there else "expected judgments in it"
    raise CollectionError(f"{folder} has no qrels/{path.name}: {rather}")


def _queries(path: Path) -> tuple[dict[str, str], int]:
    """Texts by query, and how many rows a later one with the same id replaced."""
    texts: dict[str, str] = {}
    rows = 0
    try:
        for place, row in reader_of_file(path)(Tally()):
            rows += 1
            try:
                query = document_of(row)
                if not query.id or (isinstance(row, Mapping) and "text" not in row):
                    raise BadRow("lacks '_id' or 'text'")
            except BadRow as bad:
                raise CollectionError(
                    f'{path}, {place} {bad}: expected a query such as {{"_id": "q1", "text": "..."}}, so correct it'
                ) from bad
            texts[query.id] = query.text
    except CorpusError as error:  # the container: damaged, cut short, unreadable
        raise CollectionError(str(error)) from error
    return texts, rows - len(texts)


def _judgments(path: Path) -> tuple[Judgments, int]:
    """Grades by query and document, and how many lines a later one on the same two replaced."""
    judgments: Judgments = {}
    lines = 0
    for number, line in _lines(path):
        cells = line.split("\t") if "\t" in line else line.split()
        if not lines and cells[0].lower() in HEADERS and not _GRADE.fullmatch(cells[-1]):
            continue
        if len(cells) == 4 and cells[1] in TREC_ITERATIONS:
            del cells[1]
        if (
            len(cells) != 3
            or not all(cells)
            or "\0" in line
            or not _GRADE.fullmatch(cells[2])
            or int(cells[2]) > MAX_GRADE
        ):
            raise CollectionError(
                f"{path}, line {number} is {line[:80]!r}: expected a query's id, a document's id and a grade (a whole "
                f"number up to {MAX_GRADE:,}), with tabs between them, so correct it"
            )
        query, document, grade = cells
        judgments.setdefault(query, {})[document] = int(grade)
        lines += 1
    return judgments, lines - sum(map(len, judgments.values()))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without byte order mark and line ends; blank ones are left out."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(b"\xef\xbb\xbf").decode().rstrip("\r\n")
                if text.strip():
                    yield number, text
    except UnicodeDecodeError as error:
        raise CollectionError(f"{path}, line {number} is not UTF-8 ({error.reason}): convert the file") from None
    except OSError as error:
        raise CollectionError(f"{path} cannot be read: {explain(error)}") from error
