"""What an encoder promises to its callers: texts of any kind, limits, settings, threads, precision."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vicinal
from vicinal.encoder import Encoder, batches, has_fast_bf16
from vicinal.errors import InputError, VicinalError

TEXTS = ["cats purr", "", "stars shine on warm nights", "Either party may terminate at any time."]


# --- Texts.


@pytest.mark.parametrize(
    "given",
    [
        tuple(TEXTS),
        (text for text in TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        dict.fromkeys(TEXTS).keys(),
        map(str, TEXTS),
    ],
    ids=["tuple", "generator", "array", "array of objects", "keys", "map"],
)
def test_texts_may_come_as_any_iterable(tiny: Encoder, given: Any) -> None:
    np.testing.assert_array_equal(tiny.encode_documents(given).dense, tiny.encode_documents(TEXTS).dense)


def test_no_texts_give_no_vectors(tiny: Encoder) -> None:
    assert tiny.encode_documents([]).dense.shape == (0, 64)
    assert tiny.encode_queries(iter(())).dense.shape == (0, 64)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("cats purr", r"one text was given \('cats purr'\): expected a list of them, so put it into brackets"),
        (b"cats purr", r"one text was given"),
        (None, "texts are of type NoneType; expected a list of str"),
        (3, "texts are of type int; expected a list of str"),
        ([None], "text 0 is of type NoneType; expected str"),
        (["a", ["b"]], "text 1 is of type list; expected str"),
        ([float("nan")], "text 0 is of type float; expected str"),
        (["half \ud800"], "text 0 has half of a surrogate pair at character 5"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(tiny: Encoder, given: Any, said: str) -> None:
    for encode in (tiny.encode_documents, tiny.encode_queries):
        with pytest.raises(InputError, match=said):
            encode(given)


def test_every_text_has_a_vector_of_length_one_even_an_empty_one(tiny: Encoder) -> None:
    texts = ["", " ", "\0", "😀", "שלום", "\ufeff", "[PAD]", "x" * 100_000]
    lengths = np.linalg.norm(tiny.encode_documents(texts).dense, axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)


def test_a_text_without_any_token_has_a_vector_of_zeros(bert: Any, tmp_path: Path) -> None:
    shutil.copytree(bert.folder, tmp_path, dirs_exist_ok=True)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    seen: list[int] = []
    for pooling in ("cls", "mean", "lasttoken"):
        encoder = vicinal.load(tmp_path, pooling=pooling, precision="fp32")
        vectors = encoder.encode_raw(["", "cats", " "], "document", progress=counting(seen)).vectors
        assert np.abs(vectors).max(axis=1).tolist() == [0, pytest.approx(np.abs(vectors[1]).max()), 0]
        assert np.abs(vectors[1]).max() > 0
        assert sum(seen) == 3
        seen.clear()


def test_a_line_of_ten_megabytes_is_cut_at_the_limit(tiny: Encoder) -> None:
    line = "the terms of the service " * 400_000
    raw = tiny.encode_raw([line, "short"], "document")
    assert raw.cut == 1
    assert raw.ends[0] < 64 * 512
    assert raw.ends[1] == 5
    np.testing.assert_allclose(raw.vectors[0], tiny.encode_raw([line[: raw.ends[0]]], "document").vectors[0], atol=1e-5)


def test_raw_vectors_say_how_much_was_read() -> None:
    encoder = vicinal.load("tiny", precision="fp32", max_document_tokens=6, max_query_tokens=5)
    text = "the terms of the service"
    assert [encoder.encode_raw([text], role).ends.tolist() for role in ("document", "query")] == [[16], [12]]
    assert encoder.encode_raw([text, "the"], "document").cut == 1


def test_a_text_that_is_too_long_is_refused_by_its_number_and_its_beginning() -> None:
    encoder = vicinal.load("tiny", max_document_tokens=6, overflow="error")
    assert encoder.encode_raw(["the terms", "the"], "document").cut == 0
    with pytest.raises(InputError, match=r"text 1 \('the terms of the service'\.\.\.\) has more than the 6 tokens"):
        encoder.encode_documents(["the", "the terms of the service"])
    assert encoder.settings == vicinal.load("tiny", max_document_tokens=6).settings
    with pytest.raises(InputError, match="'spill': texts that are too long truncate or error"):
        vicinal.load("tiny", overflow="spill")


def counting(seen: list[int]) -> Any:
    @contextmanager
    def progress(label: str, total: int | None = None, /) -> Iterator[Callable[[int], None]]:
        yield seen.append

    return progress


def test_progress_counts_every_text_once(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vicinal.encoder, "TEXTS_AT_ONCE", 3)
    seen: list[int] = []
    tiny.encode_documents(["the terms"] * 11, progress=counting(seen))
    assert sum(seen) == 11


def test_batches_hold_every_position_once_and_no_more_tokens_than_asked() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(0, 50, 200).tolist()
    made = list(batches(lengths, 64))
    assert sorted(np.concatenate(made).tolist()) == [place for place, length in enumerate(lengths) if length]
    assert all(sum(lengths[place] for place in batch) <= 64 for batch in made)
    assert [batch.tolist() for batch in batches([100], 64)] == [[0]]
    assert list(batches([], 64)) == list(batches([0, 0], 64)) == []


# --- Dimensions, roles, limits.


def test_fewer_dimensions_are_the_first_ones_normalised(tiny: Encoder) -> None:
    raw = tiny.encode_raw(TEXTS, "document").vectors[:, :16]
    expected = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(tiny.encode_documents(TEXTS, dim=16).dense, expected, atol=1e-6)


@pytest.mark.parametrize("dim", [0, -1, 65])
def test_dimensions_that_a_vector_lacks_are_refused_before_anything_is_encoded(
    tiny: Encoder, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny, "encode_raw", lambda *_: pytest.fail("encoded"))
    with pytest.raises(InputError, match=f"--dim {dim} was asked for, but vectors have 64 dimensions"):
        tiny.encode_documents(TEXTS, dim=dim)


def test_an_unknown_role_is_refused(tiny: Encoder) -> None:
    with pytest.raises(InputError, match="there is no role 'passage': texts are encoded as document or as query"):
        tiny.encode_raw(TEXTS, "passage")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"precision": "int4"}, "there is no precision 'int4': choose auto, fp32 or bf16"),
        ({"pooling": "max"}, "there is no pooling 'max': choose one of cls, mean, lasttoken"),
        ({"device": "nonsense"}, "the device 'nonsense' cannot be used here"),
        ({"device": "meta"}, "the device 'meta' cannot be used here"),
        ({"device": "cuda:99"}, "the device 'cuda:99' cannot be used here"),
        ({"max_document_tokens": 513}, "--max-document-tokens 513 was asked for, but the model has 512 positions"),
        ({"max_query_tokens": 0}, "--max-query-tokens 0 was asked for: expected 1 to 512"),
        (
            {"max_query_tokens": 2},
            "a limit of 2 tokens leaves no room for text: special tokens take 2; give at least 3",
        ),
    ],
)
def test_what_cannot_be_loaded_as_asked_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(VicinalError, match=said):
        vicinal.load("tiny", **given)


def test_weights_that_overflow_are_reported_and_not_returned(bert: Any, tmp_path: Path) -> None:
    shutil.copytree(bert.folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights["encoder.layer.2.output.LayerNorm.weight"].fill_(3e38)
    save_file(weights, tmp_path / "model.safetensors")
    encoder = vicinal.load(tmp_path, precision="fp32")
    with pytest.raises(
        VicinalError, match="gives NaN or infinity in fp32: try --precision fp32, or fetch the model ag"
    ):
        encoder.encode_documents(TEXTS)


# --- Settings.


def test_settings_are_json_and_say_what_shapes_a_vector() -> None:
    encoder = vicinal.load("tiny", precision="bf16", max_document_tokens=100)
    settings = json.loads(json.dumps(encoder.settings))
    assert settings.pop("fingerprint") == encoder.fingerprint
    assert settings == {
        "name": "tiny",
        "source": "tiny",
        "dim": 64,
        "pooling": "mean",
        "precision": "bf16",
        "max_document_tokens": 100,
        "max_query_tokens": 512,
        "lane": [0.08, 8.0],
    }


def change_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.bias"][0] += 0.25
    save_file(weights, folder / "model.safetensors")


def change_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"gelu"', '"relu"'), encoding="utf-8")


def change_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    assert '"lowercase": true' in text
    path.write_text(text.replace('"lowercase": true', '"lowercase": false'), encoding="utf-8")


def change_prompt(folder: Path) -> None:
    prompts = {"prompts": {"query": "search: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts), encoding="utf-8")


def change_case(folder: Path) -> None:
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}), encoding="utf-8")


def add_readme(folder: Path) -> None:
    (folder / "README.md").write_text("About this model.", encoding="utf-8")
    (folder / "pytorch_model.bin").write_bytes(b"not opened")


def add_versions(folder: Path) -> None:
    said = {"__version__": {"pytorch": "2.13.0"}, "prompts": {"query": "", "document": ""}, "similarity_fn_name": "dot"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "changes"),
    [
        (change_weight, True),
        (change_config, True),
        (change_tokenizer, True),
        (change_prompt, True),
        (change_case, True),
        (add_readme, False),
        (add_versions, False),
    ],
)
def test_the_fingerprint_changes_with_what_shapes_a_vector_and_with_nothing_else(
    bert: Any, tmp_path: Path, change: Callable[[Path], None], changes: bool
) -> None:
    folder = shutil.copytree(bert.folder, tmp_path / "model")
    before = vicinal.load(folder).fingerprint
    change(folder)
    assert (vicinal.load(folder).fingerprint != before) == changes


def test_the_fingerprint_knows_the_pooling_and_neither_precision_nor_limits_nor_the_folders_name(
    bert: Any, tmp_path: Path
) -> None:
    plain = vicinal.load(bert.folder)
    assert plain.fingerprint == vicinal.load(shutil.copytree(bert.folder, tmp_path / "elsewhere")).fingerprint
    assert plain.fingerprint == vicinal.load(bert.folder, pooling="mean").fingerprint
    assert plain.fingerprint == vicinal.load(bert.folder, precision="bf16", max_query_tokens=9).fingerprint
    assert plain.fingerprint != vicinal.load(bert.folder, pooling="cls").fingerprint


# --- Precision.


@pytest.mark.parametrize(
    ("capabilities", "older", "fast"),
    [
        ({}, [], False),
        ({"avx2": True, "avx512_f": True, "avx512_vnni": True}, [], False),
        ({"avx512_bf16": True}, [], True),
        ({"amx_bf16": True, "avx512_bf16": False}, [], True),
        ({"architecture": "aarch64", "neon": True, "bf16": True}, [], False),
        (None, [], False),
        (None, ["_is_avx512_bf16_supported"], True),
        (None, ["_is_amx_tile_supported"], True),
    ],
)
def test_a_cpu_is_fast_in_16_bit_where_it_has_the_instructions(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, Any] | None, older: list[str], fast: bool
) -> None:
    cpu = SimpleNamespace(**{name: lambda: True for name in older})
    if capabilities is not None:
        cpu.get_capabilities = lambda: capabilities
    monkeypatch.setattr(torch, "cpu", cpu)
    assert has_fast_bf16(torch.device("cpu")) == fast


def test_auto_is_16_bit_where_that_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for fast, precision in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(vicinal.encoder, "has_fast_bf16", lambda _, fast=fast: fast)
        assert vicinal.load("tiny").precision == precision
        assert vicinal.load("tiny", precision="fp32").precision == "fp32"


# --- Threads, and what importing costs.


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_threads_that_share_an_encoder_get_the_vectors_of_one(precision: str) -> None:
    encoder = vicinal.load("tiny", precision=precision)
    texts = [f"clause {n} of the terms " * (n % 9) for n in range(120)]
    expected = encoder.encode_documents(texts).dense
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(encoder.encode_documents(texts).dense)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for vectors in found:
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_models_may_be_loaded_by_several_threads(bert: Any) -> None:
    found: list[tuple[str, torch.dtype]] = []

    def load() -> None:
        encoder = vicinal.load(bert.folder, precision="fp32")
        found.append((encoder.fingerprint, next(encoder._reader._backbone.model.parameters()).dtype))

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(vicinal.load(bert.folder).fingerprint, torch.float32)] * 6
    assert torch.get_default_dtype() == torch.float32


def test_loading_prints_nothing(capfd: pytest.CaptureFixture[str], make_model: Callable[..., Any]) -> None:
    for folder in ("tiny", make_model("roberta").folder):
        capfd.readouterr()
        vicinal.load(folder).encode_documents(TEXTS)
        assert capfd.readouterr() == ("", "")


def test_importing_costs_neither_torch_nor_transformers() -> None:
    program = """if True:
        import sys, vicinal
        assert not {"torch", "transformers", "tokenizers", "numpy"} & set(sys.modules), "import vicinal"
        vicinal.load
        assert not {"transformers", "sentence_transformers", "datasets"} & set(sys.modules), "vicinal.load"
        vicinal.load("tiny").encode_queries(["cats purr"])
        assert not {"sentence_transformers", "datasets"} & set(sys.modules), "encode"
    """
    subprocess.run([sys.executable, "-c", program], check=True)
