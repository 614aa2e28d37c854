"""Files in, documents out: lazily, and by id.

A path, or anything that yields rows, enters; a stream of documents leaves. The one idea: whatever the container, a
reader yields rows, and `document_of` alone decides what a row must be. A file is streamed from where it lies; whoever
asks for one document, for the number of them or for those that duplicates leave makes it be read once into a
`DocumentStore` in a temporary file, which goes with the `Corpus`. Rows that are not in files are read once, always.

    row      has `text` or `title` (both text, null is empty), an id (text or integer) under `id` or `_id`, and JSON
             values under all other keys, the metadata; unknown numbers (NaN) and duplicated keys are no JSON
    no id    the row's number is its id, from 0, blank lines not counted, so skipped rows move no other row's number
    same id  the last row wins, also over a row that is only known by its number
    bad row  refuses the corpus and names its line; with `skip_bad_rows` it is counted and left out
    damage   a container that ends early or decodes wrongly is refused always, and so is a corpus of no documents

>>> corpus = Corpus.read([{"_id": 7, "text": "old"}, {"title": "no id", "year": 1987}, {"_id": 7, "text": "new"}])
>>> print(corpus.counts)
2 documents from 3 rows: 1 row replaced by a later one with the same id, 1 row without an id, known by number
>>> list(corpus)
[Document(id='7', title='', text='new', metadata={}), Document(id='1', title='no id', text='', metadata={'year': 1987})]
"""

from __future__ import annotations

import codecs
import collections
import csv
import datetime
import decimal
import gzip
import io
import itertools
import json
import math
import os
import shutil
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from .documents import Counts, Document, DocumentStore, Fingerprint
from .errors import CorpusError, InputError
from .files import explain, remove, scratch
from .progress import Progress, silent

ROW_BYTES = 1 << 27  # a longer line is no document; it bounds the memory that a file without line ends takes
NESTED_LEVELS = 100  # of metadata: far below what Python's own JSON reader survives at any depth of the caller's stack
INTEGER_BITS = 4096  # of metadata: Python refuses to print integers of more than 4,300 digits
BATCH_ROWS = 64  # of Parquet, decoded at a time

COMPRESSIONS = (".gz", ".zst")
TEXTS = (".txt", ".md", ".markdown")
FOREIGN = {  # how files begin that are not what their name says
    codecs.BOM_UTF16_LE: "UTF-16 text",
    codecs.BOM_UTF16_BE: "UTF-16 text",
    b"\x1f\x8b": "gzip data",
    b"\x28\xb5\x2f\xfd": "Zstandard data",
    b"PAR1\x15": "Parquet",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
}


class BadRow(ValueError):
    """Why a row is no document, said so that it can follow "line 3 "."""


Row = Mapping[str, Any] | Document | BadRow


@dataclass
class Tally:
    """What one reading met that a store of documents cannot know."""

    numbered: int = 0
    skipped: int = 0
    ignored_files: int = 0


Rows = Iterator[tuple[str, Row]]  # each with its place, "line 3"
Reader = Callable[[Tally], Rows]
Needs = tuple[tuple[str, ...], ...]  # the columns that a table must have: of each group, one at least

DOCUMENT_NEEDS: Needs = (("text", "title"),)


class Corpus:
    """Documents, whatever they lie in; see `Corpus.read`."""

    def __init__(self, name: str, reader: Reader, *, in_files: bool, skip_bad_rows: bool = False) -> None:
        self.name = name
        self.skip_bad_rows = skip_bad_rows
        self._reader, self._in_files = reader, in_files
        self._lock = threading.Lock()
        self._spooled: tuple[DocumentStore, Counts] | None = None

    @classmethod
    def read(cls, source: str | os.PathLike[str] | Iterable[Any], *, skip_bad_rows: bool = False) -> Corpus:
        """A corpus from a file, a folder, rows, or a Hugging Face dataset; nothing is read but what refusing needs.

        A file is .jsonl (.ndjson, .json of one object per line), .csv, .tsv, each also .gz or .zst, or .parquet. A
        folder holds a BEIR collection's corpus.jsonl, or texts (.txt, .md, .markdown) at any depth: their paths are
        their ids; hidden ones are left out, links to folders are not followed. Rows are mappings or `Document`s.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "docs.jsonl"
        ...     _ = path.write_text('{"_id": "a", "title": "On bats", "text": "They sleep by day."}', encoding="utf-8")
        ...     Corpus.read(path).by_id("a").content
        'On bats They sleep by day.'
        """
        if isinstance(source, str | os.PathLike):
            if source == "":
                raise CorpusError("an empty path was given: expected a file or a folder of documents")
            path = Path(source)
            with _reading(path):
                path = _in_beir_folder(path)
                return cls(str(path), _reader_of(path), in_files=True, skip_bad_rows=skip_bad_rows)
        if isinstance(source, Mapping):
            raise CorpusError(
                f"one mapping was given (with {listed(source)}): expected a path or many rows, "
                "such as a list of mappings or one split of a dataset"
            )
        if isinstance(source, bytes | bytearray | Document) or not isinstance(source, Iterable):
            raise CorpusError(f"a {type(source).__name__} was given: expected a path, or rows, such as a list of dicts")
        reader = _once(enumerate(source))
        return cls(f"the {type(source).__name__}", reader, in_files=False, skip_bad_rows=skip_bad_rows)

    def __repr__(self) -> str:
        return f"Corpus({self.name!r})"

    def __iter__(self) -> Iterator[Document]:
        yield from self._spool()[0]  # a generator, because its frame keeps this corpus, and so its file, alive

    def __len__(self) -> int:
        return len(self._spool()[0])

    @property
    def counts(self) -> Counts:
        """What became of the rows."""
        return self._spool()[1]

    def by_id(self, id: str) -> Document:
        """The document of an id, without loading the others; KeyError where there is none."""
        return self._spool()[0].by_id(id)

    def fingerprint(self, *, progress: Progress = silent) -> str:
        """The hash of the rows in order, the same in every container: `store` writes it into its counts."""
        if self._spooled is None and self._in_files:
            fingerprint = Fingerprint()
            with progress("read", None) as advance:
                for document in self._documents(Tally()):
                    fingerprint.add(document)
                    advance(1)
            return fingerprint.hexdigest()
        return self._spool(progress)[1].fingerprint

    def store(self, path: str | Path, *, progress: Progress = silent) -> Counts:
        """Write the documents to a new `DocumentStore` file, straight from the source where it lies in files.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(Corpus.read([{"text": "one"}, {"text": " "}]).store(Path(folder) / "documents.sqlite"))
        2 documents (1 empty) from 2 rows: 2 rows without an id, known by number
        """
        path = Path(path)
        if path.exists():
            raise InputError(f"{path} exists: documents are written to a new file, so remove it or choose another name")
        if self._spooled is None and self._in_files:
            return self._write(path, progress)
        spool, counts = self._spool(progress)
        try:
            with progress("copy", len(spool)) as advance:
                shutil.copyfile(spool.path, path)
                advance(len(spool))
        except BaseException:
            remove(path)
            raise
        return counts

    def _spool(self, progress: Progress = silent) -> tuple[DocumentStore, Counts]:
        """The documents in a temporary file of this corpus's own."""
        with self._lock:
            if self._spooled is None:
                folder, done = scratch()
                try:
                    counts = self._write(folder / "documents.sqlite", progress)
                    store = DocumentStore.open(folder / "documents.sqlite")
                except BaseException:
                    done()
                    raise
                self._spooled = store, counts
                weakref.finalize(self, _discard, store, done)
            return self._spooled

    def _write(self, path: Path, progress: Progress) -> Counts:
        tally = Tally()
        counts = DocumentStore.write(path, self._documents(tally), progress=progress)
        return replace(
            counts,
            rows=counts.rows + tally.skipped,
            numbered=tally.numbered,
            skipped=tally.skipped,
            ignored_files=tally.ignored_files,
        )

    def _documents(self, tally: Tally) -> Iterator[Document]:
        """Rows as documents, all of them: which of several with one id stays is the store's to decide."""
        rows, first_bad = 0, ""
        for number, (place, row) in enumerate(self._reader(tally)):
            rows += 1
            try:
                document = document_of(row)
            except BadRow as bad:
                if not self.skip_bad_rows:
                    raise CorpusError(
                        f"{self.name}, {place} {bad}: correct it, or leave such rows out with --skip-bad-rows"
                    ) from bad
                tally.skipped += 1
                first_bad = first_bad or f"{place} {bad}"
                continue
            if not document.id:
                tally.numbered += 1
                document = replace(document, id=str(number))
            yield document
        if rows == tally.skipped:
            why = f"none of its rows can be read ({first_bad})" if rows else "it has no rows"
            raise CorpusError(f"{self.name} holds no documents, for {why}: give a corpus of at least one")


def default_index_name(path: str | Path) -> Path:
    """Where a corpus's index goes when nobody says: beside it, under its name without the suffixes we know.

    >>> default_index_name("data/docs.v2.jsonl.gz").as_posix()
    'data/docs.v2.vicinal'
    """
    path = Path(path)
    if not path.name or path.name == "..":
        path = path.resolve()  # "." has no name of its own
    if not path.name:
        raise InputError(f"{path} has no name to give its index: choose one with -o")
    return path.with_name(f"{path.name if path.is_dir() else name_and_kind(path)[0]}.vicinal")


def name_and_kind(path: Path) -> tuple[str, str]:
    """A file's name without the suffixes that we know, and which reader it is for: "" where none is.

    >>> name_and_kind(Path("data/docs.v2.JSONL.gz")), name_and_kind(Path("notes.parquet.gz"))
    (('docs.v2', '.jsonl'), ('notes.parquet.gz', ''))
    """
    compressed = path.suffix.lower() in COMPRESSIONS
    whole = path.with_suffix("") if compressed else path
    kind = whole.suffix.lower()
    return (path.name, "") if kind not in READERS or (compressed and kind == ".parquet") else (whole.stem, kind)


def document_of(row: object) -> Document:
    """The document that a row stands for; its id is empty where the row has none.

    >>> document_of({"_id": 3, "text": "They sleep by day.", "seen": datetime.date(2024, 5, 17)})
    Document(id='3', title='', text='They sleep by day.', metadata={'seen': '2024-05-17'})
    >>> document_of({"text": 3})
    Traceback (most recent call last):
        ...
    vicinal.corpus.BadRow: holds a value of type int under 'text' where text was expected
    """
    if isinstance(row, BadRow):
        raise row
    if isinstance(row, Document):
        return _document(row.id, row.title, row.text, row.metadata)
    if not isinstance(row, Mapping):
        raise BadRow(f'is of type {type(row).__name__} where an object such as {{"text": "..."}} was expected')
    if "text" not in row and "title" not in row:
        raise BadRow(f"has neither 'text' nor 'title' (but {listed(row)})")
    id = "id" if "id" in row else "_id"
    metadata = {name: value for name, value in row.items() if name not in (id, "title", "text")}
    return _document(row.get(id), row.get("title"), row.get("text"), metadata)


def _document(id: object, title: object, text: object, metadata: object) -> Document:
    if not isinstance(metadata, Mapping):
        raise BadRow(f"holds metadata of type {type(metadata).__name__} where a mapping was expected")
    id = _plain(id)
    if isinstance(id, int) and not isinstance(id, bool):
        id = str(_json("id", id))
    return Document(
        checked_text("id", id),
        checked_text("title", title),
        checked_text("text", text),
        {_key(name): _json(name, value) for name, value in metadata.items()},
    )


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays, which datasets give, as Python's own."""
    return value.tolist() if type(value).__module__ == "numpy" else value


def checked_text(name: str, value: object) -> str:
    """The text that a row holds under a name, null being empty; BadRow where it holds something else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        expected = "text or an integer" if name == "id" else "text"
        raise BadRow(f"holds a value of type {type(value).__name__} under {name!a} where {expected} was expected")
    if len(value) > ROW_BYTES:
        raise BadRow(f"holds {len(value):,} characters under {name!a} where at most {ROW_BYTES:,} were expected")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRow(f"holds bytes or escapes under {name!a} that are no text in UTF-8") from None
    return value


def _json(name: str, value: Any, level: int = 0) -> Any:
    """A value as JSON has it: dates and decimals become text; what JSON would change or lose is refused."""
    value = _plain(value)
    if value is None:
        return None
    if isinstance(value, str):
        return checked_text(name, value)
    if isinstance(value, int):  # true and false among them
        if value.bit_length() > INTEGER_BITS:
            raise BadRow(f"holds an integer of {value.bit_length():,} bits under {name!a}, more than {INTEGER_BITS:,}")
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if level == NESTED_LEVELS:
        raise BadRow(f"is nested deeper than {NESTED_LEVELS} levels under {name!a}")
    if isinstance(value, Mapping):
        return {_key(key): _json(name, inner, level + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json(name, inner, level + 1) for inner in value]
    if isinstance(value, datetime.date | datetime.time) and value == value:  # a datetime is a date; pandas' NaT is not
        return value.isoformat()
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return str(value)
    told = value if isinstance(value, float | decimal.Decimal) else f"a value of type {type(value).__name__}"
    raise BadRow(f"holds {told} under {name!a}, which JSON does not have")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise BadRow(f"holds a key of type {type(key).__name__} where text was expected")
    return checked_text(key, key)


def listed(names: Iterable[object]) -> str:
    """Column names for a message, neither endlessly many nor endlessly long."""
    shown = [ascii(name[:40]) for name in itertools.islice(names, 11) if isinstance(name, str)]
    return ", ".join(shown[:10] + ["..."] * (len(shown) > 10)) or "nothing"


# --- Readers: from a container to rows, each with its place. One per kind of file, all with the same face.


def _lines_of_json(path: Path, tally: Tally, *, needs: Needs) -> Rows:
    with _opened(path) as file:
        for number, line in _lines(path, file):
            if len(line) > ROW_BYTES:
                yield f"line {number}", BadRow(f"is longer than {ROW_BYTES:,} bytes (is the file one JSON array?)")
            elif line.strip():
                yield f"line {number}", _parsed(line)


def _parsed(line: bytes) -> Row:
    try:
        return cast(Row, JSON.decode(line.decode()))  # whether it is a mapping, document_of asks
    except BadRow as bad:
        return bad
    except UnicodeDecodeError as error:
        return BadRow(f"is not UTF-8 (at byte {error.start + 1})")
    except json.JSONDecodeError as error:
        return BadRow(f"is not one JSON object ({error.msg.removesuffix(' at')} at character {error.pos + 1})")
    except RecursionError:
        return BadRow(f"is nested deeper than {NESTED_LEVELS} levels")
    except ValueError as error:  # an integer of more digits than Python reads
        return BadRow(f"holds a number that cannot be read ({error})")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise BadRow(f"has the key {_twice(name for name, _ in pairs)!a} twice")
    return row


def _twice(names: Iterable[str]) -> str | None:
    """The name that is there most often, if that is more than once."""
    name, count = collections.Counter(names).most_common(1)[0]
    return name if count > 1 else None


def _no_number(literal: str) -> NoReturn:
    raise BadRow(f"holds {literal}, which JSON does not have")


JSON = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number)


def _table(path: Path, tally: Tally, *, needs: Needs, delimiter: str) -> Rows:
    kind = f"{delimiter!r}-separated text"
    csv.field_size_limit(ROW_BYTES)  # of the process, and 131,072 characters where nobody sets it
    with _opened(path) as file:
        at_end = False

        def lines() -> Iterator[str]:
            nonlocal at_end
            for number, line in _lines(path, file):
                if len(line) > ROW_BYTES:
                    raise CorpusError(f"{path}, line {number} is longer than {ROW_BYTES:,} bytes: is it a table?")
                # What is not UTF-8 becomes lone surrogates, which document_of refuses: so it is one row's fault.
                yield line.decode(errors="surrogateescape")
            at_end = True

        rows = csv.reader(lines(), delimiter=delimiter, strict=True)
        columns: list[str] | None = None
        while True:
            place = f"line {rows.line_num + 1}"  # where the row begins: a quoted field may hold line ends
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                if at_end:
                    raise CorpusError(
                        f"{path} ends inside the row that begins at {place}: it is cut short, or lacks a quote there"
                    ) from error
                if columns is None or "field limit" in str(error):
                    raise CorpusError(f"{path}, {place} is not {kind} ({_told(error)}): correct it") from error
                yield place, BadRow(f"is not {kind} ({_told(error)})")
                continue
            if columns is None:
                columns = _checked_columns(path, cells, needs) if cells else None
            elif len(cells) == len(columns):
                yield place, dict(zip(columns, cells, strict=True))
            elif cells:
                yield place, BadRow(f"does not have {len(columns)} columns but {len(cells)}")


def _parquet(path: Path, tally: Tally, *, needs: Needs) -> Rows:
    import pyarrow
    import pyarrow.parquet

    with _reading(path, (pyarrow.ArrowException, UnicodeDecodeError)), path.open("rb") as file:
        # Without these two, a group of rows lies in memory as a whole: measured, 250 MB for one of 180 MB against 70.
        parquet = pyarrow.parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
        _checked_columns(path, parquet.schema_arrow.names, needs)
        numbers = itertools.count()
        for batch in parquet.iter_batches(BATCH_ROWS):
            for row in _values(batch):
                yield f"row {next(numbers)} (counted from 0)", row


def _values(batch: Any) -> Iterator[Row]:
    """The rows of an Arrow batch; where one cannot become Python values, which one is looked for."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError) as error:  # not UTF-8; a date that Python does not have
        if len(batch) == 1:
            yield BadRow(f"holds a value that cannot be read ({_told(error)})")
        else:
            for number in range(len(batch)):
                yield from _values(batch.slice(number, 1))


def _texts(folder: Path, tally: Tally) -> Rows:
    with _reading(folder):
        for path in _text_files(folder, tally):
            name = path.relative_to(folder).as_posix()
            yield ascii(name), _text_of(path, name)


def _text_of(path: Path, name: str) -> Row:
    try:
        with path.open("rb") as file:
            content = file.read(ROW_BYTES + 1)
        if len(content) > ROW_BYTES:
            return BadRow(f"is longer than {ROW_BYTES:,} bytes")
        if foreign := _foreign(content):
            return BadRow(foreign)
        text = io.IncrementalNewlineDecoder(None, translate=True).decode(content.decode("utf-8-sig"), final=True)
        return Document(name, text=text)
    except UnicodeDecodeError as error:
        return BadRow(f"is not UTF-8 (at byte {error.start + 1})")
    except OSError as error:
        return BadRow(f"cannot be read ({explain(error)})")


def _text_files(root: Path, tally: Tally) -> Iterator[Path]:
    """The text files below a folder, in an order that is the same everywhere."""
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            visible = sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
        folders += [Path(entry) for entry in reversed(visible) if entry.is_dir(follow_symlinks=False)]
        for path in (Path(entry) for entry in visible if not entry.is_dir(follow_symlinks=False)):
            # A link to nothing is a text that cannot be read; a pipe is no text, and opening it would wait for ever.
            if path.suffix.lower() in TEXTS and (path.is_file() or not path.exists()):
                yield path
            else:
                tally.ignored_files += 1


def _once(rows: Iterable[tuple[int, Any]]) -> Reader:
    """Rows that are not in files: what is left of them after a failure must not pass for the whole."""
    begun = False

    def read(tally: Tally) -> Rows:
        nonlocal begun
        if begun:
            raise CorpusError("these rows were read before and reading failed: give them to Corpus.read again")
        begun = True
        for number, row in rows:
            yield f"row {number} (counted from 0)", row

    return read


READERS: dict[str, Callable[..., Rows]] = {
    ".jsonl": _lines_of_json,
    ".ndjson": _lines_of_json,
    ".json": _lines_of_json,
    ".csv": partial(_table, delimiter=","),
    ".tsv": partial(_table, delimiter="\t"),
    ".parquet": _parquet,
}


def _reader_of(path: Path) -> Reader:
    """The reader for what lies at a path, by its kind alone."""
    return _folder_reader(path) if path.is_dir() else reader_of_file(path)


def reader_of_file(
    path: Path, needs: Needs = DOCUMENT_NEEDS, kinds: Iterable[str] = (), or_a_folder_of: Iterable[str] = TEXTS
) -> Reader:
    """The reader of one file, of any kind or of some; `needs` are the columns that it must have if it is a table."""
    if not path.exists():
        raise CorpusError(f"there is no {path}: expected a file or a folder")
    if not path.is_file():
        raise CorpusError(f"{path} is neither a file nor a folder: store what it delivers in a file, and give that")
    known = [kind for kind in READERS if kind in kinds or not kinds]
    _, kind = name_and_kind(path)
    if kind not in known:
        raise CorpusError(
            f"{path} is of no kind that is known by its name: expected {', '.join(known)}, "
            f"a text one also with {' or '.join(COMPRESSIONS)}, or a folder of {', '.join(or_a_folder_of)}"
        )
    with _reading(path):
        path.open("rb").close()  # a missing permission is told now, not after a model has been loaded
    return partial(READERS[kind], path, needs=needs)


def _in_beir_folder(path: Path) -> Path:
    """The file of documents where the path is a BEIR collection's, else the path itself."""
    files = (path / f"corpus.jsonl{ending}" for ending in ("", *COMPRESSIONS))
    return next((file for file in files if file.is_file()), path)


def _folder_reader(folder: Path) -> Reader:
    if next(_text_files(folder, Tally()), None) is None:
        others = sorted(path.name for path in folder.iterdir() if set(path.suffixes) & set(READERS))
        rather = f"; it has {listed(others)}: give one of them" if others else ": give a folder that does"
        raise CorpusError(f"{folder} holds neither corpus.jsonl nor texts ({', '.join(TEXTS)}){rather}")
    return partial(_texts, folder)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes, decompressed on the way."""
    with _reading(path), path.open("rb") as file:
        if path.suffix.lower() == ".gz":
            with gzip.GzipFile(fileobj=file) as unzipped:
                yield cast(BinaryIO, unzipped)
        elif path.suffix.lower() == ".zst":
            import pyarrow  # and not zstandard, whose reader takes a file that was cut short for a whole one

            with io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(file), "zstd")) as decompressed:
                yield cast(BinaryIO, decompressed)
        else:
            yield file


@contextmanager
def _reading(path: Path, damage: tuple[type[Exception], ...] = (EOFError, zlib.error)) -> Iterator[None]:
    """Turn what a library or the operating system says of a file into a sentence of ours."""
    try:
        yield
    except damage as error:
        raise _damaged(path, error) from error
    except OSError as error:
        if error.errno is None:  # a decoder's, not the operating system's
            raise _damaged(path, error) from error
        raise CorpusError(f"{path} cannot be read: {explain(error)}") from error


def _damaged(path: Path, error: Exception) -> CorpusError:
    return CorpusError(f"{path} is damaged or cut short ({_told(error)}): make or fetch it again")


def _told(error: Exception) -> str:
    """What a library says, without the line ends and odd bytes that it may say it with."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, without a byte order mark; of a line longer than ROW_BYTES, only the beginning."""
    for number in itertools.count(1):
        line = file.readline(ROW_BYTES + 1)
        if not line:
            return
        if number == 1:
            if foreign := _foreign(line):
                raise CorpusError(f"{path} {foreign}: convert or rename it")
            line = line.removeprefix(codecs.BOM_UTF8)
        yield number, line
        while len(line) > ROW_BYTES and not line.endswith(b"\n"):
            line = file.readline(ROW_BYTES + 1)


def _foreign(content: bytes) -> str:
    """How a file that is no UTF-8 text begins; empty where nothing speaks against it."""
    found = [kind for beginning, kind in FOREIGN.items() if content.startswith(beginning)]
    if b"\0" in content[:2]:
        found.append("UTF-16 text")
    return f"begins like {found[0]} where text in UTF-8 was expected" if found else ""


def _checked_columns(path: Path, names: list[str], needs: Needs) -> list[str]:
    """The columns of a table; where one is missing that every row needs, the table is refused as a whole."""
    for group in needs:
        if not set(group) & set(names):
            expected = " or ".join(map(ascii, group))
            raise CorpusError(f"{path} has no column {expected} (but {listed(names)}): rename the one that fits")
    if (twice := _twice(names)) is not None:
        raise CorpusError(f"{path} has the column {twice!a} twice: rename one of them")
    return names


def _discard(store: DocumentStore, done: Callable[[], None]) -> None:
    store.close()
    done()
