"""A collection and an encoder in, measures out: exact search over the whole corpus, every query's value kept.

What does not depend on the mode is done once: documents and queries are encoded once (and kept on disk, cache.py),
words are indexed once. The corpus is scored in full, so the figures are those of the representation, not of an engine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache as once
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..encoder import Encoder
from ..errors import InputError
from ..index.base import NO_ROW
from ..index.exact import Exact
from ..index.lexical import BM25, check_language
from ..progress import Progress, silent
from ..search import MODES, Dense, Lexical, rank, scorer_of
from ..vectors import Floats, checked_dim
from .cache import Cached
from .collections import Collection
from .measures import MAP, MRR, Measure, P, Recall, nDCG, score

MEASURES: tuple[Measure, ...] = (nDCG @ 10, MRR @ 10, Recall @ 100, MAP, P @ 5)
DEPTH = 1000  # hits per query that measures look at; more where a measure's cutoff is higher
MAX_DOCUMENT_TOKENS, MAX_QUERY_TOKENS = 192, 64


@dataclass(frozen=True)
class ModeResult:
    """What one mode reached: means over queries, and each query's own value."""

    measures: Mapping[str, float]
    per_query: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Result:
    """What `evaluate` found; `as_json` is the file that `compare` and reports read."""

    modes: Mapping[str, ModeResult]
    context: Mapping[str, Any] | None
    seconds: Mapping[str, float]
    settings: Mapping[str, Any]
    counts: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        first = next(iter(self.modes.values()))
        return {
            "measures": dict(first.measures),
            "modes": {mode: {"measures": r.measures, "per_query": r.per_query} for mode, r in self.modes.items()},
            "per_query": first.per_query,
            "context": self.context,
            "seconds": dict(self.seconds),
            "settings": dict(self.settings),
            "counts": dict(self.counts),
        }


def evaluate(
    collection: Collection,
    encoder: Encoder | None,
    modes: Sequence[str] = ("dense",),
    *,
    dim: int | None = None,
    language: str = "auto",
    measures: Sequence[Measure] = MEASURES,
    cache: Path | None = None,
    progress: Progress = silent,
) -> Result:
    """Measure an encoder, BM25, or both together, on a collection.

    >>> import vicinal
    >>> from vicinal.documents import Document
    >>> corpus = vicinal.Corpus.read([Document("a", text="cats purr"), Document("b", text="stars shine")])
    >>> collection = Collection("two", corpus, {"q": "do cats purr"}, {"q": {"a": 1}})
    >>> evaluate(collection, None, ["bm25"]).modes["bm25"].measures["nDCG@10"]
    1.0
    """
    modes = list(dict.fromkeys(modes))
    _check(modes, encoder, dim, language, measures)
    clock = Clock()
    with clock("read"):
        contents = {document.id: document.content for document in collection.corpus}
    ids = [id for id, content in contents.items() if content]  # rows: an empty document is never a hit
    texts = [contents[id] for id in ids]
    queries = list(collection.queries.values())
    counts = {"documents": len(contents), "empty": len(contents) - len(ids), "queries": len(queries)}
    counts |= collection.counts
    depth = max([DEPTH, *(measure.cutoff or 0 for measure in measures)])
    settings = {
        "collection": collection.name,
        "split": collection.split,
        "modes": modes,
        "model": encoder and encoder.settings,
        "dim": dim,
        "language": language,
        "depth": depth,
        "threads": torch.get_num_threads(),
        "device": encoder and encoder.device,
    }

    @once
    def dense() -> Dense:
        assert encoder is not None, "_check has seen to it"
        cached = Cached(encoder, cache)
        with clock("encode_documents"):
            documents = cached.encode_raw(texts, "document", progress)
        with clock("encode_queries"):
            asked = cached.encode_raw(queries, "query", progress)
        counts.update(cut=documents.cut, cut_queries=asked.cut, encoded=cached.encoded)
        known = dict(zip(queries, asked.vectors, strict=True))
        return Remembered(known, Exact([torch.from_numpy(documents.vectors)], dim))

    @once
    def lexical() -> Lexical:
        with clock("index_words"), tempfile.TemporaryDirectory() as folder:
            engine = BM25.build(Path(folder), texts, language=language, progress=progress)
        settings["language"] = engine.language
        return Lexical(engine)

    results: dict[str, ModeResult] = {}
    for mode in modes:
        stage = scorer_of(mode, dense, lexical).top(depth)
        found: list[list[str]] = []
        with clock("search"), progress(f"searching ({mode})", len(queries)) as advance:
            for ranking in rank(stage, queries, len(ids)):
                found += [[ids[row] for row in rows if row != NO_ROW] for rows in ranking.rows]
                advance(len(ranking))
        with clock("measure"):
            run = dict(zip(collection.queries, found, strict=True))
            per_query = score(collection.judgments, run, measures)
        means = {name: sum(values.values()) / len(values) for name, values in per_query.items()}
        results[mode] = ModeResult(means, per_query)
    return Result(results, None, clock.seconds, settings, counts)


def _check(
    modes: Sequence[str], encoder: Encoder | None, dim: int | None, language: str, measures: Sequence[Measure]
) -> None:
    """Refuse at the door what would fail, or be ignored, after hours of encoding."""
    wrong = [mode for mode in modes if mode not in MODES]
    if wrong or not modes:
        what = f"there is no mode {', '.join(map(repr, wrong))}" if wrong else "no mode was given"
        raise InputError(f"{what}: choose among {', '.join(MODES)}")
    dense = [mode for mode in modes if "dense" in mode]
    if dense and encoder is None:
        raise InputError(f"mode {dense[0]} needs a model: give one with --model")
    if dim is not None and not dense:
        raise InputError(f"--dim {dim} shortens vectors, and mode {modes[0]} has none: leave it out")
    if encoder is not None:
        checked_dim(dim, encoder.dim)
    check_language(language)
    for measure in measures:
        measure.formula()


class Remembered(Dense):
    """Dense search for queries whose vectors are there already."""

    def __init__(self, queries: Mapping[str, Floats], engine: Exact) -> None:
        self.queries, self.engine = queries, engine

    def _vectors(self, queries: Sequence[str]) -> Floats:
        return np.stack([self.queries[query] for query in queries])


class Clock:
    """Seconds by what they went into.

    >>> clock = Clock()
    >>> with clock("waiting"):
    ...     time.sleep(0.002)
    >>> clock.seconds["waiting"] >= 0.002
    True
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what] = round(self.seconds.get(what, 0.0) + time.perf_counter() - start, 3)
