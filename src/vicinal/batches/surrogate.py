"""Pairs -> surrogate vectors: rough ones, made once, only to see which pairs are neighbours.

Two kinds, with one silhouette (`record` names it in the cache, `fit` looks at a domain and gives a function from texts
to vectors): `Words`, TF-IDF or BM25 weights through a truncated singular value decomposition, which needs no model and
no accelerator, and `Model`, any function from texts to vectors. Both are fitted domain by domain: within a hospital's
archive the dimensions should tell patients apart, not medicine from law. What was computed is kept on disk, 16 bit and
memory-mapped, so ten million pairs take 5 GB of disk at 128 dimensions, and next to no memory.

>>> texts = ["cats purr", "a cat purrs softly", "stars shine", "the stars are shining"]
>>> vectors = Words(dim=2).fit_texts(texts)(texts, "document")
>>> (vectors @ vectors.T).round(decimals=1).abs().tolist()
[[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]]
"""

from __future__ import annotations

import hashlib
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from .. import files
from ..encoder import Encoder
from ..errors import InputError
from ..evaluation.cache import cache_folder
from ..index.words import RULES, detect, stop_words, term_by, words
from ..progress import Advance, Progress, silent
from ..vectors import unit
from .base import Halves, Pairs

Role = Literal["query", "document"]
Embed = Callable[[Sequence[str], Role], Tensor]  # texts and their role -> (texts, dim)

WEIGHTS = ("tfidf", "bm25")
BUCKETS = 1 << 18  # a word's column is its hash: no vocabulary to build, and texts stream
WORDS_REMEMBERED = 1 << 20
LANGUAGE_TEXTS = 1000  # what a domain's language is told from
OVERSAMPLED, POWER_STEPS = 10, 2  # of the randomised decomposition: Halko, Martinsson and Tropp, arXiv 0909.4061
K1, B = 1.2, 0.75
PAIRS_AT_ONCE = 8192
LAYOUT = 1  # of a cached file
BLOCK_BYTES = 1 << 24


class Surrogate(Protocol):
    """A way to make surrogate vectors."""

    @property
    def dim(self) -> int: ...

    @property
    def record(self) -> dict[str, Any]:
        """All that shapes the vectors, as JSON."""
        ...

    def fit(self, pairs: Pairs, rows: range) -> Embed:
        """Look at the pairs of one domain."""
        ...


@dataclass(frozen=True)
class Words:
    """The words that texts hold, weighted by how rare they are, in `dim` dimensions."""

    dim: int = 128
    weights: str = "tfidf"
    most_texts: int = 100_000  # that are looked at, half of them queries
    seed: int = 0

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise InputError(f"words cannot be weighted by {self.weights!r}: take one of {', '.join(WEIGHTS)}")
        if self.dim < 1 or self.most_texts < 1:
            raise InputError(f"{self.dim} dimensions of {self.most_texts} texts were asked for: expected 1 or more")

    @property
    def record(self) -> dict[str, Any]:
        return {"kind": "words", "rules": RULES, **asdict(self)}

    def fit(self, pairs: Pairs, rows: range) -> Embed:
        return self.fit_texts([text for texts in sampled(pairs, rows, self.most_texts, self.seed) for text in texts])

    def fit_texts(self, texts: Sequence[str]) -> Embed:
        """Count the words of texts, and find the `dim` directions that tell them apart best."""
        language = detect(texts[:: max(1, len(texts) // LANGUAGE_TEXTS)])
        to_column = columns(language)
        seen = _counted(texts, to_column)
        texts_with = np.bincount(seen.columns, minlength=BUCKETS)
        known = np.flatnonzero(texts_with)
        column_of = np.full(BUCKETS, -1)
        column_of[known] = np.arange(len(known))
        n, df = len(texts), texts_with[known]
        idf = np.log((1 + n) / (1 + df)) + 1 if self.weights == "tfidf" else np.log1p((n - df + 0.5) / (df + 0.5))
        mean_length = max(1.0, seen.values.sum() / max(1, n))

        def weighted(counted: Sparse) -> Sparse:
            columns = column_of[counted.columns]
            f, rows = counted.values, counted.rows
            if self.weights == "tfidf":
                values = 1 + np.log(f)
            else:
                lengths = np.bincount(rows, weights=f, minlength=counted.shape[0])[rows]
                values = f * (K1 + 1) / (f + K1 * (1 - B + B * lengths / mean_length))
            values = np.where(columns >= 0, values * idf[columns] if len(known) else 0.0, 0.0)
            norms = np.sqrt(np.bincount(rows, weights=values**2, minlength=counted.shape[0]))
            values /= np.maximum(norms, 1e-30)[rows]
            return Sparse(counted.starts, np.maximum(columns, 0), values.astype(np.float32), max(1, len(known)))

        directions = truncated_svd(weighted(seen), self.dim, self.seed)

        def embed(texts: Sequence[str], role: Role) -> Tensor:
            return unit(weighted(_counted(texts, to_column)).times(directions))

        return embed


@dataclass(frozen=True)
class Model:
    """Any function from texts to vectors; more than `dim` dimensions are brought down to the `dim` that tell most."""

    embed: Embed
    name: str  # what tells it from others, in the cache: a fingerprint
    dim: int = 128
    most_texts: int = 100_000
    seed: int = 0

    @classmethod
    def of(cls, encoder: Encoder, dim: int = 128) -> Model:
        """An encoder, in the context that it is bound to."""

        def embed(texts: Sequence[str], role: Role) -> Tensor:
            encode = encoder.encode_queries if role == "query" else encoder.encode_documents
            return torch.from_numpy(encode(texts).dense)

        bound = encoder.bound and encoder.bound.fingerprint
        return cls(embed, files.fingerprint_of([encoder.settings, bound]), min(dim, encoder.dim))

    @property
    def record(self) -> dict[str, Any]:
        return {"kind": "model", "name": self.name, "dim": self.dim, "texts": self.most_texts, "seed": self.seed}

    def fit(self, pairs: Pairs, rows: range) -> Embed:
        queries, documents = sampled(pairs, rows, self.most_texts, self.seed)
        if not queries or (full := self._embedded(queries[:1], "query").shape[1]) == self.dim:
            return self._embedded
        if full < self.dim:
            raise InputError(f"{self.dim} dimensions were asked for, but the model's vectors have {full}")
        moment = torch.zeros(full, full, dtype=torch.float64)
        sides: list[tuple[Role, list[str]]] = [("query", queries), ("document", documents)]
        for role, texts in sides:
            for start in range(0, len(texts), PAIRS_AT_ONCE):
                part = self._embedded(texts[start : start + PAIRS_AT_ONCE], role).double()
                moment += part.T @ part
        directions = torch.linalg.eigh(moment).eigenvectors[:, -self.dim :].float()  # (full, dim)
        return lambda texts, role: unit(self._embedded(texts, role) @ directions)

    def _embedded(self, texts: Sequence[str], role: Role) -> Tensor:
        vectors = unit(self.embed(texts, role))
        if vectors.shape[0] != len(texts) or not torch.isfinite(vectors).all():
            raise InputError(f"the model gave {tuple(vectors.shape)} vectors of {len(texts)} texts, or not numbers")
        return vectors


def surrogate_of(asked: str, load: Callable[[str], Encoder]) -> Surrogate:
    """What a name stands for: "tfidf", "bm25", or a model that `load` finds.

    >>> import vicinal
    >>> surrogate_of("bm25", vicinal.load).record["weights"], surrogate_of("tiny", vicinal.load).dim
    ('bm25', 64)
    """
    return Words(weights=asked) if asked in WEIGHTS else Model.of(load(asked))


def sampled(pairs: Pairs, rows: range, most: int, seed: int) -> tuple[list[str], list[str]]:
    """Queries and documents of a domain, half as many of each as `most` texts, drawn evenly."""
    count = min(len(rows), max(1, most // 2))
    drawn = np.random.default_rng(seed).choice(len(rows), size=count, replace=False) + rows.start
    chosen = np.sort(drawn).tolist()
    return pairs.column("query", chosen), pairs.column("document", chosen)


@dataclass(frozen=True)
class Vectors:
    """The surrogate vectors of pairs, domain by domain; `Vectors.of` finds them on disk or makes them."""

    of_domain: Mapping[str, Halves]
    record: Mapping[str, Any]  # of the surrogate
    pairs: str  # the pairs' fingerprint

    @classmethod
    def of(cls, pairs: Pairs, surrogate: Surrogate, folder: Path | None = None, progress: Progress = silent) -> Vectors:
        """One file a domain, in `folder`, else in the user's cache; one that is not as it was written is made anew."""
        folder = folder or cache_folder() / "surrogates"
        folder.mkdir(parents=True, exist_ok=True)
        made = {}
        with progress("surrogate vectors", len(pairs)) as advance:
            for name, rows in pairs.domains.items():
                key = files.fingerprint_of(
                    [LAYOUT, pairs.fingerprint, name, rows.start, rows.stop, dict(surrogate.record)]
                )
                path = folder / f"{key[:24]}.npy"
                found = _read(path, key, (len(rows), 2, surrogate.dim), name)
                if found is None:
                    _write(path, key, pairs, rows, surrogate, advance)
                    found = _read(path, key, (len(rows), 2, surrogate.dim), name)
                else:
                    advance(len(rows))
                if found is None:
                    raise InputError(f"{path} was changed while it was read: is another program writing there?")
                made[name] = found
        return cls(made, surrogate.record, pairs.fingerprint)


def _write(path: Path, key: str, pairs: Pairs, rows: range, surrogate: Surrogate, advance: Advance) -> None:
    """An array as numpy writes it, and behind it, where numpy does not look, the key and the hash of all before."""
    embed = surrogate.fit(pairs, rows)
    with files.writing(path) as partial:
        shape = (len(rows), 2, surrogate.dim)
        with partial.open("wb") as file:
            header = {"descr": "<f2", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, len(rows), PAIRS_AT_ONCE):
                part = rows[start : start + PAIRS_AT_ONCE]
                documents = embed(pairs.column("document", part), "document")
                queries = embed(pairs.column("query", part), "query")
                file.write(torch.stack([documents, queries], dim=1).half().numpy().astype("<f2").tobytes())
                advance(len(part))
        ending = (key + files.sha256_of(partial)).encode()
        with partial.open("ab") as file:
            file.write(ending)


def _read(path: Path, key: str, shape: tuple[int, ...], domain: str) -> Halves | None:
    """The array of a file, memory-mapped; None where there is none, or another one's, or a damaged one."""
    if not path.exists():
        return None
    length, digest = path.stat().st_size - 2 * 64, hashlib.sha256()
    with path.open("rb") as file:
        while length > 0 and (block := file.read(min(BLOCK_BYTES, length))):
            digest.update(block)
            length -= len(block)
        ending = file.read()
    if ending[:64] != key.encode():
        what = "are another's"
    elif ending[64:] != digest.hexdigest().encode():
        what = "are damaged"
    elif not shape[0]:
        return np.zeros(shape, dtype=np.float16)  # nothing can be mapped
    else:
        vectors: Halves = np.load(path, mmap_mode="r", allow_pickle=False)
        if vectors.shape == shape:
            return vectors
        what = f"are {vectors.shape} numbers, not {shape}"
    warnings.warn(f"the vectors kept of domain {domain} {what} ({path}): they are made anew", stacklevel=3)
    return None


@dataclass(frozen=True)
class Sparse:
    """Rows of few values: row i holds `values[starts[i]:starts[i + 1]]` in `columns[...]`, of `width` columns."""

    starts: Any  # (rows + 1,) int64
    columns: Any  # (values,) int64
    values: Any  # (values,) float
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.starts) - 1, self.width

    @property
    def rows(self) -> Any:
        """The row of every value."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def transposed(self) -> Sparse:
        order = np.argsort(self.columns, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(self.columns, minlength=self.width))])
        return Sparse(starts, self.rows[order], self.values[order], self.shape[0])

    def times(self, dense: Tensor) -> Tensor:
        """This matrix times a dense one, (rows, columns of the dense one): bags of its rows, weighted and summed."""
        return torch.nn.functional.embedding_bag(
            torch.from_numpy(self.columns),
            dense,
            torch.from_numpy(self.starts),
            mode="sum",
            per_sample_weights=torch.from_numpy(self.values),
            include_last_offset=True,
        )


def truncated_svd(matrix: Sparse, dim: int, seed: int = 0) -> Tensor:
    """The first right singular vectors of a sparse matrix, (columns, dim); zeros where its rank is lower than dim.

    Randomised subspace iteration: exact to a few per cent where the spectrum is flat, and there it matters least.
    """
    rank = min(dim + OVERSAMPLED, *matrix.shape)
    transposed = matrix.transposed
    start = np.random.default_rng(seed).standard_normal((matrix.shape[1], rank), dtype=np.float32)
    left = torch.linalg.qr(matrix.times(torch.from_numpy(start))).Q
    for _ in range(POWER_STEPS):
        right = torch.linalg.qr(transposed.times(left)).Q
        left = torch.linalg.qr(matrix.times(right)).Q
    core = transposed.times(left)  # (columns, rank): its left singular vectors are the matrix's right ones
    squares, turns = torch.linalg.eigh((core.T @ core).double())
    kept = (squares > 1e-9 * squares.max()).nonzero()[:, 0].flip(0)[:dim] if rank else torch.zeros(0, dtype=torch.long)
    directions = torch.zeros(matrix.shape[1], dim)
    directions[:, : len(kept)] = (core.double() @ (turns[:, kept] / squares[kept].sqrt())).float()
    return directions


def columns(language: str) -> Callable[[str], int]:
    """From a word to its column, by the hash of its term; -1 for a stop word."""
    term_of, remembered = term_by(language, stop_words(language)), dict[str, int]()

    def bucket(word: str) -> int:
        found = remembered.get(word)
        if found is None:
            if len(remembered) >= WORDS_REMEMBERED:
                remembered.clear()
            term = term_of(word).encode("utf-8", "surrogatepass")
            # Not Python's own hash, which is another one in every process.
            short = int.from_bytes(hashlib.blake2b(term, digest_size=4).digest(), "little") % BUCKETS
            found = remembered[word] = short if term else -1
        return found

    return bucket


def _counted(texts: Sequence[str], to_column: Callable[[str], int]) -> Sparse:
    """How often each text holds the words of each bucket."""
    starts, columns, values = array("q", [0]), array("q"), array("d")
    for text in texts:
        counts = Counter(map(to_column, words(text)))
        counts.pop(-1, None)
        columns.extend(counts.keys())
        values.extend(counts.values())
        starts.append(len(columns))
    return Sparse(
        np.array(starts, dtype=np.int64), np.array(columns, dtype=np.int64), np.array(values, dtype=np.float64), BUCKETS
    )
