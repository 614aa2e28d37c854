"""Shipped weights: their form, their size, where they come from."""

from __future__ import annotations

import filecmp
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vicinal
from vicinal.encoder import shipped
from vicinal.encoder.backbone import read_weights, unpack
from vicinal.encoder.folder import find

ROOT = Path(__file__).parent.parent.parent
WEIGHTS = ROOT / "src" / "vicinal" / "weights"
START = "granite-embedding-30m-english"
MIB = 1 << 20


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_all_shipped_weights_stay_under_40_mib_and_the_start_model_under_34() -> None:
    assert size(WEIGHTS) < 40 * MIB
    assert size(WEIGHTS / START) < 34 * MIB


def test_every_folder_of_weights_is_listed_with_its_license_and_its_size() -> None:
    listed = {model.name: model for model in shipped()}
    assert set(listed) == {path.name for path in WEIGHTS.iterdir() if path.is_dir()} >= {"tiny", START}
    for model in listed.values():
        assert model.license == "Apache-2.0"
        assert model.about
        assert model.bytes == size(model.folder)
    assert {"LICENSE", "NOTICE.md"} <= {path.name for path in listed[START].folder.iterdir()}


def test_a_compact_weight_is_its_integers_times_the_scale_of_64_neighbours() -> None:
    random = torch.Generator().manual_seed(0)
    integers = torch.randint(-127, 128, (5, 192), generator=random, dtype=torch.int8)
    scale = torch.rand(5, 3, generator=random)
    plain = torch.rand(7, generator=random)
    weights = unpack({"a.weight.int8": integers, "a.weight.scale": scale, "a.bias": plain})
    assert set(weights) == {"a.weight", "a.bias"}
    assert weights["a.bias"] is plain
    for row in range(5):
        for column in range(192):
            assert weights["a.weight"][row, column] == integers[row, column].float() * scale[row, column // 64]


def test_the_start_models_tensors_are_those_of_the_compact_formula() -> None:
    folder = find(START).folder
    stored, weights = load_file(folder / "model.int8.safetensors"), read_weights(folder)
    assert len(weights) == 101
    for name, tensor in weights.items():
        if f"{name}.int8" in stored:
            scale = stored[f"{name}.scale"].repeat_interleave(64, dim=1)
            assert torch.equal(tensor, stored[f"{name}.int8"].float() * scale), name
        else:
            assert torch.equal(tensor, stored[name]), name


def test_the_start_models_tensors_are_those_that_its_own_script_unpacks(test_data: Path) -> None:
    theirs = runpy.run_path(str(test_data / "models" / "unpack.py"))["unpack"](
        load_file(test_data / "models" / START / "model.int8.safetensors")
    )
    ours = read_weights(find(START).folder)
    assert set(ours) == set(theirs)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_the_start_models_files_are_those_that_were_handed_over(test_data: Path) -> None:
    source = test_data / "models" / START
    names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    assert len(names) == 7
    assert filecmp.cmpfiles(source, WEIGHTS / START, names, shallow=False) == (names, [], [])


def test_what_is_computed_with_are_the_unpacked_tensors() -> None:
    encoder = vicinal.load(START, precision="fp32")
    state, weights = encoder._reader._backbone.model.state_dict(), read_weights(find(START).folder)
    assert set(state) == set(weights)
    assert all(torch.equal(state[name], weights[name]) for name in state)


def test_the_tiny_encoder_is_made_again_byte_by_byte(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tests" / "make_tiny.py", tmp_path], check=True, cwd=tmp_path)
    names = ["config.json", "model.int8.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert filecmp.cmpfiles(tmp_path, WEIGHTS / "tiny", names, shallow=False) == (names, [], [])


def test_texts_that_share_words_are_near_each_other_in_the_tiny_encoder(tiny: vicinal.Encoder) -> None:
    texts = ["you may cancel the service", "the service you may cancel", "rainfall over mountains"]
    cosines = tiny.encode_documents(texts).dense @ tiny.encode_documents(texts).dense.T
    assert cosines[0, 1] > 0.75 > 0.6 > cosines[0, 2]


@pytest.mark.slow
def test_in_16_bit_real_texts_have_nearly_the_vectors_of_32_bit(test_data: Path) -> None:
    texts: list[str] = []
    for name in ("legal-summ", "cosqa", "scifact", "cisi"):
        collection = vicinal.Collection.read(test_data / "data" / "collections" / name)
        texts += [document.content for document, _ in zip(collection.corpus, range(150), strict=False)]
        texts += list(collection.queries.values())[:50]
    encoders = [vicinal.load(START, precision=name, max_document_tokens=192) for name in ("fp32", "bf16")]
    full, short = (encoder.encode_documents(texts).dense for encoder in encoders)
    assert (full * short).sum(axis=1).min() >= 0.9995
