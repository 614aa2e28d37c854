"""Files: whole or absent, in one order: flushed, renamed, and the folder flushed."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal import files
from vicinal.errors import IndexRefused, InputError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the disk, in order."""
    asked: list[str] = []
    flush, rename = files.flush, files.rename
    monkeypatch.setattr(files, "flush", lambda path: (asked.append(f"flush {path.name}"), flush(path)))
    monkeypatch.setattr(files, "rename", lambda a, b: (asked.append(f"rename {a.name} {b.name}"), rename(a, b)))
    return asked


def test_a_folder_is_published_after_all_that_lies_in_it_and_before_the_folder_that_holds_it(
    tmp_path: Path, calls: list[str]
) -> None:
    (tmp_path / "partial" / "inner").mkdir(parents=True)
    (tmp_path / "partial" / "inner" / "deep.txt").write_text("deep")
    (tmp_path / "partial" / "top.txt").write_text("top")

    files.publish(tmp_path / "partial", tmp_path / "final")

    assert calls == [
        "flush deep.txt",
        "flush inner",
        "flush top.txt",
        "flush partial",
        "rename partial final",
        f"flush {tmp_path.name}",
    ]
    assert (tmp_path / "final" / "inner" / "deep.txt").read_text() == "deep"


def test_a_file_is_written_under_another_name_and_then_takes_its_own(tmp_path: Path, calls: list[str]) -> None:
    target = tmp_path / "note.txt"
    target.write_text("old")
    with files.writing(target) as partial:
        partial.write_text("new")
        assert target.read_text() == "old"
        assert partial.name.startswith(".")
    assert target.read_text() == "new"
    assert calls == [f"flush {partial.name}", f"rename {partial.name} note.txt", f"flush {tmp_path.name}"]
    assert names(tmp_path) == ["note.txt"]


def test_what_fails_while_it_is_written_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "note.txt"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt), files.writing(target) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert target.read_text() == "old" and names(tmp_path) == ["note.txt"]


def test_a_place_where_no_file_can_be_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"), files.writing(tmp_path):
        pytest.fail("the block must not run")
    with pytest.raises(InputError, match="make it first"), files.writing(tmp_path / "no" / "a.txt"):
        pytest.fail("the block must not run")


@settings(deadline=None, max_examples=60)
@given(JSON)
def test_equal_values_have_one_text_and_it_is_json(value: object) -> None:
    import json

    text = files.canonical_json(value)
    assert json.loads(text) == value
    assert files.canonical_json(json.loads(text)) == text
    assert files.fingerprint_of(value) == files.fingerprint_of(json.loads(text))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_does_not_have_is_not_written(number: float) -> None:
    with pytest.raises(ValueError):
        files.canonical_json({"score": number})


def test_the_order_of_keys_does_not_show() -> None:
    assert files.fingerprint_of({"a": 1, "b": 2}) == files.fingerprint_of({"b": 2, "a": 1})
    assert files.fingerprint_of({"a": 1}) != files.fingerprint_of({"a": "1"})


def test_a_second_writer_is_refused_at_once_and_the_next_one_is_not(tmp_path: Path) -> None:
    with files.alone(tmp_path / "x"):
        with pytest.raises(IndexRefused, match="another process is writing"), files.alone(tmp_path / "x"):
            pytest.fail("two writers at once")
        with files.alone(tmp_path / "y"):
            pass
    with files.alone(tmp_path / "x"):
        pass
    if sys.platform != "win32":
        assert not names(tmp_path)


def test_the_lock_is_free_when_its_process_was_killed(tmp_path: Path) -> None:
    hold = f"""
import sys, pathlib
from vicinal import files
with files.alone(pathlib.Path({str(tmp_path / "x")!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    with pytest.raises(IndexRefused), files.alone(tmp_path / "x"):
        pytest.fail("two writers at once")
    child.kill()
    child.communicate()
    assert (tmp_path / ".x.lock").exists(), "a killed process leaves its file"
    with files.alone(tmp_path / "x"):
        pass


def test_of_many_writers_one_works_at_a_time(tmp_path: Path) -> None:
    inside, most, entered = 0, 0, 0
    guard = threading.Lock()

    def write() -> None:
        nonlocal inside, most, entered
        for _ in range(30):
            try:
                with files.alone(tmp_path / "x"):
                    with guard:
                        inside, entered = inside + 1, entered + 1
                        most = max(most, inside)
                    with guard:
                        inside -= 1
            except IndexRefused:
                pass

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and entered


def test_removing_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    files.remove(tmp_path / "link")
    files.remove(tmp_path / "never was")
    assert (tmp_path / "folder" / "file").exists() and not (tmp_path / "link").exists()
    files.remove(tmp_path / "folder")
    assert not names(tmp_path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "a.bin"),
            "the disk is full (No space left on device: a.bin)",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "no permission (Permission denied: /x)"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "y"), "No such file or directory: y"),
        (OSError("a library's own words"), "a library's own words"),
    ],
)
def test_an_error_of_the_system_becomes_a_sentence(error: OSError, said: str) -> None:
    assert files.explain(error).startswith(said)
    assert "\n" not in files.explain(error)


def test_what_a_killed_process_left_among_temporary_files_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}; from vicinal import files; import os;"
    killed = subprocess.run(
        [sys.executable, "-c", program + "print(files.scratch()[0], flush=True); os._exit(9)"], capture_output=True
    )
    left = Path(killed.stdout.decode().strip())
    mine, done = files.scratch()
    assert left.is_dir() and mine.is_dir(), "it may still be in the making"
    for folder in (left, mine):
        old = time.time() - 2 * files.SCRATCH_SECONDS
        os.utime(folder / files.SCRATCH_LOCK, (old, old))
    other, other_done = files.scratch()
    assert not left.exists() and mine.is_dir() and other.is_dir(), "one in use stays"
    done()
    other_done()
    assert not list(tmp_path.iterdir())
