"""BM25: the words of a text against the words of a query, over the same rows that vectors have.

Texts go in as rows 0..n-1, queries come out as a score for every row, 0 where no term is shared. The one idea: a text
is words, a word becomes a term by the language's stemmer, and everything but the query is known beforehand, so a row's
share of the score of a term t that it holds f times,

    idf(t) * f / (f + k1 * (1 - b + b * length / mean length)),     idf(t) = ln(1 + (n - df + 0.5) / (df + 0.5)),

is computed once and stored, term by term, as bm25s does ("BM25S", arXiv 2407.03618; Lucene's idf). bm25s scores and
its files are what is written, so bm25s can read them too; only the matrix is built here, from arrays instead of a
Python list per document: a fifth of the memory (measured), and the same bytes every time. Frequencies and lengths are
stored beside it, so that the rows of several segments can be scored as one corpus (`Pooled`).

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     bm25 = BM25.build(Path(folder), ["The tenant pays rent", "A landlord repairs roofs", ""])
...     bm25.language, bm25.scores(["renting and paying", "東京"])[0].round(2).astype(str).tolist()
('english', ['0.74', '0.0', '0.0'])
"""

from __future__ import annotations

import json
import operator
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import numpy.typing as npt

from ..errors import DamagedIndex, IndexRefused
from ..progress import Progress, silent
from .base import Floats, Ranking, Rows, best
from .words import RULES, check_language, detect, stemmer_of, stop_words, term_by, words

__all__ = ["BM25", "Pooled", "check_language", "sharing_a_term"]

K1, B = 1.2, 0.75
SETTINGS = "lexical.json"
DATA, INDICES, INDPTR, VOCABULARY, PARAMS = (
    "data.csc.index.npy",  # these five names are bm25s'
    "indices.csc.index.npy",
    "indptr.csc.index.npy",
    "vocab.index.json",
    "params.index.json",
)
FREQUENCIES, LENGTHS = "frequencies.npy", "lengths.npy"
CHUNK_TOKENS = 1 << 21  # words whose postings are sorted together: 50 MB of work space
WORDS_REMEMBERED = 1 << 20  # words whose term is not worked out again: numbers and typos must not fill the memory
SAMPLE_TEXTS = 1000  # what a language is told from


class BM25:
    """BM25 scores of rows 0..n-1: `build` writes them into a folder, `open` maps them into memory.

    `settings` is everything that shapes a term or a score, `language` what words are stemmed by ("none": not at all).
    """

    def __init__(self, engine: bm25s.BM25, settings: dict[str, Any], frequencies: Any, lengths: Any) -> None:
        self._engine = engine
        self.settings = settings
        self.language: str = settings["language"]
        self.frequencies = frequencies  # how often each stored row holds its term
        self.lengths = lengths  # (rows,) in words, stop words left out

    @classmethod
    def build(cls, folder: Path, texts: Iterable[str], *, language: str = "auto", progress: Progress = silent) -> BM25:
        """Index texts, read once, and write closed files into `folder`, which exists and is empty."""
        check_language(language)
        rest = iter(texts)
        sample = list(islice(rest, SAMPLE_TEXTS))
        found = detect(sample) if language == "auto" else language
        left_out = stop_words(found)
        numbers, postings = _Numbers(term_by(found, left_out)), _Postings()
        with progress("bm25", operator.length_hint(texts) or None) as advance:
            for text in chain(sample, rest):
                postings.add(map(numbers.__getitem__, words(text)))
                advance(1)
        rows = len(postings.counts)
        matrix = postings.matrix(len(numbers.terms))
        engine = _engine(matrix.scores, matrix.rows, matrix.starts, rows, numbers.terms)
        settings = {
            "rules": RULES,
            "language": found,
            "asked": language,
            "stemmer": stemmer_of(found),
            "stop_words": left_out,
            "rows": rows,
            "k1": K1,
            "b": B,
        }
        _write_array(folder / DATA, matrix.scores)
        _write_array(folder / INDICES, matrix.rows)
        _write_array(folder / INDPTR, matrix.starts)
        _write_array(folder / FREQUENCIES, matrix.frequencies)
        _write_array(folder / LENGTHS, matrix.lengths)
        _write_json(folder / VOCABULARY, numbers.terms)
        _write_json(folder / PARAMS, _params(engine))
        _write_json(folder / SETTINGS, settings)
        return cls(engine, settings, matrix.frequencies, matrix.lengths)

    @classmethod
    def open(cls, folder: Path) -> BM25:
        """Map what `build` wrote; nothing in the files is ever run, and what does not fit together is refused."""
        try:
            settings = json.loads((folder / SETTINGS).read_bytes())
            if settings["rules"] != RULES:
                raise IndexRefused(
                    f"the words of {folder} were told apart by rules {settings['rules']}, this version knows {RULES}: "
                    "use the version that wrote the index, or rebuild it"
                )
            terms = json.loads((folder / VOCABULARY).read_bytes())
            # np.load would also take archives and pickles; this takes arrays of numbers and nothing else.
            data, indices, indptr, frequencies, lengths = (
                np.lib.format.open_memmap(folder / name, mode="r")
                for name in (DATA, INDICES, INDPTR, FREQUENCIES, LENGTHS)
            )
            check_language(settings["language"])
            fits = (
                [a.dtype.str for a in (data, indices, indptr, lengths)] == ["<f4", "<i4", "<i8", "<i4"]
                and frequencies.dtype.kind == "u"
                and data.shape == indices.shape == frequencies.shape == (indptr[-1],)
                and indptr.shape == (len(terms) + 1,)
                and indptr[0] == 0
                and bool((np.diff(indptr) >= 0).all())
                and lengths.shape == (settings["rows"],)
                and min(settings["k1"], settings["b"]) >= 0
                and isinstance(settings["stop_words"], list)
                and all(isinstance(word, str) for word in settings["stop_words"])
            )
            engine = _engine(data, indices, indptr, int(settings["rows"]), dict(terms))
        except IndexRefused:
            raise
        except Exception as error:  # damaged bytes come out of json and numpy as errors of every kind
            raise DamagedIndex(f"the BM25 files in {folder} cannot be read ({error}): rebuild the index") from error
        if not fits:
            raise DamagedIndex(f"the BM25 files in {folder} do not fit together: rebuild the index")
        return cls(engine, settings, frequencies, lengths)

    def __len__(self) -> int:
        return int(self.settings["rows"])

    def scores(self, queries: Sequence[str]) -> Floats:
        """The score of every row, (queries, rows): 0 where no term is shared; a term asked for twice counts twice."""
        result = np.zeros((len(queries), len(self)), dtype=np.float32)
        for scores, query in zip(result, queries, strict=True):
            with _damage():
                numbers = self._engine.get_tokens_ids(self.terms(words(query)))
                if numbers:
                    scores[:] = self._engine.get_scores_from_ids(numbers)
        return result

    def top(self, queries: Sequence[str], k: int) -> Ranking:
        """The k best rows of every query, among those that share a term with it."""
        return best(sharing_a_term(self.scores(queries)), k)

    def terms(self, found: Iterable[str]) -> list[str]:
        """The terms of words; an empty one stands for a stop word."""
        return list(map(term_by(self.language, self.settings["stop_words"]), found))

    def postings(self, term: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The rows that hold a term, and how often each does."""
        with _damage():
            number = self._engine.vocab_dict.get(term)
            if number is None:
                return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64)
            column = slice(*self._engine.scores["indptr"][number : number + 2])
            rows = self._engine.scores["indices"][column].astype(np.int64)
            if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
                raise IndexError(f"rows {rows.min()} to {rows.max()}")
            return rows, self.frequencies[column].astype(np.float64)


class Pooled:
    """BM25 over several segments as if their rows were one corpus: what each counts is added up.

    A part that is None has rows, but no words. Rows that are `dead` are not counted, and are no hits.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b, tempfile.TemporaryDirectory() as c:
    ...     texts = ["The tenant pays rent", "A landlord repairs roofs", "Rent is due in May"]
    ...     whole = BM25.build(Path(a), texts, language="english")
    ...     one, two = BM25.build(Path(b), texts[:2]), BM25.build(Path(c), texts[2:])
    ...     bool((Pooled([one, two], [2, 1]).scores(["rent"]) == whole.scores(["rent"])).all())
    True
    """

    def __init__(self, parts: Sequence[BM25 | None], rows: Sequence[int], dead: Rows | None = None) -> None:
        settings = [part.settings for part in parts if part is not None]
        if len({(each["k1"], each["b"]) for each in settings}) != 1:
            raise IndexRefused("the segments of this index weigh words differently: rebuild it")
        k1, b = settings[0]["k1"], settings[0]["b"]
        self.parts = parts
        self.starts = np.cumsum([0, *rows])
        self.live = np.ones(self.starts[-1], dtype=bool)
        self.live[[] if dead is None else dead] = False
        lengths = [np.zeros(n) if part is None else part.lengths for part, n in zip(parts, rows, strict=True)]
        length = np.where(self.live, np.concatenate(lengths), 0).astype(np.float64)
        self.norm = _norm(length, int(self.live.sum()), k1, b)

    def __len__(self) -> int:
        return len(self.live)

    def scores(self, queries: Sequence[str]) -> Floats:
        """The score of every row, as `BM25.scores`; minus infinity for those that are dead."""
        result = np.zeros((len(queries), len(self)), dtype=np.float32)
        n = int(self.live.sum())
        for scores, query in zip(result, queries, strict=True):
            found = words(query)
            # Each part has its own language: what is counted together is what one word of the query is in each.
            terms = [[""] * len(found) if part is None else part.terms(found) for part in self.parts]
            for of_each in zip(*terms, strict=True):
                rows, f = self._postings(of_each)
                scores[rows] += (_idf(n, len(rows)) * f / (f + self.norm[rows])).astype(np.float32)
            scores[~self.live] = -np.inf
        return result

    def top(self, queries: Sequence[str], k: int) -> Ranking:
        """The k best rows of every query, among those that share a term with it."""
        return best(sharing_a_term(self.scores(queries)), k)

    def _postings(self, term_of_each: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        parts = zip(self.starts, self.parts, term_of_each, strict=False)
        found = [(start, *part.postings(term)) for start, part, term in parts if part is not None]
        rows = np.concatenate([start + rows for start, rows, _ in found])
        f = np.concatenate([frequencies for _, _, frequencies in found])
        return rows[self.live[rows]], f[self.live[rows]]


def sharing_a_term(scores: Floats) -> Floats:
    """The same scores, minus infinity where a row shares no term with the query."""
    return np.where(scores == 0, np.float32(-np.inf), scores)


@contextmanager
def _damage() -> Iterator[None]:
    """What damaged files make numpy and bm25s say."""
    try:
        yield
    except (IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise DamagedIndex(
            f"the BM25 files name rows or terms that are not there ({error}): rebuild the index"
        ) from None


class _Numbers(dict[str, int]):
    """From a word to the number of its term, -1 for none; a word is stemmed when it is first met."""

    def __init__(self, term_of: Callable[[str], str]) -> None:
        super().__init__()
        self.term_of = term_of
        self.terms: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        if len(self) == WORDS_REMEMBERED:
            self.clear()
        term = self.term_of(word)
        number = self[word] = self.terms.setdefault(term, len(self.terms)) if term else -1
        return number


class _Postings:
    """Which term stands how often in which row, gathered row by row, twelve bytes a piece."""

    def __init__(self) -> None:
        self.tokens, self.counts, self.start = array("i"), array("i"), 0  # tokens since row `start`; tokens per row
        self.chunks: list[tuple[npt.NDArray[np.int32], ...]] = []  # (terms, rows, frequencies), by term, then by row

    def add(self, numbers: Iterable[int]) -> None:
        before = len(self.tokens)
        self.tokens.extend(numbers)
        self.counts.append(len(self.tokens) - before)
        if len(self.tokens) >= CHUNK_TOKENS:
            self._sort()

    def _sort(self) -> None:
        rows = np.arange(self.start, len(self.counts), dtype=np.int64)
        counts = np.array(self.counts[self.start :], dtype=np.int32)
        tokens = np.array(self.tokens, dtype=np.int64)
        keys, frequencies = np.unique((tokens << 32 | np.repeat(rows, counts))[tokens >= 0], return_counts=True)
        self.chunks.append(tuple(part.astype(np.int32) for part in (keys >> 32, keys & 0xFFFFFFFF, frequencies)))
        self.tokens, self.start = array("i"), len(self.counts)

    def matrix(self, terms: int) -> _Matrix:
        """A column per term, in compressed form."""
        self._sort()
        n = len(self.counts)
        length, df, most = np.zeros(n, dtype=np.int64), np.zeros(terms, dtype=np.int64), 1
        for term, row, f in self.chunks:
            df += np.bincount(term, minlength=terms)
            length += np.bincount(row, weights=f, minlength=n).astype(np.int64)
            most = max(most, int(f.max(initial=0)))
        idf, norm = _idf(n, df), _norm(length, n, K1, B)
        starts = np.concatenate([[0], np.cumsum(df)])
        scores, rows = np.empty(starts[-1], dtype=np.float32), np.empty(starts[-1], dtype=np.int32)
        frequencies = np.empty(starts[-1], dtype=np.min_scalar_type(most))
        free = starts[:-1].copy()  # the next free place of every column
        for term, row, f in self._taken():
            here = np.bincount(term, minlength=terms)
            place = np.arange(len(term)) + (free - (np.cumsum(here) - here))[term]
            scores[place] = idf[term] * f / (f + norm[row])
            rows[place] = row
            frequencies[place] = f
            free += here
        return _Matrix(scores, rows, starts, frequencies, length.astype(np.int32))

    def _taken(self) -> Iterator[tuple[npt.NDArray[np.int32], ...]]:
        """The chunks in order, each let go of before the next."""
        self.chunks.reverse()
        while self.chunks:
            yield self.chunks.pop()


@dataclass(frozen=True)
class _Matrix:
    scores: npt.NDArray[np.float32]  # column by column
    rows: npt.NDArray[np.int32]  # of each score
    starts: npt.NDArray[np.int64]  # (terms + 1,) where each column starts, and the last one ends
    frequencies: npt.NDArray[Any]  # of each score
    lengths: npt.NDArray[np.int32]  # (rows,)


def _idf(n: int, df: Any) -> Any:
    return np.log(1 + (n - df + 0.5) / (df + 0.5))


def _norm(length: npt.NDArray[Any], n: int, k1: float, b: float) -> npt.NDArray[np.float64]:
    """k1 * (1 - b + b * length / mean length), the mean over n rows."""
    norm: npt.NDArray[np.float64] = k1 * (1 - b + b * length / max(length.sum() / max(n, 1), 1e-9))
    return norm


def _write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a .npy file; not by np.save, which where the disk is full may leave a shorter one without a word (seen)."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def _engine(data: Any, indices: Any, indptr: Any, rows: int, terms: dict[str, int]) -> bm25s.BM25:
    engine = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
    engine.scores = {"data": data, "indices": indices, "indptr": indptr, "num_docs": rows}
    engine.vocab_dict = terms
    engine.nonoccurrence_array = None  # only BM25L and BM25+ have one
    return engine


def _params(engine: bm25s.BM25) -> dict[str, Any]:
    """What bm25s' own `load` wants to know."""
    names = ("k1", "b", "delta", "method", "idf_method", "dtype", "int_dtype", "backend")
    params = {name: getattr(engine, name) for name in names}
    return params | {"num_docs": engine.scores["num_docs"], "version": bm25s.__version__}
