"""What all tests share: no network, no cache of the user's, the tiny encoder, and the larger test data where it is."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vicinal import Encoder

ROOT = Path(__file__).parent.parent
TEST_DATA = "VICINAL_TEST_DATA"

_caches = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Before anything is imported, so that it holds for the doctests in src and for child processes too."""
    config.stash[_caches] = tempfile.TemporaryDirectory(prefix="vicinal-tests-", ignore_cleanup_errors=True)
    os.environ["VICINAL_CACHE"] = config.stash[_caches].name
    os.environ["HF_HUB_OFFLINE"] = "1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell makes what it starts in the background deaf to Ctrl-C, and with it the commands that tests interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"tests skipped: {len(terminalreporter.stats.get('skipped', []))}")


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_caches].cleanup()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own for every test: what one keeps, another must not find."""
    monkeypatch.setenv("VICINAL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def tiny() -> Encoder:
    """The tiny encoder in 32 bit, loaded once; tests that change an encoder load their own."""
    import vicinal

    return vicinal.load("tiny", precision="fp32")


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of larger test data: VICINAL_TEST_DATA, else `shared` beside the checkout; skips where neither is."""
    given = os.environ.get(TEST_DATA)
    folder = Path(given) if given else ROOT.parent / "shared"
    if given and not folder.is_dir():
        pytest.fail(f"{TEST_DATA} is {given}, which is no folder")
    if not (folder / "data" / "collections").is_dir():
        pytest.skip(f"no test data: set {TEST_DATA} to the folder that holds data/collections")
    return folder
