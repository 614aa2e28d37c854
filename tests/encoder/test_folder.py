"""What a model's folder says: pooling, prompts, limits, projections; and folders that say it wrongly.

benchmarks/encoding.py reads folders that sentence-transformers saved, with both libraries; here they are written by
hand.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vicinal
from vicinal.encoder.folder import find, read_recipe
from vicinal.errors import ModelError, VicinalError

TEXTS = ["cats purr", "Either party may terminate this agreement at any time.", "STARS shine on warm nights"]
OLD = "sentence_transformers.models."
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def modules(*kinds: str, old: bool = False, at: str = "") -> list[dict[str, Any]]:
    """modules.json as sentence-transformers writes it, or wrote it."""
    paths = [at if kind == "Transformer" else f"{place}_{kind}" for place, kind in enumerate(kinds)]
    return [
        {"idx": place, "name": str(place), "path": path, "type": f"{OLD}{kind}" if old else NEW[kind]}
        for place, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]


def dense(folder: Path, weight: torch.Tensor, vector: torch.Tensor | None = None, **settings: Any) -> None:
    write(folder / "config.json", {"in_features": weight.shape[1], "out_features": weight.shape[0], **settings})
    save_file(
        {"linear.weight": weight} | ({} if vector is None else {"linear.bias": vector}), folder / "model.safetensors"
    )


@pytest.fixture
def folder(bert: Any, tmp_path: Path) -> Path:
    """A plain Hugging Face folder, to be changed."""
    shutil.copytree(bert.folder, tmp_path, dirs_exist_ok=True)
    return tmp_path


def load(folder: Path, **given: Any) -> vicinal.Encoder:
    return vicinal.load(folder, precision="fp32", **given)


# --- What is said.


def test_a_plain_folder_takes_the_mean_without_prompts(folder: Path, bert: Any) -> None:
    encoder = load(folder)
    assert encoder.pooling == "mean"
    for encode in (encoder.encode_documents, encoder.encode_queries):
        np.testing.assert_allclose(encode(TEXTS).dense, bert.vectors(TEXTS, "mean"), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({"pooling_mode": "cls", "embedding_dimension": 32, "include_prompt": True}, "cls"),
        ({"pooling_mode": ["lasttoken"]}, "lasttoken"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "word_embedding_dimension": 32}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "include_prompt": True}, "mean"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}, "mean"),
    ],
)
def test_pooling_is_read_in_its_old_form_and_its_new_one(
    folder: Path, bert: Any, settings: dict[str, Any], pooling: str
) -> None:
    write(folder / "modules.json", modules("Transformer", "Pooling", "Normalize"))
    write(folder / "1_Pooling" / "config.json", settings)
    encoder = load(folder)
    assert encoder.pooling == pooling
    np.testing.assert_allclose(encoder.encode_documents(TEXTS).dense, bert.vectors(TEXTS, pooling), atol=1e-5)


def test_a_pooling_that_is_asked_for_wins_over_the_folders(folder: Path, bert: Any) -> None:
    encoder = load(folder, pooling="lasttoken")
    np.testing.assert_allclose(encoder.encode_documents(TEXTS).dense, bert.vectors(TEXTS, "lasttoken"), atol=1e-5)


def test_the_transformer_may_lie_in_a_folder_of_its_own(bert: Any, tmp_path: Path) -> None:
    shutil.copytree(bert.folder, tmp_path / "0_Transformer")
    write(tmp_path / "0_Transformer" / "sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": False})
    write(tmp_path / "modules.json", modules("Transformer", "Pooling", old=True, at="0_Transformer"))
    write(tmp_path / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    encoder = load(tmp_path)
    assert (encoder.max_document_tokens, encoder.max_query_tokens) == (9, 9)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS).dense, bert.vectors(TEXTS, "cls", 9), atol=1e-5)


PROMPTS = [
    ({}, "", ""),
    ({"prompts": {"query": "search: ", "document": "text: "}}, "search: ", "text: "),
    ({"prompts": {"query": "search: ", "document": ""}}, "search: ", ""),
    ({"prompts": {"query": "search: ", "passage": "text: "}}, "search: ", "text: "),
    ({"prompts": {"query": "search: ", "corpus": "text: "}}, "search: ", "text: "),
    ({"prompts": {"all": "any: "}, "default_prompt_name": "all"}, "any: ", "any: "),
    ({"prompts": {"all": "any: "}, "default_prompt_name": None}, "", ""),
    ({"prompts": {"all": "any: ", "query": "", "document": ""}, "default_prompt_name": "all"}, "", ""),
    ({"prompts": {"query": None, "document": "text: "}, "default_prompt_name": None}, "", "text: "),
]


@pytest.mark.parametrize(("settings", "query", "document"), PROMPTS)
def test_prompts_stand_before_each_text(
    folder: Path, bert: Any, settings: dict[str, Any], query: str, document: str
) -> None:
    write(folder / "config_sentence_transformers.json", settings)
    encoder = load(folder)
    for encode, prompt in ((encoder.encode_queries, query), (encoder.encode_documents, document)):
        expected = bert.vectors([prompt + text for text in TEXTS], "mean")
        np.testing.assert_allclose(encode(TEXTS).dense, expected, atol=1e-5)


def test_projections_are_applied_in_their_order(folder: Path, bert: Any) -> None:
    random = torch.Generator().manual_seed(0)
    first, second = torch.randn(24, 32, generator=random) / 4, torch.randn(8, 24, generator=random) / 4
    bias = torch.randn(24, generator=random)
    write(folder / "modules.json", modules("Transformer", "Pooling", "Dense", "Dense", "Normalize"))
    write(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    dense(folder / "2_Dense", first, bias, bias=True, activation_function="torch.nn.modules.activation.Tanh")
    dense(folder / "3_Dense", second, bias=False, activation_function="torch.nn.modules.linear.Identity")
    encoder = load(folder)
    assert encoder.dim == 8
    pooled = torch.stack([states.mean(dim=0) for states in bert.states(TEXTS)])
    expected = torch.nn.functional.normalize(torch.tanh(pooled @ first.T + bias) @ second.T, dim=1)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS).dense, expected.numpy(), atol=1e-5)


def test_do_lower_case_lowers_what_the_tokenizer_would_not(make_model: Callable[..., Any], tmp_path: Path) -> None:
    made = make_model("roberta")
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    write(tmp_path / "modules.json", modules("Transformer", "Pooling"))
    write(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    cased = load(tmp_path).encode_documents(TEXTS).dense
    write(tmp_path / "sentence_bert_config.json", {"do_lower_case": True})
    lowered = load(tmp_path).encode_documents(TEXTS).dense
    np.testing.assert_allclose(lowered, made.vectors([text.lower() for text in TEXTS], "mean"), atol=1e-5)
    assert np.abs(lowered - cased).max() > 0.01


def test_documents_and_queries_may_have_limits_of_their_own(folder: Path) -> None:
    write(folder / "sentence_bert_config.json", {"query_length": 7, "document_length": 9})
    encoder = load(folder)
    assert (encoder.max_document_tokens, encoder.max_query_tokens) == (9, 7)


@pytest.mark.parametrize(
    ("settings", "tokenizer", "limit"),
    [
        ({"max_seq_length": 7}, {"model_max_length": 9}, 7),
        ({"max_seq_length": None}, {"model_max_length": 9}, 9),
        ({}, {"model_max_length": 9}, 9),
        ({}, {"model_max_length": 1000000000000000019884624838656}, 512),
        ({}, {}, 512),
        ({"max_seq_length": 4000}, {}, 512),
    ],
)
def test_the_limit_is_the_folders_own_and_never_more_than_positions(
    folder: Path, settings: dict[str, Any], tokenizer: dict[str, Any], limit: int
) -> None:
    write(folder / "sentence_bert_config.json", settings)
    write(folder / "tokenizer_config.json", tokenizer)
    assert load(folder).max_document_tokens == limit
    assert load(folder, max_document_tokens=11).max_document_tokens == 11


# --- What is said wrongly: one fault each, and what must stand in the sentence.


def broken(name: str, value: Any) -> Callable[[Path], None]:
    return lambda folder: write(folder / name, value)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def config(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        write(path, {**json.loads(path.read_text(encoding="utf-8")), **fields})

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def fault(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return fault


def truncated(name: str) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return cut


def pickled_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def parts(weight_map: Any) -> Callable[[Path], None]:
    def split(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-1.safetensors")
        write(folder / "model.safetensors.index.json", {"weight_map": weight_map})

    return split


def as_modules(value: Any, pooling: Any = None, **files: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        write(folder / "modules.json", value)
        write(folder / "1_Pooling" / "config.json", pooling or {"pooling_mode": "mean"})
        for name, content in files.items():
            write(folder / name.replace("__", "/").replace("_json", ".json"), content)

    return change


def projection(weight: torch.Tensor, bias: torch.Tensor | None = None, **settings: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        as_modules(modules("Transformer", "Pooling", "Dense"))(folder)
        dense(folder / "2_Dense", weight, bias, **settings)

    return change


def larger_vocabulary(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["purr"] = 400
    write(folder / "tokenizer.json", tokenizer)


def numbers(tensors: dict[str, torch.Tensor], value: float) -> None:
    tensors["encoder.layer.1.output.dense.weight"][3, 4] = value


def one_layer_less(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if ".layer.2." in name]:
        tensors.pop(name)


def other_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["embeddings.word_embeddings.weight"] = torch.zeros(400, 16)


def other_model(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        tensors[f"vision.{name}"] = tensors.pop(name)


def compact(scale: torch.Tensor | None) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["a.int8"] = torch.ones(2, 128, dtype=torch.int8)
        if scale is not None:
            tensors["a.scale"] = scale

    return change


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "config.json is missing": (without("config.json"), "has no config.json"),
    "config.json is no JSON": (broken("config.json", "{"), "config.json cannot be read"),
    "config.json is empty": (broken("config.json", ""), "config.json cannot be read"),
    "config.json is a list": (broken("config.json", []), "holds []; expected an object"),
    "config.json is nested deeply": (broken("config.json", "[" * 100_000), "config.json cannot be read"),
    "config.json has no family": (broken("config.json", {}), "is of the family None; those that work are bert,"),
    "config.json is of an unknown family": (config(model_type="t5"), "is of the family 't5'; those that work"),
    "config.json has a list as family": (config(model_type=["bert"]), "is of the family ['bert']"),
    "config.json is of a decoder": (config(is_decoder=True), "is a decoder"),
    "config.json has relative positions": (config(position_embedding_type="relative_key"), "relative positions"),
    "config.json has a text for a number": (config(hidden_size="wide"), "is refused by transformers"),
    "config.json has no number for heads": (config(num_attention_heads=0), "do not fit"),
    "config.json has an unknown activation": (config(hidden_act="sinus"), "do not fit"),
    "config.json has no positions": (config(max_position_embeddings=0), "leaves positions for 0 tokens"),
    "config.json asks for a layer more": (
        config(num_hidden_layers=4),
        "lacks 16 weights, the first is encoder.layer.3",
    ),
    "config.json asks for a layer less": (config(num_hidden_layers=2), "holds the weight encoder.layer.2.attention"),
    "config.json asks for millions of layers": (config(num_hidden_layers=10**7), "asks for 10000000 layers, but its"),
    "config.json asks for other sizes": (config(intermediate_size=65), "do not fit its config.json"),
    "weights are missing": (without("model.safetensors"), "has no model.safetensors"),
    "weights are pickled": (pickled_only, "pickled *.bin only, which may run code when opened; convert them with"),
    "weights are truncated": (truncated("model.safetensors"), "model.safetensors is damaged"),
    "weights are empty": (broken("model.safetensors", ""), "model.safetensors is damaged"),
    "weights hold NaN": (weights(lambda t: numbers(t, float("nan"))), "holds NaN or infinity"),
    "weights hold infinity": (weights(lambda t: numbers(t, float("inf"))), "holds NaN or infinity"),
    "weights hold minus infinity": (weights(lambda t: numbers(t, -float("inf"))), "holds NaN or infinity"),
    "weights lack a layer": (weights(one_layer_less), "lacks 16 weights"),
    "weights are of another shape": (weights(other_shape), "do not fit its config.json"),
    "weights are another model's": (weights(other_model), "not whole, or another model's"),
    "weights are of another type": (
        weights(lambda t: t.update(extra=torch.zeros(2).to(torch.float8_e4m3fn))),
        "is of type torch.float8_e4m3fn; expected 32 or 16 bit floats",
    ),
    "a compact weight lacks its scale": (weights(compact(None)), "the compact weight a lacks a scale of its shape"),
    "a compact weight has another's scale": (weights(compact(torch.ones(2, 3))), "lacks a scale of its shape"),
    "a compact weight has one number as scale": (weights(compact(torch.tensor(1.0))), "lacks a scale of its shape"),
    "a part of the weights is missing": (
        parts({"a": "model-1.safetensors", "b": "model-2.safetensors"}),
        "model-2.safetensors is missing, although",
    ),
    "a part of the weights lies outside": (
        parts({"a": "../model-1.safetensors"}),
        "expected *.safetensors files beside",
    ),
    "a part of the weights is pickled": (parts({"a": "model-1.bin"}), "expected *.safetensors files beside it"),
    "the index of the weights is a list": (parts(["model-1.safetensors"]), "names no parts"),
    "tokenizer.json is missing": (without("tokenizer.json"), "has no tokenizer.json; expected a fast tokenizer's file"),
    "tokenizer.json is no JSON": (broken("tokenizer.json", "{"), "tokenizer.json is damaged"),
    "tokenizer.json is truncated": (truncated("tokenizer.json"), "tokenizer.json is damaged"),
    "tokenizer.json is another file": (broken("tokenizer.json", {"a": 1}), "tokenizer.json is damaged"),
    "tokenizer.json has more tokens than the weights": (
        larger_vocabulary,
        "gives ids up to 400, but its weights 400 tokens",
    ),
    "tokenizer_config.json is a list": (broken("tokenizer_config.json", []), "expected an object"),
    "modules.json is no JSON": (as_modules("nonsense"), "modules.json cannot be read"),
    "modules.json is an object": (as_modules({}), "holds {}; expected a list"),
    "modules.json holds no modules": (as_modules([1]), "lists 1; expected a module's type and path"),
    "modules.json holds a module without a path": (as_modules([{"type": "x"}]), "expected a module's type and path"),
    "modules.json names an unknown module": (
        as_modules([*modules("Transformer", "Pooling"), {"path": "2", "type": "sentence_transformers.models.LSTM"}]),
        "has the module LSTM, which is not known here: those that work are Transformer, Pooling, Dense, Normalize",
    ),
    "modules.json is in another order": (
        as_modules(modules("Transformer", "Pooling", "Normalize", "Dense")),
        "chains Transformer > Pooling > Normalize > Dense; expected",
    ),
    "modules.json lacks the pooling": (as_modules(modules("Transformer")), "chains Transformer; expected"),
    "modules.json leads out of its folder": (
        as_modules([{**modules("Transformer")[0], "path": "../elsewhere"}]),
        "leads out of its folder, to ../elsewhere",
    ),
    "modules.json leads to the root": (
        as_modules([{**modules("Transformer")[0], "path": "/etc"}]),
        "leads out of its folder, to /etc",
    ),
    "modules.json leads to nothing": (as_modules(modules("Transformer", "Pooling", at="0")), "has no config.json"),
    "the pooling has no settings": (
        broken("modules.json", modules("Transformer", "Pooling")),
        "1_Pooling/config.json is missing",
    ),
    "the pooling is unknown": (
        as_modules(modules("Transformer", "Pooling"), {"pooling_mode": "max"}),
        "pools by max; those that work are cls, mean, lasttoken",
    ),
    "the pooling is two": (
        as_modules(
            modules("Transformer", "Pooling"), {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}
        ),
        "pools by cls and max",
    ),
    "the pooling leaves prompts out": (
        as_modules(
            modules("Transformer", "Pooling"),
            {"pooling_mode": "mean", "include_prompt": False},
            config_sentence_transformers_json={"prompts": {"query": "q: "}},
        ),
        "leaves prompts out of pooling",
    ),
    "the prompts are a list": (
        broken("config_sentence_transformers.json", {"prompts": ["q: "]}),
        "expected a name and",
    ),
    "a prompt is a number": (
        broken("config_sentence_transformers.json", {"prompts": {"query": 1}}),
        "expected a name and",
    ),
    "the default prompt is unknown": (
        broken("config_sentence_transformers.json", {"prompts": {"a": "b"}, "default_prompt_name": "c"}),
        "the default prompt of",
    ),
    "the default prompt is a list": (
        broken("config_sentence_transformers.json", {"default_prompt_name": []}),
        "is []; its prompts are none",
    ),
    "the settings expand queries": (
        broken("sentence_bert_config.json", {"query_expansion": {"strategy": "fixed", "length": 32}}),
        "sets query_expansion, which is not known here",
    ),
    "modules.json is a link to nothing": (
        lambda folder: (folder / "modules.json").symlink_to(folder / "nowhere"),
        "modules.json is missing",
    ),
    "the limit is a text": (
        broken("sentence_bert_config.json", {"max_seq_length": "long"}),
        "limits texts to 'long' tokens",
    ),
    "the limit is negative": (broken("sentence_bert_config.json", {"max_seq_length": -1}), "limits texts to -1 tokens"),
    "the limit is too small": (
        broken("sentence_bert_config.json", {"max_seq_length": 2}),
        "a limit of 2 tokens leaves no room for text: special tokens take 2; give at least 3",
    ),
    "the projection has no weights": (
        as_modules(modules("Transformer", "Pooling", "Dense"), **{"2_Dense__config_json": {}}),
        "2_Dense has no model.safetensors",
    ),
    "the projection takes another width": (projection(torch.zeros(8, 16)), "projects 16 dimensions, but has 32"),
    "the projection is a vector": (projection(torch.zeros(1, 8)[0][None]), "projects 8 dimensions, but has 32"),
    "the projection's bias does not fit": (projection(torch.zeros(8, 32), torch.zeros(7)), "matrix and bias"),
    "the projection's activation is unknown": (
        projection(torch.zeros(8, 32), activation_function="os.system"),
        "a projection's activation is os.system; those that work are Identity,",
    ),
    "the projection has a residual": (projection(torch.zeros(8, 32), use_residual=True), "with a residual"),
    "the projection projects tokens": (
        projection(torch.zeros(8, 32), module_input_name="token_embeddings"),
        "or of other inputs; only a plain one works",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_folder_is_refused_in_one_sentence(folder: Path, fault: str) -> None:
    spoil, said = FAULTS[fault]
    spoil(folder)
    with pytest.raises(VicinalError) as refused:
        load(folder)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_prompt_longer_than_the_limit_is_refused(folder: Path) -> None:
    write(folder / "config_sentence_transformers.json", {"prompts": {"query": "stars shine on warm nights"}})
    with pytest.raises(VicinalError, match=r"special tokens and the prompt 'stars .*' take \d+; give at least \d+"):
        load(folder, max_query_tokens=5)


# --- Where a model lies.


def test_a_shipped_name_is_found_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find("tiny").source == "tiny"
    assert find("./tiny").folder == tmp_path / "tiny"


def test_a_relative_folder_is_remembered_by_its_full_path(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(Path()).settings["source"] == str(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "nowhere",
        "./nowhere",
        "~/nowhere",
        "~nobody-at-all/x",
        "/no/where",
        "a/b/c",
        "a" * 5000,
        "x\0y",
        "../x/y",
        "a/b?c",
    ],
)
def test_a_name_that_is_no_model_is_refused_without_asking_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(ModelError, match=r"expected a shipped name .*tiny.*, a model's folder, or owner/name"):
        vicinal.load(name)


def test_what_the_hub_lacks_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, **_: Any) -> str:
        raise OSError(f"no route\nto {name}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ModelError, match=r"'owner/name' is no folder here.*OSError: no route to owner/name.*check the"):
        vicinal.load("owner/name")


def test_what_the_hub_gives_is_loaded_and_only_safe_files_are_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def give(name: str, **given: Any) -> str:
        asked.update(given, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", give)
    encoder = load("owner/name-v1.5")  # type: ignore[arg-type]
    assert (encoder.name, encoder.settings["source"], asked["name"]) == ("owner/name-v1.5",) * 3
    assert asked["allow_patterns"] == ["*.safetensors", "*.json"]


def test_the_recipe_of_a_plain_folder_is_the_default_one(folder: Path) -> None:
    recipe = read_recipe(folder)
    assert (recipe.pooling, recipe.prompts, recipe.dense) == ("mean", {"query": "", "document": ""}, ())
