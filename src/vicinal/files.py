"""All durability passes through here: what is published is on the disk, whole, or it is not there.

A writer closes its files under a name that no reader looks at, then calls `publish(partial, final)`: every file and
folder below `partial` is flushed to the disk, `partial` is renamed to `final` in one step, and the folder that now
holds it is flushed too. A crash at any moment leaves the old state or the new one.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     target = Path(folder) / "note.txt"
...     write_text(target, "whole")
...     target.read_text()
'whole'
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import IndexRefused, InputError

BLOCK_BYTES = 1 << 20
SCRATCH, SCRATCH_LOCK = "vicinal-", "in-use.lock"  # of temporary folders
SCRATCH_SECONDS = 60  # more than passes between making a folder and locking it


def publish(partial: Path, final: Path) -> None:
    """Make `partial`, a closed file or a folder of closed files, durable, and then visible as `final`."""
    for path in [*_below(partial), partial]:
        flush(path)
    rename(partial, final)
    flush(final.parent)


def flush(path: Path) -> None:
    """Force one file's or folder's bytes to the disk (fsync)."""
    if path.is_dir() and sys.platform == "win32":
        return  # Windows has no handle on a folder to flush; its rename is journalled
    handle = os.open(path, os.O_RDONLY if path.is_dir() or sys.platform != "win32" else os.O_RDWR)
    try:
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # there, fsync leaves the bytes in the drive's own memory
        else:
            os.fsync(handle)
    finally:
        os.close(handle)


def rename(source: Path, target: Path) -> None:
    """Give `source` the name `target` in one step; a file that stands there is replaced."""
    source.replace(target)


def remove(path: Path) -> None:
    """Remove a file or a whole folder; what is not there needs no removing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _below(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            yield from _below(path)
            yield path


@contextlib.contextmanager
def writing(final: Path) -> Iterator[Path]:
    """Yield a name beside `final` to write to; it is published when the block ends well, and removed when not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with writing(Path(folder) / "a.txt") as partial:
    ...         _ = partial.write_text("text")
    ...     [path.name for path in Path(folder).iterdir()]
    ['a.txt']
    """
    final = Path(final)
    if final.is_dir():
        raise InputError(f"{final} is a folder; expected the name of a file to write")
    if not final.parent.is_dir():
        raise InputError(f"there is no folder {final.parent} to write {final.name} into: make it first")
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        yield partial
        publish(partial, final)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # of a file that was open already
            raise OSError(error.errno, error.strerror, str(final)) from error
        raise
    finally:
        remove(partial)


def write_text(final: Path, text: str) -> None:
    """Write a small file durably and atomically."""
    with writing(final) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_json(final: Path, value: Any) -> None:
    """Write a JSON file durably and atomically; the same value always gives the same bytes."""
    write_text(final, canonical_json(value))


def canonical_json(value: Any) -> str:
    """The one text of a JSON value: sorted keys, two spaces, a newline at the end; no NaN."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint_of(value: Any) -> str:
    """The SHA-256 of a JSON value, as hexadecimal digits: equal values, equal fingerprints."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@contextlib.contextmanager
def alone(name: Path) -> Iterator[None]:
    """Let one process at a time write what is called `name`; a second one is refused at once.

    The operating system holds the lock, so it goes with its process, however that ends.
    """
    path = name.with_name(f".{name.name}.lock")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise IndexRefused(f"another process is writing {name}: wait for it to end, then try again") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows: open, so it stays
            path.unlink()  # while it is held: filelock notices when it got hold of a file that has no name any more
        lock.release()


def scratch() -> tuple[Path, Callable[[], None]]:
    """A new folder among the temporary files (TMPDIR), and what removes it; a killed process's are removed first.

    >>> folder, done = scratch()
    >>> folder.is_dir(), done(), folder.exists()
    (True, None, False)
    """
    base = Path(tempfile.gettempdir())
    for left in base.glob(f"{SCRATCH}*/{SCRATCH_LOCK}"):
        with contextlib.suppress(OSError, Timeout):  # another's, or still in use
            if time.time() - left.stat().st_mtime > SCRATCH_SECONDS:
                with FileLock(left, timeout=0):
                    shutil.rmtree(left.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
    lock = FileLock(folder / SCRATCH_LOCK, timeout=0)
    lock.acquire()

    def done() -> None:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)

    return folder, done


def explain(error: OSError) -> str:
    """One sentence for an error of the operating system, with what to do where we know it."""
    what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({what}): free some space, then run the same command again"
    if error.errno == errno.EIO:
        return f"the disk did not do what it was asked ({what}): see whether it is full or failing, then try again"
    if error.errno == errno.EFBIG:
        return f"no file may be that long here ({what}): choose another place, or raise the limit"
    if error.errno == errno.ENAMETOOLONG:
        return f"a name is too long ({what}): choose a shorter one"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission ({what}): choose a place that you may read and write"
    return what
