"""Indexes of every format that was ever released: they open for ever, and give what they gave.

`python tests/index/test_golden.py FORMAT` made them, once, when the format was new. They are never made again: where a
test here fails, the code is wrong.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vicinal
from vicinal import Corpus, Document, Index, files
from vicinal.index.segments import SEGMENTS, FileRecord, Manifest, strangers, verify
from vicinal.search import as_json

DATA = Path(__file__).parent.parent / "data"
FORMATS = sorted(DATA.glob("index-format-*"))
INDEXES = sorted(path.parent for path in DATA.glob("index-format-*/*/manifest.json"))


def told(index: Path) -> dict[str, Any]:
    """What an index gives: everything that does not depend on a model."""
    with Index.open(index) as opened, tempfile.TemporaryDirectory() as folder:
        info = opened.info()
        vectors = np.random.default_rng(11).normal(size=(3, info["dim"])).round(3)
        found = [[as_json(hit) for hit in opened.search_vector(vector, 4)] for vector in vectors]
        found.append([as_json(hit) for hit in opened.search_vector(vectors[0], 4, dim=3)])
        if info["lexical"]:
            found += [[as_json(hit) for hit in opened.search(q, 9, "bm25")] for q in ("rent roof", "courts", "東京の")]
        if not info["refused"]:
            opened.export(Path(folder) / "out.jsonl")
            found.append([json.loads(line) for line in (Path(folder) / "out.jsonl").read_text("utf-8").splitlines()])
    kept = ("documents", "passages", "dim", "context", "format", "counts", "lexical")
    segments = [{key: segment[key] for key in ("name", "documents", "passages")} for segment in info["segments"]]
    refused = [verb for verb in info["refused"] if verb == "export"]  # later versions have more verbs to refuse
    return {"info": {**{key: info[key] for key in kept}, "segments": segments, "refused": refused}, "found": found}


def test_there_is_one_of_every_format() -> None:
    assert [path.name for path in FORMATS] == [f"index-format-{number}" for number in range(1, Manifest.format + 1)]


@pytest.mark.parametrize("index", INDEXES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_it_opens_and_gives_what_it_gave(index: Path) -> None:
    assert verify(index) == [] and strangers(index, Manifest.read(index)) == []
    expected = json.loads((index.parent / f"{index.name}.json").read_text("utf-8"))
    assert json.loads(files.canonical_json(told(index))) == expected


# --- How they were made.

DOCUMENTS = [
    Document("rent", "On rent", "The tenant pays the rent on the first day of the month.", {"year": 1999, "a": [None]}),
    Document("roof", "", "  The landlord repairs the roof, and the roof of the shed."),
    Document("empty", " ", "\n", {"kept": True}),
    Document("court", "Of courts", "Who loses may appeal to a higher court.\0\U0001f600"),
    Document("東京", "東京都", "東京都庁は新宿区にある", {"名": "値"}),
    Document("x" * 70, "", "A rent, a roof, a court. " * 5),
]


def make(folder: Path) -> None:
    """Write the indexes of the format that this version writes."""
    vectors = np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)
    vectors[2] = 0
    ids = [document.id for document in DOCUMENTS]

    Index.from_vectors(folder / "one", ids, vectors, DOCUMENTS, language="english").close()
    Index.from_vectors(folder / "no-text", ids, vectors).close()

    Index.build(
        folder / "tiny", vicinal.load("tiny", precision="fp32"), Corpus.read(DOCUMENTS), keep_text=False
    ).close()

    parts = [slice(0, 2), slice(2, 5), slice(5, 6)]
    several, manifests = folder / "several", []
    (several / SEGMENTS).mkdir(parents=True)
    (several / "tombstones").mkdir()
    for number, part in enumerate(parts):
        one = folder / f"part-{number}"
        language = ("english", "none", "english")[number]
        Index.from_vectors(one, ids[part], vectors[part], DOCUMENTS[part], language=language).close()
        manifests.append(Manifest.read(one))
        name = manifests[-1].segments[0].name
        (one / SEGMENTS / name).rename(several / SEGMENTS / name)
        shutil.rmtree(one)
    segments = [manifest.segments[0] for manifest in manifests]
    dead = f"tombstones/{segments[1].name}.npy"
    np.save(several / dead, np.array([1], dtype=np.int64), allow_pickle=False)
    record = FileRecord((several / dead).stat().st_size, files.sha256_of(several / dead))
    segments[1].tombstones[dead] = record  # type: ignore[index]
    Manifest(None, manifests[0].representations, {}, segments, vicinal=manifests[0].vicinal).write(several)

    for index in sorted(folder.glob("*/manifest.json")):
        files.write_json(folder / f"{index.parent.name}.json", told(index.parent))


if __name__ == "__main__":
    make(DATA / f"index-format-{sys.argv[1]}")
