"""A collection and an encoder in, measures out: exact search over the whole corpus, every query's value kept.

What does not depend on the mode is done once: documents and queries are encoded once (and kept on disk, cache.py),
words are indexed once. The corpus is scored in full, so the figures are those of the representation, not of an engine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..context import SIZE, Context, Request, source_of
from ..corpus import Corpus
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
class Shown:
    """A context to measure in: `own` (chosen from the collection), `null` (none), or what `source` says, under a name.

    A context that is chosen is drawn once per seed; a saved one is what it is.
    """

    name: str
    source: Corpus | Context | None = None
    size: int | None = None  # None: 128, or what the model is made for
    choice: str = "random"

    def __post_init__(self) -> None:
        Request(SIZE if self.size is None else self.size, self.choice)

    @classmethod
    def of(cls, asked: str, size: int | None = None, choice: str = "random") -> Shown:
        """The context that a word asks for: own, null, or the PATH of a saved one or of another corpus."""
        shown = cls(asked, None if asked in ("own", "null") else source_of(asked), size, choice)
        is_chosen = asked != "null" and not isinstance(shown.source, Context)
        return shown if is_chosen else cls(asked, shown.source)  # what is not chosen has no size to ask for

    def draws(self, corpus: Corpus, make: Callable[..., Context], seeds: int) -> list[Context | None]:
        """The contexts to measure in; None is the model without one."""
        if self.name == "null":
            return [None]
        if isinstance(self.source, Context):
            return [self.source]
        source = self.source or corpus
        return [make(source, self.size, self.choice, seed) for seed in range(seeds)]


NULL, OWN = Shown("null"), Shown("own")


@dataclass(frozen=True)
class ModeResult:
    """What one mode reached: means over queries, and each query's own value; both are means over the draws.

    `spread` has the lowest and the highest mean of a draw, where there were several.
    """

    measures: Mapping[str, float]
    per_query: Mapping[str, Mapping[str, float]]
    spread: Mapping[str, tuple[float, float]] | None = None

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"measures": dict(self.measures), "per_query": self.per_query}
        return told | ({"spread": {name: list(both) for name, both in self.spread.items()}} if self.spread else {})


@dataclass(frozen=True)
class ContextResult:
    """What every mode reached in one context; `draws` tells which contexts these were."""

    modes: Mapping[str, ModeResult]
    draws: Sequence[Mapping[str, Any] | None]

    def as_json(self) -> dict[str, Any]:
        first = next(iter(self.modes.values())).as_json()
        modes = {mode: result.as_json() for mode, result in self.modes.items()}
        return first | {"modes": modes, "context": self.draws[0], "draws": list(self.draws)}


@dataclass(frozen=True)
class Result:
    """What `evaluate` found; `as_json` is the file that `compare` and reports read."""

    contexts: Mapping[str, ContextResult]
    seconds: Mapping[str, float]
    settings: Mapping[str, Any]
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def modes(self) -> Mapping[str, ModeResult]:
        """The results in the first context."""
        return next(iter(self.contexts.values())).modes

    def as_json(self) -> dict[str, Any]:
        contexts = {name: result.as_json() for name, result in self.contexts.items()}
        return {
            **next(iter(contexts.values())),
            "contexts": contexts,
            "seconds": dict(self.seconds),
            "settings": dict(self.settings),
            "counts": dict(self.counts),
        }


def evaluate(
    collection: Collection,
    encoder: Encoder | None,
    modes: Sequence[str] = ("dense",),
    *,
    contexts: Sequence[Shown] = (NULL,),
    seeds: int = 1,
    dim: int | None = None,
    language: str = "auto",
    measures: Sequence[Measure] = MEASURES,
    cache: Path | None = None,
    progress: Progress = silent,
) -> Result:
    """Measure an encoder in contexts, BM25, or both together, on a collection.

    >>> import vicinal
    >>> from vicinal.documents import Document
    >>> corpus = vicinal.Corpus.read([Document("a", text="cats purr"), Document("b", text="stars shine")])
    >>> collection = Collection("two", corpus, {"q": "do cats purr"}, {"q": {"a": 1}})
    >>> evaluate(collection, None, ["bm25"]).modes["bm25"].measures["nDCG@10"]
    1.0

    `seeds` is the number of draws of every context that is chosen: measures are means over them.
    """
    modes, shown = list(dict.fromkeys(modes)), _named(contexts)
    _check(modes, encoder, dim, language, measures, contexts, seeds)
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
        "contexts": list(shown),
        "seeds": seeds,
        "model": encoder and encoder.settings,
        "dim": dim,
        "language": language,
        "depth": depth,
        "threads": torch.get_num_threads(),
        "device": encoder and encoder.device,
    }

    @once
    def vectors(reader: Encoder | None) -> tuple[Cached, torch.Tensor, dict[str, Floats]]:
        assert reader is not None, "_check has seen to it"
        cached = Cached(reader, cache)
        with clock("encode_documents"):
            documents = cached.encode_raw(texts, "document", progress)
        with clock("encode_queries"):
            asked = cached.encode_raw(queries, "query", progress)
        encoded = counts.get("encoded", 0) + cached.encoded
        counts.update(cut=documents.cut, cut_queries=asked.cut, encoded=encoded)
        return cached, torch.from_numpy(documents.vectors), dict(zip(queries, asked.vectors, strict=True))

    def drawn(context: Shown) -> list[Context | None]:
        if encoder is None:
            return [None]
        make = partial(encoder.context, embed=lambda part: embedded(vectors(encoder)[0], part))
        with clock("context"):
            return context.draws(collection.corpus, make, seeds)

    @once
    def bound(context: Context | None) -> Encoder:
        assert encoder is not None, "_check has seen to it"
        return encoder.without_context() if context is None else encoder.with_context(context)

    def dense(context: Context | None) -> Dense:
        assert encoder is not None, "_check has seen to it"
        reader = bound(context)
        # Without attention, raw vectors do not depend on the context, so that one encoding serves them all.
        _, documents, known = vectors(reader if encoder.attends else encoder)
        engine = Exact([documents], dim, correction=reader.correction(dim))
        return Dense(lambda asked: np.stack([known[query] for query in asked]), engine)

    @once
    def lexical() -> Lexical:
        with clock("index_words"), tempfile.TemporaryDirectory() as folder:
            engine = BM25.build(Path(folder), texts, language=language, progress=progress)
        settings["language"] = engine.language
        return Lexical(engine)

    @once
    def measured(mode: str, context: Context | None) -> dict[str, dict[str, float]]:
        stage = scorer_of(mode, lambda: dense(context), lexical).top(depth)
        found: list[list[str]] = []
        with clock("search"), progress(f"searching ({mode})", len(queries)) as advance:
            for ranking in rank(stage, queries, len(ids)):
                found += [[ids[row] for row in rows if row != NO_ROW] for rows in ranking.rows]
                advance(len(ranking))
        with clock("measure"):
            return score(collection.judgments, dict(zip(collection.queries, found, strict=True)), measures)

    results = {}
    for name, context in shown.items():
        draws = drawn(context)
        reached = {mode: _mean([measured(mode, d if "dense" in mode else None) for d in draws]) for mode in modes}
        results[name] = ContextResult(reached, [None if draw is None else draw.describe() for draw in draws])
    return Result(results, clock.seconds, settings, counts)


def embedded(cached: Cached, texts: Sequence[str]) -> torch.Tensor:
    """The raw vectors of a context's documents, those of the collection's own from the cache."""
    return torch.from_numpy(cached.encode_raw(texts, "document").vectors)


def _named(contexts: Sequence[Shown]) -> dict[str, Shown]:
    """Contexts by their names; where two have one name, the way of choosing is part of it."""
    names = [context.name for context in contexts]
    return {
        context.name
        if names.count(context.name) == 1
        else f"{context.name} {context.choice} {context.size or SIZE}": context
        for context in contexts
    }


def _mean(draws: Sequence[Mapping[str, Mapping[str, float]]]) -> ModeResult:
    """Means over draws, and then over queries."""
    per_query = {
        name: {query: sum(draw[name][query] for draw in draws) / len(draws) for query in values}
        for name, values in draws[0].items()
    }
    means = {name: [sum(draw[name].values()) / len(draw[name]) for draw in draws] for name in per_query}
    spread = {name: (min(values), max(values)) for name, values in means.items()} if len(draws) > 1 else None
    return ModeResult({name: sum(values) / len(values) for name, values in means.items()}, per_query, spread)


def _check(
    modes: Sequence[str],
    encoder: Encoder | None,
    dim: int | None,
    language: str,
    measures: Sequence[Measure],
    contexts: Sequence[Shown],
    seeds: int,
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
    if not contexts or seeds < 1:
        raise InputError(f"{len(contexts)} contexts and {seeds} draws of each were asked for: expected 1 or more")
    check_language(language)
    for measure in measures:
        measure.formula()


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
