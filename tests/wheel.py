"""What `make wheel` built, as another machine would meet it: `python tests/wheel.py dist`.

Looks into the one wheel of a folder, then runs it from a folder of its own, outside this tree and its editable install.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MOST_BYTES = 42 << 20  # all weights stay below 40 MiB, and everything else is small
NEEDED = ("vicinal/py.typed", "vicinal/weights/tiny/tokenizer.json", "licenses/LICENSE")
LICENCE_OF_MODEL = "licenses/src/vicinal/weights/granite-embedding-30m-english/LICENSE"


def check(folder: Path) -> str:
    (wheel,) = folder.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for ending in (*NEEDED, LICENCE_OF_MODEL):
        assert any(name.endswith(ending) for name in names), f"{wheel.name} lacks {ending}"
    strange = [name for name in names if not name.startswith(("vicinal/", "vicinal-"))]
    assert not strange, f"{wheel.name} holds {strange}"
    assert wheel.stat().st_size <= MOST_BYTES, f"{wheel.name} has {wheel.stat().st_size:,} bytes"
    with tempfile.TemporaryDirectory() as site:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--no-index", "--target", site, str(wheel)], check=True)
        ask = "import vicinal; assert vicinal.load('tiny').dim == 64; print(vicinal.__file__)"
        environment = os.environ | {"PYTHONPATH": site}  # before the editable install
        told = subprocess.run(
            [sys.executable, "-c", ask], env=environment, cwd=site, check=True, capture_output=True, text=True
        )
        assert Path(told.stdout.strip()).is_relative_to(Path(site).resolve()), told.stdout
    return f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB, {len(names)} files; it loads its models on its own"


if __name__ == "__main__":
    print(check(Path(sys.argv[1])))
