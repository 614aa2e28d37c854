"""What a person sees: lines, tables and progress. The library knows nothing of it, and documents cannot steer it.

Results go to standard output; progress, remarks and errors to standard error. The one idea: whatever is written here
passes through `printable` first, so that no id, title or path can move the cursor, forge a line or set a colour.

>>> say(("red", "bold"), " is [bold]not[/bold] \\x1b[31mred")
red is [bold]not[/bold] �[31mred
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from .progress import Advance, Progress, silent

LINE_CHARACTERS = 200  # of a text's beginning where there is no terminal to fit it to
LINE_SECONDS = 10  # between two lines of progress where there is no terminal to draw on
JOINERS = "\u200c\u200d"  # invisible, but Persian and the scripts of India are misspelt without them

Part = str | tuple[str, str]  # text, or text and its style


def printable(text: str) -> str:
    """Text on one line: white space becomes spaces, what controls a terminal or is no character becomes �.

    >>> printable("one\\ntwo \\x1b]0;title\\x07 \\u202etxt.exe \\udcff")
    'one two �]0;title� �txt.exe �'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in JOINERS else " " if c.isspace() else "\ufffd" for c in text)


def say(*parts: Part) -> None:
    """Print one line of a result; styles show on terminals only."""
    styled = [(printable(part), "") if isinstance(part, str) else (printable(part[0]), part[1]) for part in parts]
    if not sys.stdout.isatty():
        print("".join(text for text, _ in styled))
        return
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text.assemble(*styled), soft_wrap=True)


def say_beginning(text: str, *, indent: int) -> None:
    """Print the beginning of a text: two lines of a terminal, or elsewhere one line.

    >>> say_beginning("Cats purr\\nwhen they are content.", indent=4)
        Cats purr when they are content.
    >>> say_beginning("purr " * 1000, indent=4)
        purr purr ... purr ...
    """
    width, lines = (shutil.get_terminal_size().columns, 2) if sys.stdout.isatty() else (LINE_CHARACTERS, 1)
    width, margin = max(width, 40), " " * indent
    beginning = printable(text[: 4 * width])
    for line in textwrap.wrap(
        beginning, width, max_lines=lines, placeholder=" ...", initial_indent=margin, subsequent_indent=margin
    ):
        say(line)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1) -> None:
    """Print rows under their columns: the first `text` ones to the left, the others, numbers, to the right.

    >>> table(["mode", "nDCG@10"], [["dense", "84.0"], ["dense+bm25", "9.5"]])
    mode        nDCG@10
    dense          84.0
    dense+bm25      9.5
    """
    lines = [[printable(cell) for cell in line] for line in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = [c.ljust(w) if n < text else c.rjust(w) for n, (c, w) in enumerate(zip(line, widths, strict=True))]
        say(("  ".join(cells).rstrip(), "" if number else "bold"))


def complain(sentence: str) -> None:
    """Print one line to standard error; where even that cannot be written, the exit code must do."""
    with suppress(OSError):
        print(printable(sentence), file=sys.stderr, flush=True)


def progress_on_stderr(quiet: bool = False) -> Progress:
    """Progress as the place allows: a bar with the time left, or a line now and then where there is no terminal."""
    if quiet:
        return silent
    return _bar if sys.stderr.isatty() else _lines


@contextmanager
def _bar(label: str, total: int | None = None, /) -> Iterator[Advance]:
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.TaskProgressColumn("{task.percentage:>3.0f} %", text_format_no_percentage="{task.completed:,.0f}"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as drawing:
        task = drawing.add_task(label, total=total)
        yield lambda count: drawing.advance(task, count)


@contextmanager
def _lines(label: str, total: int | None = None, /) -> Iterator[Advance]:
    start = said = time.monotonic()
    done = 0

    def advance(count: int) -> None:
        nonlocal said, done
        done += count
        now = time.monotonic()
        if now - said >= LINE_SECONDS and done:
            said = now
            left = f" of {total:,}, {duration((now - start) / done * (total - done))} left" if total else ""
            complain(f"{label}: {done:,}{left}")

    yield advance


def duration(seconds: float) -> str:
    """A time as it is said.

    >>> duration(9.04), duration(500), duration(9000)
    ('9 s', '8 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
