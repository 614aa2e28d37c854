"""Every error that Vicinal raises on purpose, by what a caller can do about it.

    VicinalError
    ├── InputError(ValueError)         fix the input: a file, a flag, an argument
    │   ├── CorpusError                documents that cannot be read as such
    │   ├── PairsError                 training pairs that cannot be read as such
    │   ├── CollectionError            queries or judgments that cannot be read as such
    │   └── ModelError                 a model folder that is not one, or not one that we can run
    ├── MissingExtra(ImportError)      install an extra
    ├── IndexRefused                    an index that is not there, is another one's, or is busy
    │   └── DamagedIndex               rebuild the index (or restore it): its bytes are not what was written
    └── InternalError(RuntimeError)    report a bug

The command line turns all of them but the last into one sentence on standard error and exit code 2.

>>> str(MissingExtra("datasets", needed_for="reading a Hugging Face dataset"))
"reading a Hugging Face dataset needs the extra 'datasets': pip install 'vicinal[datasets]'"
"""

from __future__ import annotations


class VicinalError(Exception):
    """The root: `except VicinalError` catches everything that is raised on purpose."""


class InputError(VicinalError, ValueError):
    """What was given cannot be used; the message says what was expected and what to do."""


class CorpusError(InputError):
    """A corpus that cannot be read: the message names the file and, where there is one, the line."""


class PairsError(InputError):
    """Training pairs that cannot be read: the message names the file and, where there is one, the line."""


class CollectionError(InputError):
    """Queries or judgments that cannot be read."""


class ModelError(InputError):
    """A model that cannot be found, read or run."""


class MissingExtra(VicinalError, ImportError):
    """A capability whose libraries are not installed."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the extra '{extra}': pip install 'vicinal[{extra}]'")


class IndexRefused(VicinalError):
    """An index that cannot be used as asked: absent, of another model, busy."""


class DamagedIndex(IndexRefused):
    """The bytes of an index are not those that were written."""


class InternalError(VicinalError, RuntimeError):
    """Our own bug."""
