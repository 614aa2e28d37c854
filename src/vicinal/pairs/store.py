"""Training pairs and their domains: any rows of them, at once, from memory that stays flat.

Files, folders or rows enter; a `Pairs` leaves that gives any of them back by number. The one idea: rows are read once,
in whatever order they come, into record batches of one Arrow file in a temporary folder, which is mapped and goes with
the `Pairs`. Inside a batch rows lie by domain, and a short table of such runs is all that it takes to number them
through: domains by name, inside of each the order of reading. Nothing is ever sorted, and no text stays in memory.

    row       has `query` and `document` (text), and may have `negatives` (texts; or `negative`, one text), `scores` (a
              teacher's: of the document, then of each negative) and `domain`; other keys are not looked at
    domain    that of the row, else the name of its file without suffixes, else ""
    empty     a row whose query or document is nothing but whitespace is counted and left out, never trained on
    bad row   refuses the file and names its line; with `skip_bad_rows` it is counted and left out
    damage    a container that ends early or decodes wrongly is refused always, and so are no pairs at all

>>> rows = [
...     {"query": "do cats purr", "document": "Cats purr when they are content.", "domain": "pets"},
...     {"query": "who pays", "document": "The tenant pays.", "negatives": ["Nobody does."], "domain": "law"},
...     {"query": " ", "document": "Nobody asked.", "domain": "pets"},
... ]
>>> pairs = Pairs.read(rows)
>>> print(pairs.counts)
2 pairs in 2 domains from 3 rows: 1 row with an empty query or document left out; 1 with negatives
>>> pairs.domains, pairs.take([1, 0])[0].query
({'law': range(0, 1), 'pets': range(1, 2)}, 'do cats purr')
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import ipc

from ..corpus import BadRow, Needs, Rows, Tally, checked_text, listed, name_and_kind, reader_of_file
from ..documents import plural
from ..errors import CorpusError, InputError, PairsError
from ..files import explain, fingerprint_of, remove
from ..progress import Advance, Progress, silent
from .overlap import hash64

KEPT_FOR_CHOOSING = (
    "code_ruby",
    "commits_bitcoin",
    "docs_terraform_azure",
    "dnd_srd",
    "law_dc_code",
    "openstax_exercises",
    "sigma_rules",
    "stackexchange_small",
    "stacks_project",
    "suttas_title_text",
)  # domains that constants and checkpoints are chosen by, so that no training may see them: docs/pairs.md

KINDS = (".jsonl", ".ndjson", ".json", ".parquet")  # the containers that can hold lists of negatives
NEEDS: Needs = (("query",), ("document",))
BATCH_CHARACTERS = 1 << 20  # gathered in memory before they are written: flat, and few enough batches of 10 M pairs
ROW_CHARACTERS = 64  # what a row counts for beside its texts, so that many rows of few letters do not add up
BLOCK_ROWS = 512  # read at a time when all are read

SCHEMA = pyarrow.schema(
    {
        "query": pyarrow.large_string(),
        "document": pyarrow.large_string(),
        "negatives": pyarrow.large_list(pyarrow.large_string()),
        "scores": pyarrow.large_list(pyarrow.float64()),
    }
)

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and a document that answers it; perhaps documents that do not, and what a teacher thinks of each."""

    query: str
    document: str
    negatives: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()  # a teacher's, of the document first and then of the negatives; or none
    domain: str = ""


@dataclass(frozen=True)
class PairCounts:
    """What became of the rows: rows = pairs + all empty + skipped + all left out.

    >>> print(PairCounts(rows=9, pairs=4, domains=2, empty={"a": 1}, skipped=1, left_out={"b": 3}))
    4 pairs in 2 domains from 9 rows: 1 row with an empty query or document left out, 1 row skipped,
    3 rows of b left out
    """

    rows: int
    pairs: int
    domains: int
    empty: Mapping[str, int] = field(default_factory=dict)  # by domain: rows whose query or document is empty
    skipped: int = 0  # rows that could not be read
    left_out: Mapping[str, int] = field(default_factory=dict)  # by domain: what was asked not to be read
    with_negatives: int = 0  # pairs
    with_scores: int = 0  # pairs
    ignored_files: int = 0  # files of other kinds, and folders, in the folder

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        remarks = [
            (sum(self.empty.values()), "row", "with an empty query or document left out"),
            (self.skipped, "row", "skipped"),
            *((count, "row", f"of {domain} left out") for domain, count in self.left_out.items()),
            (self.ignored_files, "file", "of another kind ignored"),
        ]
        told = ", ".join(f"{plural(count, noun)} {what}" for count, noun, what in remarks if count)
        used = [(self.with_negatives, "negatives"), (self.with_scores, "scores")]
        has = "; ".join(f"{count:,} with {what}" for count, what in used if count)
        whole = f"{plural(self.pairs, 'pair')} in {plural(self.domains, 'domain')} from {plural(self.rows, 'row')}"
        return whole + (told and f": {told}") + (has and f"; {has}")


class Pairs:
    """Training pairs, numbered through by domain; see `Pairs.read`."""

    def __init__(
        self, name: str, path: Path, runs: Sequence[tuple[str, int, int]], counts: PairCounts, fingerprint: str
    ) -> None:
        self.name, self.counts, self.fingerprint = name, counts, fingerprint
        mapped = pyarrow.memory_map(str(path))
        reader = ipc.open_file(mapped)
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self._batch_starts = _starts([len(batch) for batch in self._batches])
        runs = sorted(runs, key=lambda run: run[0])  # stable, so inside a domain they stay as they were written
        self._run_places = np.array([place for _, place, _ in runs], dtype=np.int64)
        self._run_rows = _starts([length for _, _, length in runs])
        self._run_domains = [domain for domain, _, _ in runs]
        self.domains: Mapping[str, range] = _ranges((domain, length) for domain, _, length in runs)
        weakref.finalize(self, _discard, mapped, path.parent)

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str] | Iterable[Any],
        *,
        leave_out: Collection[str] = (),
        skip_bad_rows: bool = False,
        progress: Progress = silent,
    ) -> Pairs:
        """Pairs from a file, a folder of files, rows, or a Hugging Face dataset; domains in `leave_out` are not kept.

        A file is .jsonl (.ndjson, .json of one object per line), also .gz or .zst, or .parquet. Of a folder the files
        that lie in it are read, in the order of their names, hidden ones left out. Rows are mappings or `Pair`s.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("law", "pets"):
        ...         _ = (Path(folder) / f"{name}.jsonl").write_text('{"query": "q", "document": "d"}', encoding="utf-8")
        ...     Pairs.read(folder, leave_out=["law"]).take([0])
        [Pair(query='q', document='d', negatives=(), scores=(), domain='pets')]
        """
        if isinstance(leave_out, str):
            raise InputError(f"one text was given to leave out ({leave_out!a}): expected a list of domains")
        name, parts, ignored_files = _parts(source)
        folder = Path(tempfile.mkdtemp(prefix="vicinal-"))
        try:
            with progress("read", None) as advance:
                spool = _Spool(folder / "pairs.arrow", leave_out)
                with spool.writer:
                    for part in parts:
                        spool.add(part, skip_bad_rows, advance)
                    spool.flush()
            counts = spool.counts(ignored_files)
            if not counts.pairs:
                bad = f", the first bad one: {spool.first_bad}" if spool.first_bad else ""
                raise PairsError(f"{name} holds no pairs ({counts}{bad}): give at least one")
            return cls(name, spool.path, spool.runs, counts, spool.fingerprint())
        except BaseException:
            remove(folder)
            raise

    def __repr__(self) -> str:
        return f"Pairs({self.name!r})"

    def check_left_out(self, names: Iterable[str]) -> None:
        """Refuse names of domains to leave out that stood at no row: they may be misspelt."""
        for name in names:
            if name not in self.counts.left_out:
                near = get_close_matches(name, self.domains, n=1)
                hint = f"did you mean {near[0]!a}?" if near else f"its domains are {listed(self.domains)}"
                raise PairsError(f"{self.name} has no domain {name!a} to leave out: {hint}")

    def __len__(self) -> int:
        return self.counts.pairs

    def __iter__(self) -> Iterator[Pair]:
        for start in range(0, len(self), BLOCK_ROWS):
            yield from self.take(range(start, min(start + BLOCK_ROWS, len(self))))

    def take(self, rows: Sequence[int] | Integers) -> list[Pair]:
        """The pairs of these rows, in the order given; a row may be given twice."""
        numbers = self._checked(rows)
        columns = [self._values(name, numbers) for name in SCHEMA.names]
        domains = [self._run_domains[run] for run in self._runs_of(numbers)]
        return [
            Pair(query, document, tuple(negatives), tuple(scores), domain)
            for query, document, negatives, scores, domain in zip(*columns, domains, strict=True)
        ]

    def column(self, name: Literal["query", "document"], rows: Sequence[int] | Integers) -> list[str]:
        """The queries or the documents of these rows, in the order given."""
        return self._values(name, self._checked(rows))

    def shuffled(self, seed: int, epoch: int) -> Integers:
        """All rows in an order that seed and epoch decide: the same on every machine; resume by slicing.

        The order is that of the 64-bit numbers which SplitMix64 gives to rows 0, 1, ... from a start that is a hash of
        seed and epoch. No two are equal, so no way of sorting can change it. It takes 16 bytes a row while it is made.

        >>> pairs = Pairs.read({"query": "q", "document": str(n)} for n in range(8))
        >>> pairs.shuffled(0, epoch=0).tolist(), pairs.shuffled(0, epoch=1).tolist()
        ([...], [...])
        """
        start = np.uint64(hash64(f"{seed} {epoch}"))
        numbers = np.arange(1, len(self) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            numbers ^= numbers >> np.uint64(shift)
            numbers *= np.uint64(factor)
        return np.argsort(numbers ^ (numbers >> np.uint64(31)))

    def _checked(self, rows: Sequence[int] | Integers) -> Integers:
        numbers = np.asarray(rows)
        if len(numbers) and numbers.dtype.kind not in "iu":
            raise TypeError(f"rows were given as {numbers.dtype}: expected integers")
        for outside in numbers[(numbers < 0) | (numbers >= len(self))][:1]:
            raise IndexError(f"there is no row {outside}: {self.name} holds {plural(len(self), 'pair')}")
        return numbers.astype(np.int64)

    def _runs_of(self, rows: Integers) -> Integers:
        return np.searchsorted(self._run_rows, rows, side="right") - 1

    def _values(self, name: str, rows: Integers) -> list[Any]:
        """What a column holds at these rows; each batch is asked once for all that it has of them."""
        runs = self._runs_of(rows)
        places = self._run_places[runs] + rows - self._run_rows[runs]
        batches = np.searchsorted(self._batch_starts, places, side="right") - 1
        order = np.argsort(batches, kind="stable")
        values: list[Any] = [None] * len(rows)
        for asked in np.split(order, np.flatnonzero(np.diff(batches[order])) + 1) if len(rows) else ():
            batch = batches[asked[0]]
            found = self._batches[batch].column(name).take(pyarrow.array(places[asked] - self._batch_starts[batch]))
            for place, value in zip(asked.tolist(), found.to_pylist(), strict=True):
                values[place] = value
        return values


def pair_of(row: object, domain: str = "") -> Pair:
    """The pair that a row stands for, of `domain` where the row names none.

    >>> pair_of({"query": "who pays", "document": "The tenant.", "negative": "Nobody.", "scores": [1, 0.5]}, "law")
    Pair(query='who pays', document='The tenant.', negatives=('Nobody.',), scores=(1.0, 0.5), domain='law')
    >>> pair_of({"query": "who pays", "document": "The tenant.", "scores": [1, 0.5]})
    Traceback (most recent call last):
        ...
    vicinal.corpus.BadRow: holds 2 scores where 1 was expected: the document's, then one for each of 0 negatives
    """
    if isinstance(row, BadRow):
        raise row
    if isinstance(row, Pair):
        row = asdict(row)
    if not isinstance(row, Mapping):
        expected = '{"query": "...", "document": "..."}'
        raise BadRow(f"is of type {type(row).__name__} where an object such as {expected} was expected")
    for name in ("query", "document"):
        if name not in row:
            raise BadRow(f"has no {name!r} (but {listed(row)})")
    negatives, scores = _negatives(row), _scores(row.get("scores"))
    if scores and len(scores) != 1 + len(negatives):
        raise BadRow(
            f"holds {plural(len(scores), 'score')} where {1 + len(negatives)} "
            f"{'were' if negatives else 'was'} expected: "
            f"the document's, then one for each of {plural(len(negatives), 'negative')}"
        )
    query, document = (checked_text(name, row[name]) for name in ("query", "document"))
    return Pair(query, document, negatives, scores, checked_text("domain", row.get("domain")) or domain)


def _negatives(row: Mapping[str, Any]) -> tuple[str, ...]:
    several, one = row.get("negatives"), checked_text("negative", row.get("negative"))
    if several is None:
        return (one,) if one.strip() else ()
    if one:
        raise BadRow("has both 'negative' and 'negatives'")
    if not isinstance(several, list | tuple):
        raise BadRow(f"holds a value of type {type(several).__name__} under 'negatives' where a list was expected")
    texts = tuple(checked_text("negatives", text) for text in several)
    if not all(text.strip() for text in texts):
        raise BadRow("holds an empty text among its 'negatives'")
    return texts


def _scores(values: object) -> tuple[float, ...]:
    if values is None:
        return ()
    if not isinstance(values, list | tuple):
        raise BadRow(f"holds a value of type {type(values).__name__} under 'scores' where a list was expected")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadRow(f"holds a value of type {type(value).__name__} among its 'scores' where a number was expected")
    try:
        scores = tuple(float(value) for value in values)
    except OverflowError:
        raise BadRow("holds a number among its 'scores' that is beyond all floats") from None
    for score in scores:
        if not math.isfinite(score):
            raise BadRow(f"holds {score} among its 'scores', which no teacher gives")
    return scores


# --- From a source to rows, and from rows to the mapped file.

Part = tuple[str, str, Callable[[], Rows]]  # what it is called, its domain, and its rows


def _parts(source: str | os.PathLike[str] | Iterable[Any]) -> tuple[str, list[Part], int]:
    """The name of a source, what is to be read of it one after another, and how many files are of another kind."""
    if isinstance(source, str | os.PathLike):
        if source == "":
            raise PairsError("an empty path was given: expected a file or a folder of pairs")
        path = Path(source)
        try:
            paths, ignored = _files(path) if path.is_dir() else ([path], 0)
            return str(path), [_part(path) for path in paths], ignored
        except CorpusError as error:
            raise PairsError(str(error)) from error
        except OSError as error:
            raise PairsError(f"{path} cannot be read: {explain(error)}") from error
    if isinstance(source, Mapping):
        raise PairsError(
            f"one mapping was given (with {listed(source)}): expected a path or many rows, "
            "such as a list of mappings or one split of a dataset"
        )
    if isinstance(source, bytes | bytearray | Pair) or not isinstance(source, Iterable):
        raise PairsError(f"a {type(source).__name__} was given: expected a path, or rows, such as a list of dicts")
    name = f"the {type(source).__name__}"
    rows = ((f"row {number} (counted from 0)", row) for number, row in enumerate(source))
    return name, [(name, "", lambda: rows)], 0


def _part(path: Path) -> Part:
    reader = reader_of_file(path, NEEDS, KINDS, or_a_folder_of=["such files"])
    return str(path), name_and_kind(path)[0], partial(_rows_of_file, partial(reader, Tally()))


def _rows_of_file(rows: Callable[[], Rows]) -> Rows:
    try:
        yield from rows()
    except CorpusError as error:  # the container: damaged, cut short, unreadable, a table without a column
        raise PairsError(str(error)) from error


def _files(folder: Path) -> tuple[list[Path], int]:
    visible = sorted((path for path in folder.iterdir() if path.name[0] != "."), key=lambda path: path.name)
    known = [path for path in visible if name_and_kind(path)[1] in KINDS and not path.is_dir()]
    if not known:
        there = f"it has {listed(path.name for path in visible)}" if visible else "it is empty"
        raise PairsError(f"{folder} holds no pairs ({there}): expected files of {', '.join(KINDS)}")
    return known, len(visible) - len(known)


class _Spool:
    """Rows on their way into the file: gathered up to BATCH_CHARACTERS, then written as a batch, by domain."""

    def __init__(self, path: Path, leave_out: Collection[str]) -> None:
        self.path, self.writer = path, ipc.new_file(str(path), SCHEMA)
        self.runs: list[tuple[str, int, int]] = []  # of one domain in one batch: its name, its first place, its length
        self.first_bad = ""
        self._leave_out = frozenset(leave_out)
        self._gathered: dict[str, list[Pair]] = {}
        self._characters = self._places = self._rows = self._skipped = self._with_negatives = self._with_scores = 0
        self._empty, self._left_out = Counter[str](), Counter[str]()
        self._hashes: dict[str, Any] = {}  # of each domain's pairs in their order

    def add(self, part: Part, skip_bad_rows: bool, advance: Advance) -> None:
        """Take in the rows of one file, or those that are in none."""
        name, domain, rows = part
        for place, row in rows():
            self._rows += 1
            advance(1)
            try:
                self._gather(pair_of(row, domain))
            except BadRow as bad:
                if not skip_bad_rows:
                    raise PairsError(
                        f"{name}, {place} {bad}: correct it, or leave such rows out with --skip-bad-rows"
                    ) from bad
                self._skipped += 1
                self.first_bad = self.first_bad or f"{place} {bad}"

    def _gather(self, pair: Pair) -> None:
        if pair.domain in self._leave_out:
            self._left_out[pair.domain] += 1
            return
        if not (pair.query.strip() and pair.document.strip()):
            self._empty[pair.domain] += 1
            return
        self._gathered.setdefault(pair.domain, []).append(pair)
        self._with_negatives += bool(pair.negatives)
        self._with_scores += bool(pair.scores)
        self._characters += ROW_CHARACTERS + sum(map(len, (pair.query, pair.document, *pair.negatives)))
        # Lengths before texts, so that no two pairs share their bytes.
        texts = pair.query, pair.document, *pair.negatives
        told = f"{[len(text) for text in texts]} {list(pair.scores)}\n{''.join(texts)}"
        self._hashes.setdefault(pair.domain, hashlib.sha256()).update(told.encode())
        if self._characters >= BATCH_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered as one batch."""
        columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
        for domain, pairs in self._gathered.items():
            self.runs.append((domain, self._places, len(pairs)))
            self._places += len(pairs)
            for name, values in columns.items():
                values += (getattr(pair, name) for pair in pairs)
        if self._gathered:
            self.writer.write_batch(pyarrow.record_batch(columns, schema=SCHEMA))
        self._gathered, self._characters = {}, 0

    def counts(self, ignored_files: int) -> PairCounts:
        return PairCounts(
            rows=self._rows,
            pairs=self._places,
            domains=len(self._hashes),
            empty=dict(sorted(self._empty.items())),
            skipped=self._skipped,
            left_out=dict(sorted(self._left_out.items())),
            with_negatives=self._with_negatives,
            with_scores=self._with_scores,
            ignored_files=ignored_files,
        )

    def fingerprint(self) -> str:
        return fingerprint_of({domain: digest.hexdigest() for domain, digest in self._hashes.items()})


def _starts(lengths: Sequence[int]) -> Integers:
    return np.cumsum([0, *lengths], dtype=np.int64)[:-1]


def _ranges(lengths: Iterable[tuple[str, int]]) -> dict[str, range]:
    """From the lengths of runs, those of one domain beside each other, to the rows of each domain."""
    ranges: dict[str, range] = {}
    end = 0
    for domain, length in lengths:
        ranges[domain] = range(ranges[domain].start if domain in ranges else end, end + length)
        end += length
    return ranges


def _discard(mapped: Any, folder: Path) -> None:
    mapped.close()
    shutil.rmtree(folder, ignore_errors=True)
