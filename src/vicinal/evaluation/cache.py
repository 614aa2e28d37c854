"""Raw vectors that were computed once need not be computed again: a SQLite file per encoder, keyed by the text.

What shapes a raw vector names the file (the encoder's fingerprint, precision and token limit, the role of the text, and
the context where the encoder attends to one), so a changed model, limit or prompt never meets another's vectors.
Deleting the folder costs time and nothing else, and so does everything that can happen to it: what cannot be read is
encoded again, what cannot be written is not kept.

    VICINAL_CACHE, else $XDG_CACHE_HOME/vicinal, else ~/.cache/vicinal

>>> import tempfile, vicinal
>>> folder = tempfile.TemporaryDirectory()
>>> for run in "first", "second":
...     cached = Cached(vicinal.load("tiny"), Path(folder.name))
...     print(cached.encode_raw(["cats purr", "stars shine"], "document").vectors.shape, cached.encoded)
(2, 64) 2
(2, 64) 0
>>> folder.cleanup()
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TypeVar

import numpy as np

from .. import files
from ..encoder import Encoder, Raw
from ..errors import InputError
from ..progress import Advance, Progress, silent
from ..vectors import Floats

AT_ONCE = 4096  # texts encoded between two commits: what an interrupted run loses at most
LAYOUT = 2  # of a file's rows; another layout is another file
WAIT_SECONDS = 60  # for another process to end its commit, which takes one at most
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # the last: other tables than ours

T = TypeVar("T")


def cache_folder() -> Path:
    """Where caches live: never inside an index or a collection."""
    chosen = os.environ.get("VICINAL_CACHE")
    if not chosen and (base := os.environ.get("XDG_CACHE_HOME")):
        return Path(base) / "vicinal"
    try:
        return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "vicinal"
    except RuntimeError:
        raise InputError(
            f"there is no home folder {chosen or 'of this user'} to keep vectors in: set VICINAL_CACHE to a folder"
        ) from None


class Cached:
    """An encoder whose raw vectors are kept on disk; `encoded` counts the texts that it had not met yet."""

    def __init__(self, encoder: Encoder, folder: Path | None = None) -> None:
        self.encoder = encoder
        self.folder = folder or cache_folder() / "vectors"
        self.encoded = 0

    def encode_raw(self, texts: Sequence[str], role: str, progress: Progress = silent) -> Raw:
        """Raw vectors, as the encoder gives them; a text that is given twice is encoded once."""
        # "surrogatepass": whether half a surrogate pair is a text is for the encoder to say
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        vectors = np.zeros((len(texts), self.encoder.dim), dtype=np.float32)
        ends = np.zeros(len(texts), dtype=np.int64)
        with closing(Store(self._file(role))) as store, progress(f"encoding {role}s", len(texts)) as advance:
            place_of: dict[bytes, int] = {}  # a key's first place
            missing = []
            for place, key in enumerate(keys):
                if key in place_of:
                    continue
                place_of[key] = place
                if known := _unpacked(key, store.get(key), self.encoder.dim):
                    vectors[place], ends[place] = known
                else:
                    missing.append(place)
            advance(len(texts) - len(missing))
            missing.sort(key=lambda place: len(texts[place]))  # parts of like lengths waste the least time
            for start in range(0, len(missing), AT_ONCE):
                part = missing[start : start + AT_ONCE]
                raw = self.encoder.encode_raw([texts[place] for place in part], role, progress=_within(advance))
                vectors[part], ends[part] = raw.vectors, raw.ends
                store.put([(keys[place], _packed(keys[place], vectors[place], int(ends[place]))) for place in part])
        self.encoded += len(missing)
        first = [place_of[key] for key in keys]
        vectors, ends = (vectors, ends) if len(place_of) == len(keys) else (vectors[first], ends[first])
        return Raw(vectors, ends, sum(int(end) < len(text) for end, text in zip(ends, texts, strict=True)))

    def _file(self, role: str) -> Path:
        e = self.encoder
        limit = e.max_document_tokens if role == "document" else e.max_query_tokens
        key: list[object] = [LAYOUT, e.fingerprint, e.precision, limit, role]
        if e.attends:  # then the context shapes raw vectors too, by the very numbers that are attended to
            key.append(e.bound and [e.bound.fingerprint, e.bound.contents])
        return self.folder / f"{files.fingerprint_of(key)[:24]}.sqlite"


class Store:
    """Bytes by key in a SQLite file that several processes may use at once, and that never stands in the way.

    A damaged file is moved aside, and a new one begun; where there is no writing (a full disk, no permission), nothing
    is found and nothing is kept from then on. Both are said in a warning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = self._opened()

    def get(self, key: bytes) -> object:
        """The bytes of a key, or None; a damaged file may give anything, so bytes are checked by who reads them."""
        found = self._tried(lambda c: c.execute("SELECT value FROM vectors WHERE key = ?", (key,)).fetchone())
        return found[0] if found else None

    def put(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Keep all of these rows, or none."""

        def insert(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)

        self._tried(insert)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _tried(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        if self._connection is None:
            return None
        try:
            return work(self._connection)
        except sqlite3.Error as error:
            self.close()
            self._connection = self._recovered(error)
            return None

    def _opened(self) -> sqlite3.Connection | None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return _connect(self.path)
        except (OSError, sqlite3.Error) as error:
            return self._recovered(error)

    def _recovered(self, error: Exception) -> sqlite3.Connection | None:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE:
            aside = self.path.with_suffix(".damaged")
            try:
                files.rename(self.path, aside)
                connection = _connect(self.path)
            except (OSError, sqlite3.Error) as other:
                error = other
            else:
                warnings.warn(
                    f"a cache of vectors was damaged ({error}), and is begun anew; it is now {aside}", stacklevel=2
                )
                return connection
        warnings.warn(f"no vectors are kept in {self.path.parent} ({error}): the next run encodes again", stacklevel=2)
        return None


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=WAIT_SECONDS)
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, value BLOB NOT NULL)")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _packed(key: bytes, vector: Floats, end: int) -> bytes:
    """A row's value: a check sum (SQLite has none, and a changed bit changes a vector), the end, the vector."""
    body = end.to_bytes(8, "little") + vector.astype("<f4").tobytes()
    return zlib.crc32(key + body).to_bytes(4, "little") + body


def _unpacked(key: bytes, value: object, dim: int) -> tuple[Floats, int] | None:
    if not isinstance(value, bytes) or len(value) != 4 + 8 + 4 * dim:
        return None
    if zlib.crc32(key + value[4:]) != int.from_bytes(value[:4], "little"):
        return None
    return np.frombuffer(value[12:], dtype="<f4").astype(np.float32), int.from_bytes(value[4:12], "little")


def _within(advance: Advance) -> Progress:
    """Progress that is part of another's."""

    def progress(label: str, total: int | None = None, /) -> AbstractContextManager[Advance]:
        return nullcontext(advance)

    return progress
