"""How long work tells of itself, without the library knowing of any screen.

A function that may take more than two seconds accepts `progress`, and calls it with a label and a total (None where it
is unknown); what comes back is a context manager that yields `advance(count)`. `silent` is the default; the command
line passes one that draws bars.

>>> with silent("encode", 3) as advance:
...     advance(3)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

Advance = Callable[[int], None]


class Progress(Protocol):
    def __call__(self, label: str, total: int | None = None, /) -> AbstractContextManager[Advance]: ...


@contextmanager
def silent(label: str, total: int | None = None, /) -> Iterator[Advance]:
    yield lambda count: None


def within(advance: Advance) -> Progress:
    """The progress of work that is a part of other work: it moves the whole's, under no label of its own."""

    def progress(label: str, total: int | None = None, /) -> AbstractContextManager[Advance]:
        return nullcontext(advance)

    return progress
