"""Documents, and the SQLite file that keeps those of one segment.

A stream of documents enters; a file leaves that gives any of them back by id or by number without loading the others.
The one idea: a document's number, 0 to n-1 in order of first appearance, is the only thing that engines see of it, and
SQLite's own unique key decides which of several documents with one id stays, so that nothing grows in memory.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "documents.sqlite"
...     rows = [Document("a", text="old"), Document("b", "Title", "text"), Document("a", text="new")]
...     print(DocumentStore.write(path, rows))
...     with DocumentStore.open(path) as store:
...         store.by_id("a").text, store.number_of("b"), len(store)
2 documents from 3 rows: 1 row replaced by a later one with the same id
('new', 1, 2)
"""

from __future__ import annotations

import errno
import hashlib
import json
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .errors import DamagedIndex, InputError
from .files import remove
from .progress import Progress, silent

BLOCK_DOCUMENTS = 64  # read at a time when all are read: few enough that documents of megabytes do not add up
WHITESPACE = "".join(filter(str.isspace, map(chr, range(0x3001))))  # what str.strip() takes; none lies above U+3000

TABLE = """CREATE TABLE documents (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL
)"""
UPSERT = """INSERT INTO documents VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE
    SET title = excluded.title, text = excluded.text, metadata = excluded.metadata"""
COLUMNS = "SELECT documents.id, title, text, metadata FROM documents"


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus; `metadata` holds JSON values under the keys that are not id, title or text.

    >>> Document("d1", "On bats", "They sleep by day.").content
    'On bats They sleep by day.'
    """

    id: str
    title: str = ""
    text: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """What encoders and BM25 read; nothing but whitespace makes an empty document, which is never a hit."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True)
class Counts:
    """What became of the rows of a corpus: rows = documents + duplicated + skipped.

    >>> print(Counts(rows=5, documents=3, empty=1, duplicated=1, skipped=1))
    3 documents (1 empty) from 5 rows: 1 row replaced by a later one with the same id, 1 row skipped
    """

    rows: int
    documents: int
    empty: int = 0  # documents without content
    duplicated: int = 0  # rows that a later row with the same id replaced
    numbered: int = 0  # rows without an id of their own
    skipped: int = 0  # rows that could not be read
    ignored_files: int = 0  # files of other kinds in the folder
    fingerprint: str = ""  # of the rows in order, whatever container they came in

    def as_dict(self) -> dict[str, int | str]:
        return asdict(self)

    def __str__(self) -> str:
        remarks = [
            (self.duplicated, "row", "replaced by a later one with the same id"),
            (self.numbered, "row", "without an id, known by number"),
            (self.skipped, "row", "skipped"),
            (self.ignored_files, "file", "of another kind ignored"),
        ]
        told = ", ".join(f"{plural(count, noun)} {what}" for count, noun, what in remarks if count)
        empty = f" ({self.empty:,} empty)" if self.empty else ""
        return f"{plural(self.documents, 'document')}{empty} from {plural(self.rows, 'row')}{told and ': ' + told}"


def plural(count: int, noun: str) -> str:
    """A count and its noun, as they are said.

    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Fingerprint:
    """The SHA-256 of a sequence of documents; lengths before texts, so that no two sequences share their bytes.

    >>> one, two = Fingerprint(), Fingerprint()
    >>> _ = one.add(Document("a", "b c")), two.add(Document("a", "b", "c"))
    >>> one.hexdigest() == two.hexdigest()
    False
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, document: Document) -> str:
        """Take one document in, and return its metadata as the canonical JSON that was hashed."""
        id, title, text, metadata = document.id, document.title, document.text, canonical(document.metadata)
        sizes = f"{len(id)} {len(title)} {len(text)} {len(metadata)}\n"
        self._hash.update(f"{sizes}{id}{title}{text}{metadata}".encode())
        return metadata

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def canonical(metadata: Mapping[str, Any]) -> str:
    """Metadata as JSON on one line with sorted keys: equal metadata, equal text."""
    return _ENCODER.encode(metadata) if metadata else "{}"


_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class DocumentStore:
    """The documents of one segment in one read-only SQLite file; any number of threads may ask it at once."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.Lock()  # not every build of SQLite serialises the use of one connection
        self.close = weakref.finalize(self, connection.close)
        try:
            # A view under the table's name could compute for ever; the index of the unique key has no text.
            if self._query("SELECT sql FROM sqlite_master ORDER BY sql IS NULL") != [(TABLE,), (None,)]:
                raise _damaged(path, "its table is another")
            last: int = self._query("SELECT coalesce(max(number), -1) FROM documents")[0][0]
            if last not in range(-1, path.stat().st_size):  # a document takes more than a byte
                raise _damaged(path, f"its last number is {last!r:.80}")
            self._length = last + 1
        except DamagedIndex:
            self.close()
            raise

    @classmethod
    def write(cls, path: Path, rows: Iterable[Document], *, progress: Progress = silent) -> Counts:
        """Write a stream of documents to a new file at `path`; the last of those with one id stays, at its first place.

        Making the file durable is the caller's (files.publish); where `rows` or the disk fails, nothing is left.
        """
        if path.exists():
            raise InputError(f"{path} exists: documents are written to a new file, so remove it or choose another name")
        fingerprint, total = Fingerprint(), 0

        def values() -> Iterator[tuple[int | None, str, str, str, str]]:
            nonlocal total
            for row in rows:
                # The first row is number 0; SQLite numbers each new one after it, and a replaced one keeps its own.
                yield (None if total else 0), row.id, row.title, row.text, fingerprint.add(row)
                total += 1
                advance(1)

        connection = _writer(path)
        try:
            with progress("read", None) as advance:
                connection.executemany(UPSERT, values())
            documents, empty = connection.execute(
                "SELECT count(*), total(trim(title || text, ?) = '') FROM documents", [WHITESPACE]
            ).fetchone()
            connection.commit()
            connection.close()
        except BaseException as error:
            connection.close()
            remove(path)
            if isinstance(error, sqlite3.OperationalError):
                raise _explained(path, error) from error
            raise
        return Counts(
            rows=total,
            documents=documents,
            empty=int(empty),
            duplicated=total - documents,
            fingerprint=fingerprint.hexdigest(),
        )

    @classmethod
    def open(cls, path: Path) -> DocumentStore:
        """Open for reading; SQLite is told that nobody writes, so it leaves no lock or journal beside the file."""
        if not path.is_file():
            raise DamagedIndex(f"the documents' file {path} is missing: rebuild the index, or restore the file")
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        # What SQLite advises for a file that a stranger may have written; it has no effect that a query could fail by.
        connection.executescript("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA query_only = ON")
        return cls(path, connection)

    @classmethod
    def write_without_text(cls, path: Path, source: Path) -> None:
        """Write the ids and metadata of another file to a new one, whose titles and texts are empty.

        A new file and not an UPDATE in place: what was never written needs no erasing.
        """
        connection = _writer(path)
        try:
            connection.execute("ATTACH ? AS source", [f"{source.resolve().as_uri()}?mode=ro&immutable=1"])
            connection.execute("INSERT INTO documents SELECT number, id, '', '', metadata FROM source.documents")
            connection.commit()
            connection.close()
        except BaseException as error:
            connection.close()
            remove(path)
            if isinstance(error, sqlite3.DatabaseError):
                raise _explained(path, error) from error
            raise

    def __len__(self) -> int:
        return self._length

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(self._query("SELECT 1 FROM documents WHERE id = ?", [id]))

    def __iter__(self) -> Iterator[Document]:
        for start in range(0, len(self), BLOCK_DOCUMENTS):
            yield from self.between(start, start + BLOCK_DOCUMENTS)

    def number_of(self, id: str) -> int:
        found = self._query("SELECT number FROM documents WHERE id = ?", [id])
        if not found:
            raise KeyError(id)
        return int(found[0][0])

    def by_id(self, id: str) -> Document:
        found = self._documents(f"{COLUMNS} WHERE id = ?", [id])
        if not found:
            raise KeyError(id)
        return found[0]

    def by_numbers(self, numbers: Sequence[int]) -> list[Document]:
        """The documents of these numbers, in the order given; a number may be given twice."""
        wanted = [int(number) for number in numbers]
        for number in wanted:
            if not 0 <= number < len(self):
                raise IndexError(f"there is no document {number}: {self.path} holds {len(self)}")
        order = f"{COLUMNS} JOIN json_each(?) AS wanted ON number = wanted.value ORDER BY wanted.key"
        return self._whole(self._documents(order, [json.dumps(wanted)]), len(wanted))

    def between(self, start: int, stop: int) -> list[Document]:
        """The documents with start <= number < stop, like a slice: what lies beyond the last is not there."""
        bounds = max(start, 0), min(stop, len(self))
        found = self._documents(f"{COLUMNS} WHERE number >= ? AND number < ? ORDER BY number", bounds)
        return self._whole(found, max(bounds[1] - bounds[0], 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _documents(self, sql: str, values: Sequence[Any]) -> list[Document]:
        try:
            return [_document(*row) for row in self._query(sql, values)]
        except (ValueError, TypeError, RecursionError) as error:
            raise _damaged(self.path, error) from error

    def _whole(self, found: list[Document], expected: int) -> list[Document]:
        if len(found) != expected:
            raise _damaged(self.path, f"{expected} documents asked for, {len(found)} found")
        return found

    def _query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._connection.execute(sql, values).fetchall()
        except sqlite3.ProgrammingError:
            raise  # a closed store is the caller's mistake, not damage
        except (sqlite3.DatabaseError, MemoryError) as error:  # a damaged length may ask for more than there is
            raise _damaged(self.path, error) from error


def _document(id: object, title: object, text: object, metadata: str) -> Document:
    """A row as a document; SQLite itself lets any type stand in any column."""
    known = json.loads(metadata)
    if not (isinstance(id, str) and isinstance(title, str) and isinstance(text, str) and isinstance(known, dict)):
        raise TypeError("a row holds other types than were written")
    return Document(id, title, text, known)


def _writer(path: Path) -> sqlite3.Connection:
    path.touch(exist_ok=False)  # SQLite would give a new file rights of its own rather than the umask's
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)
    try:
        # Nobody reads before files.publish has made the closed file durable, so neither journal nor flushes serve here.
        connection.executescript(
            f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536; {TABLE}"
        )
    except sqlite3.DatabaseError as error:
        connection.close()
        remove(path)
        raise _explained(path, error) from error
    return connection


def _damaged(path: Path, why: object) -> DamagedIndex:
    return DamagedIndex(f"the documents in {path} cannot be read ({why}): rebuild the index, or restore the file")


def _explained(path: Path, error: sqlite3.DatabaseError) -> OSError:
    """What SQLite says when a file cannot be written, as the operating system says it."""
    full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
    return OSError(errno.ENOSPC if full else errno.EIO, str(error), str(path))
