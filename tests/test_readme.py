"""What the README and the pages in docs/ show is what happens: their `python` and `console` blocks are run.

A page's blocks run from top to bottom in one temporary folder that holds the examples, the Python ones in one
namespace. Of a console block, the lines that begin with "$ " are commands, and what stands below each is its standard
output: "..." there stands for anything, a time for any time, and a fraction for one that differs by a hundredth of
it or by one in its last place, as far as sums in another order may take it on another processor.
"""

from __future__ import annotations

import doctest
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# What `make` does once its environment is there; of the tests, this is one.
MADE = {"make demo": "python examples/demo.py", "make test": ""}
TIME = re.compile(r"\b[\d.]+ (?:s|min|h)\b")
FRACTION = re.compile(r"[-+]?\d+\.\d+")


@dataclass(frozen=True)
class Block:
    """A block of code in a page; `line` is its fence's."""

    kind: str
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(fence[1], text[: fence.start()].count("\n") + 1, fence[2]) for fence in fences]


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and the output that stands below it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def is_shown(expected: str, output: str) -> bool:
    """Whether a page's output is what a command printed.

    >>> is_shown("two ...\\n 1.50  in 3 s", "two words\\nor more\\n   1.51 in 4.1 s"), is_shown("1.50", "1.53")
    (True, False)
    """
    words = TIME.sub("...", expected).split()
    pattern = r"\s+".join(
        f"({FRACTION.pattern})" if FRACTION.fullmatch(word) else re.escape(word).replace(r"\.\.\.", ".*?")
        for word in words
    )
    found = re.fullmatch(pattern, output.strip(), re.DOTALL)
    fractions = [word for word in words if FRACTION.fullmatch(word)]
    return found is not None and all(
        math.isclose(float(printed), float(shown), rel_tol=0.01, abs_tol=1.01 * 0.1 ** len(shown.partition(".")[2]))
        for printed, shown in zip(found.groups(), fractions, strict=True)
    )


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = {page: [block for block in blocks(page) if block.kind in ("console", "python")] for page in PAGES}


def test_every_block_of_the_readme_is_of_a_kind_that_is_run() -> None:
    assert {block.kind for block in blocks(ROOT / "README.md")} == {"console", "python"}


@pytest.mark.parametrize("page", [page for page in RUN if RUN[page]], ids=lambda page: page.name)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("*.vicinal*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    names: dict[str, Any] = {}
    for block in RUN[page]:
        where = f"{page.name}, line {block.line}"
        if block.kind == "python":
            run_python(block, names, where)
        else:
            for command, expected in commands(block):
                run_command(MADE.get(command, command), expected, where)


def run_python(block: Block, names: dict[str, Any], where: str) -> None:
    told: list[str] = []
    test = doctest.DocTestParser().get_doctest(block.text, names, where, where, block.line)
    assert test.examples, f"{where}: expected an example with >>>"
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=told.append, clear_globs=False)
    names.update(test.globs)
    assert not told, "".join(told)


def run_command(command: str, expected: str, where: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    run = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0, f"{where}: {command}\n{run.stderr}"
    assert is_shown(expected, run.stdout), f"{where}: {command}\nshown:\n{expected}\nprinted:\n{run.stdout}"
