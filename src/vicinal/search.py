"""Query in, hits out.

A scorer gives every row of the corpus a score for a query, and scorers add up: `dense + 0.5 * standardised(bm25)` is a
scorer again. `.top(k)` makes a stage of it, and stages compose: `bm25.top(200) >> dense.top(10)` lets the second choose
among what the first found. `Index` opens what `index/` wrote and holds the scorers over it.

>>> class Letters(Scorer):
...     "Scores a row by how often its letter stands in the query."
...     def scores(self, queries):
...         return np.array([[query.count(letter) for letter in "abc"] for query in queries], dtype=np.float32)
>>> Letters().top(2)(["abba cc b"]).rows.tolist()
[[1, 0]]
>>> (Letters().top(2) >> (-1.0 * Letters()).top(1))(["abba cc b"]).rows.tolist()
[[0]]
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from torch import Tensor

from .corpus import Corpus
from .documents import Document
from .encoder import Encoder, load
from .encoder.effect import effect
from .errors import DamagedIndex, IndexRefused, InputError
from .index import build as building
from .index import segments as storage
from .index import tables
from .index.base import NO_ROW, Floats, Ranking, Rows, best
from .index.exact import Exact
from .index.lexical import BM25, Pooled, sharing_a_term
from .progress import Progress, silent
from .vectors import checked_dim

SCORES_AT_ONCE = 1 << 24  # 64 MB of scores: more queries than fit are taken in turns
NEED_TEXT = ("export", "info --against")  # verbs that are refused where an index keeps no text
BM25_WEIGHT = 0.5  # of dense+bm25; measured on three collections kept for choosing, docs/log.md


class Scorer(ABC):
    """Something that scores every row of a corpus for a query."""

    @abstractmethod
    def scores(self, queries: Sequence[str]) -> Floats:
        """(queries, rows); higher is better, minus infinity is no hit."""

    def scores_at(self, queries: Sequence[str], rows: Rows) -> Floats:
        """The scores of chosen rows, (queries, k)."""
        chosen = np.take_along_axis(self.scores(queries), np.maximum(rows, 0), axis=1)
        return np.where(rows == NO_ROW, np.float32(-np.inf), chosen)

    def hits(self, scores: Floats) -> Floats:
        """The same scores, minus infinity where a row is no hit of this scorer's own."""
        return scores

    def best(self, queries: Sequence[str], k: int) -> Ranking:
        """The k best rows of the whole corpus."""
        return best(self.hits(self.scores(queries)), k)

    def top(self, k: int) -> Stage:
        """The stage that keeps the k best by this score."""
        if k < 1:
            raise InputError(f"-k {k} was asked for: expected a number of hits, 1 or more")

        def keep(queries: Sequence[str], candidates: Ranking | None) -> Ranking:
            if candidates is None:
                return self.best(queries, k)
            rows = np.sort(candidates.rows, axis=1)  # so that here too, ties go to the lower row
            among = best(self.hits(self.scores_at(queries, rows)), k)
            picked = np.take_along_axis(rows, np.maximum(among.rows, 0), axis=1)
            return Ranking(np.where(among.rows == NO_ROW, NO_ROW, picked), among.scores)

        return Stage(keep)

    def __add__(self, other: Scorer) -> Scorer:
        return Combined(lambda one, two: one + two, self, other)

    def __rmul__(self, weight: float) -> Scorer:
        return Combined(lambda one: np.float32(weight) * one, self)


class Combined(Scorer):
    """Scores made of the scores of others, row by row."""

    def __init__(self, combine: Callable[..., Floats], *parts: Scorer) -> None:
        self.combine, self.parts = combine, parts

    def scores(self, queries: Sequence[str]) -> Floats:
        return self.combine(*(part.scores(queries) for part in self.parts))


def standardised(scorer: Scorer) -> Scorer:
    """Scores minus their mean over their standard deviation, per query over the whole corpus; all alike become 0."""

    def standardise(scores: Floats) -> Floats:
        counted = np.isfinite(scores)  # rows that are no longer part of an index score minus infinity
        if not counted.any():
            return scores
        mean = scores.mean(axis=1, keepdims=True, dtype=np.float64, where=counted)
        deviation = scores.std(axis=1, keepdims=True, dtype=np.float64, where=counted)
        result: Floats = ((scores - mean) / np.where(deviation > 0, deviation, 1)).astype(np.float32)
        return result

    return Combined(standardise, scorer)


@dataclass(frozen=True)
class Stage:
    """Candidates in (None: the whole corpus), fewer candidates out; `a >> b` is a, then b, and is associative."""

    keep: Callable[[Sequence[str], Ranking | None], Ranking]

    def __call__(self, queries: Sequence[str], candidates: Ranking | None = None) -> Ranking:
        return self.keep(queries, candidates)

    def __rshift__(self, then: Stage) -> Stage:
        return Stage(lambda queries, candidates: then(queries, self(queries, candidates)))


class Dense(Scorer):
    """Cosine similarity of vectors; `encode` gives the raw ones of queries."""

    def __init__(self, encode: Callable[[Sequence[str]], Floats], engine: Exact) -> None:
        self.encode, self.engine = encode, engine

    def scores(self, queries: Sequence[str]) -> Floats:
        return self.engine.scores(self.encode(queries))

    def scores_at(self, queries: Sequence[str], rows: Rows) -> Floats:
        return self.engine.scores_at(self.encode(queries), rows)

    def best(self, queries: Sequence[str], k: int) -> Ranking:
        return self.engine.top(self.encode(queries), k)


class Joined(Scorer):
    """Scorers over neighbouring parts of a corpus, as one: rows are numbered through."""

    def __init__(self, parts: Sequence[Scorer]) -> None:
        self.parts = parts

    def scores(self, queries: Sequence[str]) -> Floats:
        return np.concatenate([part.scores(queries) for part in self.parts], axis=1)


class Lexical(Scorer):
    """BM25; as a ranking of its own, rows that share no term with the query are no hits."""

    def __init__(self, engine: BM25 | Pooled) -> None:
        self.engine = engine

    def scores(self, queries: Sequence[str]) -> Floats:
        return self.engine.scores(queries)

    def hits(self, scores: Floats) -> Floats:
        return sharing_a_term(scores)


MODES = ("dense", "bm25", "dense+bm25")


def scorer_of(mode: str, dense: Callable[[], Scorer], lexical: Callable[[], Lexical]) -> Scorer:
    """The scorer that a mode's name stands for; a part is asked for only where the mode needs it."""
    if mode == "dense":
        return dense()
    if mode == "bm25":
        return lexical()
    if mode == "dense+bm25":
        return standardised(dense()) + BM25_WEIGHT * standardised(lexical())
    raise InputError(f"there is no mode '{mode}': choose one of {', '.join(MODES)}")


def rank(stage: Stage, queries: Sequence[str], rows: int) -> Iterable[Ranking]:
    """Run a stage over many queries, as many at a time as keep the scores of all rows within bounds."""
    step = max(1, SCORES_AT_ONCE // max(rows, 1))
    for start in range(0, len(queries), step):
        yield stage(queries[start : start + step])


@dataclass(frozen=True)
class Hit:
    """A document that was found: `text` is its best passage's, `span` where that stands in the document's text."""

    id: str
    score: float
    title: str
    text: str
    span: tuple[int, int]
    metadata: Mapping[str, Any]


class Index:
    """An open index: documents, vectors and words of one corpus under one manifest.

    >>> import tempfile, vicinal
    >>> folder = tempfile.TemporaryDirectory()
    >>> corpus = vicinal.Corpus.read([{"id": "a", "text": "cats purr"}, {"id": "b", "text": "stars shine"}])
    >>> with Index.build(Path(folder.name) / "two.vicinal", vicinal.load("tiny"), corpus) as index:
    ...     [hit.id for hit in index.search("why do cats purr", k=1)]
    ['a']
    >>> folder.cleanup()
    """

    is_new = False  # whether `build` had to write it

    def __init__(self, path: str | Path, encoder: Encoder | None = None) -> None:
        self.path = Path(path)
        self.manifest, self.segments = storage.opened(self.path)
        self._readers: dict[str, Encoder] = {}
        self._starts = np.cumsum([0, *(len(segment) for segment in self.segments)])  # rows are numbered through
        if encoder is not None:
            self.encoder = self._checked(encoder)

    @classmethod
    def build(
        cls,
        path: str | Path,
        encoder: Encoder,
        corpus: Corpus,
        *,
        overwrite: bool = False,
        keep_text: bool = True,
        language: str = "auto",
        progress: Progress = silent,
    ) -> Index:
        """Index a corpus; the same corpus and settings onto an existing index do nothing, others are refused.

        An encoder that is bound to a context gives an index that keeps it, and asks its queries in it.
        """
        if not hasattr(encoder, "encode_raw") or not isinstance(corpus, Corpus):
            raise InputError(
                f"{type(encoder).__name__} and {type(corpus).__name__} were given: expected an encoder, "
                "vicinal.load(name), and a corpus, vicinal.Corpus.read(path or rows)"
            )
        encoder.check_bound()
        order = building.Order(encoder.dim, encoder.settings, keep_text, language, context=encoder.bound)
        if encoder.bound is not None and encoder.attends:
            told = {"cache_bytes": encoder.cache_bytes, "order_matters": encoder.settings["order_matters"]}
            order = replace(order, attention=told)
        if encoder.bound is not None and encoder.has_null:
            order = replace(order, effect=lambda documents: effect(encoder, documents=documents, progress=progress))
        rows = building.encoded_rows(encoder)
        is_new = building.build(Path(path), corpus, rows, order, overwrite=overwrite, progress=progress)
        index = cls(path, encoder)
        index.is_new = is_new
        return index

    @classmethod
    def from_vectors(
        cls,
        path: str | Path,
        ids: Iterable[str],
        vectors: Floats,
        documents: Iterable[Document] | None = None,
        *,
        overwrite: bool = False,
        language: str = "auto",
        progress: Progress = silent,
    ) -> Index:
        """Index the vectors of another model: one per id, in order, with their documents where words matter too.

        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with Index.from_vectors(Path(folder.name) / "v.vicinal", ["a", "b"], np.eye(2, dtype=np.float32)) as index:
        ...     [hit.id for hit in index.search_vector([0.1, 0.9], k=1)]
        ['b']
        >>> folder.cleanup()

        `vectors` may be memory-mapped, and is read in parts; a vector of zeros says that its document is never a hit.
        """
        try:
            vectors = np.asanyarray(vectors)
        except ValueError as error:  # lists of different lengths
            raise InputError(
                f"no table can be made of the vectors ({error}): expected as many numbers in each"
            ) from None
        if vectors.ndim != 2 or not vectors.shape[1] or vectors.dtype.kind != "f":
            raise InputError(
                f"vectors of shape {vectors.shape} and type {vectors.dtype} were given: "
                "expected floats, a row for each document"
            )
        corpus = Corpus.read(_documents_of(ids, documents))
        if len(corpus) != len(vectors) or corpus.counts.duplicated:
            raise InputError(f"{len(vectors)} vectors and {len(corpus)} different ids: expected one vector for each id")
        fingerprint = building.fingerprint_of(vectors, progress)
        order = building.Order(vectors.shape[1], None, documents is not None, language, fingerprint)
        rows = building.given_rows(vectors)
        is_new = building.build(Path(path), corpus, rows, order, overwrite=overwrite, progress=progress)
        index = cls(path)
        index.is_new = is_new
        return index

    @classmethod
    def open(cls, path: str | Path, encoder: Encoder | None = None) -> Index:
        """Open an index; its encoder is loaded when a query first needs it, unless one is given."""
        return cls(path, encoder)

    def close(self) -> None:
        """Let go of the files; what is done with a closed index is an error."""
        for segment in self.segments:
            segment.documents.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of documents."""
        return sum(segment.record.documents - len(segment.dead) for segment in self.segments)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder that the index was built with, by the settings that it was built with."""
        settings = self.manifest.encoder
        if settings is None:
            raise IndexRefused(
                f"{self.path} holds vectors of another model, so it cannot encode a query: search it with "
                "Index.search_vector, or by words with --mode bm25"
            )
        try:
            encoder = load(
                settings["source"],
                precision=settings["precision"],
                pooling=settings["pooling"],
                max_document_tokens=settings["max_document_tokens"],
                max_query_tokens=settings["max_query_tokens"],
            )
        except InputError as error:
            raise IndexRefused(f"{self.path} was built with the model {settings['source']}, but {error}") from error
        return self._checked(encoder)

    def search(self, query: str, k: int = 10, mode: str = "dense", dim: int | None = None) -> list[Hit]:
        """The k best documents for a query, best first."""
        if not isinstance(query, str):
            raise InputError(f"a query of type {type(query).__name__} was given: expected text")
        if not query.strip():
            raise InputError("the query is empty: give it a word")
        if not query.isascii() and any("\ud800" <= character <= "\udfff" for character in query):
            raise InputError("the query holds bytes or escapes that are no text in UTF-8: give it as text")
        if dim is not None and "dense" not in mode:
            raise InputError(f"--dim {dim} shortens vectors, and mode {mode} has none: leave it out")
        if self.manifest.encoder:
            checked_dim(dim, self.manifest.dim)
        return self.hits(self.scorer(mode, dim).top(k)([query]))[0]

    def search_vector(self, vector: Sequence[float] | Floats, k: int = 10, dim: int | None = None) -> list[Hit]:
        """The k best documents for a query's raw vector."""
        if k < 1:
            raise InputError(f"k={k} was asked for: expected a number of hits, 1 or more")
        try:
            given = np.asarray(vector)
            fits = given.ndim == 1 and given.dtype.kind in "fiu" and bool(np.isfinite(given).all() and given.any())
        except ValueError:  # lists of different lengths
            fits = False
        if not fits:
            raise InputError(f"{vector!r:.80} was given: expected one query's finite numbers, not all of them 0")
        wide = given.astype(np.float64)  # where -128 has an absolute value
        raw = (wide / np.abs(wide).max()).astype(np.float32)[None]  # its length does not matter, and might not fit
        return self.hits(self._dense(dim, lambda reader: lambda queries: raw).top(k)([""]))[0]

    def scorer(self, mode: str = "dense", dim: int | None = None) -> Scorer:
        """The scorer of a mode, to compose pipelines with."""

        def encode(reader: Encoder | None) -> Callable[[Sequence[str]], Floats]:
            asked = reader or self.encoder  # the latter to say that there is none
            return lambda queries: asked.encode_raw(queries, "query").vectors

        return scorer_of(mode, lambda: self._dense(dim, encode), self._lexical)

    def hits(self, ranking: Ranking) -> list[list[Hit]]:
        """The documents behind a ranking's rows, for each query."""
        kept = [rows != NO_ROW for rows in ranking.rows]
        return [
            self._found(rows[keep], scores[keep])
            for keep, rows, scores in zip(kept, ranking.rows, ranking.scores, strict=True)
        ]

    def export(self, path: str | Path, *, progress: Progress = silent) -> int:
        """Write the documents to a .jsonl file, or with their vectors to a .parquet one; returns how many they are."""
        if not self._keeps_text:
            raise IndexRefused(f"{self.path} keeps no text, so it cannot export documents: index without --no-text")
        target = Path(path)
        if self.path.resolve() in target.resolve().parents:
            raise InputError(f"{target} lies inside the index, where nothing is ever written: choose another place")
        about = {"model": self.manifest.encoder, "role": "document", "dim": self.manifest.dim, "context": self.context}
        corrections = [self._correction(segment, None) for segment in self.segments]
        return tables.export(target, self.segments, corrections, about, progress=progress)

    def info(self) -> dict[str, Any]:
        """What there is to know of the index, as JSON."""
        manifest, records = self.manifest, [segment.record for segment in self.segments]
        counts = Counter[str]()
        for record in records:
            counts.update(record.counts)
        languages = sorted({record.language for record in records if record.language is not None})
        return {
            "documents": len(self),
            "passages": sum(len(segment) - len(segment.dead_rows) for segment in self.segments),
            "dim": manifest.dim,
            "model": manifest.encoder and dict(manifest.encoder),
            "context": self.context,
            "segments": [
                {"name": r.name, "documents": r.documents, "passages": r.passages, "context": r.context}
                for r in records
            ],
            "bytes": storage.size_of(self.path, manifest),
            "format": manifest.format,
            "counts": dict(counts),
            "request": dict(manifest.request),
            "lexical": ", ".join(languages) or None,
            "refused": [] if self._keeps_text else list(NEED_TEXT),
        }

    @property
    def _keeps_text(self) -> bool:
        return all(segment.record.text for segment in self.segments)

    @cached_property
    def _dead(self) -> Rows:
        """The rows of documents that are no longer part of the index."""
        dead = [start + segment.dead_rows for start, segment in zip(self._starts, self.segments, strict=False)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *dead])

    def against(self, corpus: Corpus, *, progress: Progress = silent) -> dict[str, Any]:
        """How far the context of another corpus, chosen in the same way, moves vectors and rankings from our own."""
        if self.context is None:
            raise IndexRefused(f"{self.path} was encoded without a context, so none can be compared with it")
        if not self._keeps_text:
            raise IndexRefused(f"{self.path} keeps no text, which contexts are compared on: index without --no-text")
        reader = self._reader(self.segments[0])
        assert reader is not None and reader.bound is not None
        asked = reader.bound.request
        made = reader.context(corpus, asked.size, asked.choice, asked.seed, progress)
        if not len(made):
            raise InputError(f"{corpus.name} has no document with a text, so no context can be chosen from it")
        other = reader.with_context(made)
        return effect(reader, other, documents=self.segments[0].documents, progress=progress)

    @property
    def context(self) -> dict[str, Any] | None:
        """What is said of the context that its rows were encoded with; of the first, where there are several."""
        told = (segment.record.context for segment in self.segments)
        return next((dict(context) for context in told if context is not None), None)

    def _reader(self, segment: storage.Segment) -> Encoder | None:
        """The encoder, bound to the context of a segment; None where vectors were handed in."""
        if self.manifest.encoder is None:
            return None
        name = segment.record.name
        if name not in self._readers:  # what a reader derives from its context is worth keeping
            context = segment.context
            bound = self.encoder.without_context() if context is None else self.encoder.with_context(context)
            self._readers[name] = bound
        return self._readers[name]

    def _correction(self, segment: storage.Segment, dim: int | None) -> Tensor | None:
        reader = self._reader(segment) if segment.record.context is not None else None
        return None if reader is None else reader.correction(dim)

    def _dense(self, dim: int | None, encode: Callable[[Encoder | None], Callable[[Sequence[str]], Floats]]) -> Scorer:
        """Each context's rows are compared with queries that were encoded in it, once per context present."""
        if len({segment.record.context and segment.context for segment in self.segments}) <= 1:
            blocks = [block for segment in self.segments for block in segment.dense]
            engine = Exact(blocks, dim, self._dead, self._correction(self.segments[0], dim) if self.segments else None)
            return Dense(encode(self._reader(self.segments[0]) if self.segments else None), engine)
        return Joined(
            [
                Dense(encode(self._reader(s)), Exact(s.dense, dim, s.dead_rows, self._correction(s, dim)))
                for s in self.segments
            ]
        )

    def _lexical(self) -> Lexical:
        try:
            parts = [segment.lexical for segment in self.segments]
        except DamagedIndex:
            if storage.Manifest.read(self.path) != self.manifest:
                raise IndexRefused(f"{self.path} was replaced since it was opened: open it again") from None
            raise
        if all(part is None for part in parts):
            raise IndexRefused(f"{self.path} holds no words to search by: its documents came without text")
        if len(parts) == 1 and parts[0] is not None and not len(self._dead):
            return Lexical(parts[0])
        return Lexical(Pooled(parts, [len(segment) for segment in self.segments], self._dead))

    def _checked(self, encoder: Encoder) -> Encoder:
        known = self.manifest.encoder
        if known is None or known["fingerprint"] != encoder.fingerprint:
            model = known and f"the model {known['name']} ({known['fingerprint'][:12]})"
            raise IndexRefused(
                f"{self.path} holds vectors of {model or 'another model'}, this encoder is {encoder.name} "
                f"({encoder.fingerprint[:12]}): its vectors cannot be compared; give the model that the index was "
                "built with, or rebuild the index"
            )
        if known.get("lane", encoder.settings.get("lane")) != encoder.settings.get("lane"):
            raise IndexRefused(
                f"{self.path} was built with a lane of the constants {known['lane']}, this one has "
                f"{encoder.settings.get('lane')}: rebuild the index"
            )
        if known["max_query_tokens"] != encoder.max_query_tokens:
            raise IndexRefused(
                f"{self.path} reads {known['max_query_tokens']} tokens of a query, this encoder "
                f"{encoder.max_query_tokens}: load it with max_query_tokens={known['max_query_tokens']}"
            )
        for segment in self.segments:
            if encoder.bound is not None and encoder.bound != segment.context:
                theirs = "without a context" if segment.context is None else segment.context.fingerprint[:12]
                raise IndexRefused(
                    f"{self.path} was encoded in another context ({theirs}) than this encoder is bound to "
                    f"({encoder.bound.fingerprint[:12]}): give the encoder without one, and the index binds its own"
                )
        return encoder

    def _found(self, rows: Rows, scores: Floats) -> list[Hit]:
        found: dict[int, Hit] = {}
        places = np.searchsorted(self._starts, rows, side="right") - 1
        for place in set(places.tolist()):
            segment, here = self.segments[place], np.flatnonzero(places == place)
            numbers, starts, stops = segment.passages(rows[here] - self._starts[place])
            try:
                documents = segment.documents.by_numbers(numbers.tolist())
            except IndexError as error:
                raise DamagedIndex(f"{self.path} has passages of documents that are not there: rebuild it") from error
            for i, document, start, stop in zip(here.tolist(), documents, starts, stops, strict=True):
                if not 0 <= start <= stop or (segment.record.text and stop > len(document.text)):
                    raise DamagedIndex(f"{self.path} has a passage that its document does not hold: rebuild it")
                score = round(float(scores[i]), 6) + 0.0  # and never -0.0
                text, span = document.text[start:stop], (int(start), int(stop))
                found[i] = Hit(document.id, score, document.title, text, span, document.metadata)
        return [found[i] for i in range(len(rows))]


def as_json(hit: Hit) -> dict[str, Any]:
    """A hit as the JSON that the command line and the API give."""
    return asdict(hit) | {"span": list(hit.span)}


def _documents_of(ids: Iterable[str], documents: Iterable[Document] | None) -> Iterator[Document]:
    """The documents of vectors, under the ids that were given."""
    if isinstance(ids, str):
        raise InputError(f"one id was given ({ids[:40]!r}): expected a list of them, so put it into brackets")
    of_each = itertools.repeat(Document("")) if documents is None else documents
    missing = object()
    for number, (id, document) in enumerate(itertools.zip_longest(ids, of_each, fillvalue=missing)):
        if documents is None and id is missing:
            return
        if id is missing or not isinstance(document, Document):
            raise InputError(f"vector {number} has no id, or no document: expected one of each for every vector")
        if not isinstance(id, str) or not id:
            raise InputError(f"id {number} is {id!r}: expected text that is not empty")
        if document.id not in ("", id):
            raise InputError(f"id {number} is {id!r}, its document's own {document.id!r}: give both in one order")
        yield Document(str(id), document.title, document.text, document.metadata)
