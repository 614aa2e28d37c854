"""Every family against transformers' own model, padded; and the laws of batching, for each."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import vicinal
from vicinal.encoder.backbone import Backbone
from vicinal.encoder.pooling import POOLINGS
from vicinal.errors import ModelError

TEXTS = [
    "The licensee may not sublicense the software.",
    "cats purr",
    "",
    "Either party may terminate this agreement at any time, with or without cause, upon thirty days' written notice. "
    * 3,
    "Ünïcödé, ﬁgures １２３ and 😀 😀",
    "a <pad> in the middle [PAD] of a text",
    "stars shine on warm nights",
    "stars shine on cold nights",
]
MAX_TOKENS = 128

Make = Callable[..., Any]


def load(folder: Path, **given: Any) -> vicinal.Encoder:
    return vicinal.load(folder, **{"precision": "fp32", "max_document_tokens": MAX_TOKENS, **given})


def vectors(encoder: vicinal.Encoder, texts: list[str]) -> np.ndarray:
    return encoder.encode_documents(texts).dense


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_equal_those_of_transformers_own_model(made: Any, pooling: str) -> None:
    ours = vectors(load(made.folder, pooling=pooling), TEXTS)
    np.testing.assert_allclose(ours, made.vectors(TEXTS, pooling, MAX_TOKENS), atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_one_by_one_equals_in_a_batch_equals_in_a_shuffled_batch(made: Any, pooling: str) -> None:
    encoder = load(made.folder, pooling=pooling)
    together = vectors(encoder, TEXTS)
    alone = np.concatenate([vectors(encoder, [text]) for text in TEXTS])
    order = random.Random(0).sample(range(len(TEXTS)), len(TEXTS))
    shuffled = vectors(encoder, [TEXTS[place] for place in order])
    np.testing.assert_allclose(alone, together, atol=1e-5)
    np.testing.assert_allclose(shuffled, together[order], atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_in_16_bit_neighbours_change_next_to_nothing(made: Any, pooling: str) -> None:
    encoder = load(made.folder, pooling=pooling, precision="bf16")
    together = vectors(encoder, TEXTS)
    alone = np.concatenate([vectors(encoder, [text]) for text in TEXTS])
    assert (alone * together).sum(axis=1).min() >= 0.9995
    assert (together * vectors(load(made.folder, pooling=pooling), TEXTS)).sum(axis=1).min() >= 0.998


def test_small_batches_give_what_one_large_batch_gives(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(made.folder)
    large = vectors(encoder, TEXTS)
    monkeypatch.setitem(vicinal.encoder.BATCH_TOKENS, "cpu", 16)
    monkeypatch.setattr(vicinal.encoder, "TEXTS_AT_ONCE", 3)
    np.testing.assert_allclose(vectors(encoder, TEXTS), large, atol=1e-5)


def test_padding_gives_what_lying_end_to_end_gives(made: Any) -> None:
    packed, padded = (
        Backbone(made.folder, device=torch.device("cpu"), dtype=torch.float32, packs=packs) for packs in (True, False)
    )
    ids = [[5, 6, 7], [9] * 40, [8], [7, 6, 5]]
    with torch.inference_mode():
        (ours, lengths), (theirs, same) = packed.states(ids), padded.states(ids)
    assert lengths == same == [3, 40, 1, 3]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_a_text_may_be_as_long_as_the_model_has_positions(made: Any) -> None:
    encoder = vicinal.load(made.folder, precision="fp32")
    most = encoder.max_document_tokens
    assert most == made.model.config.max_position_embeddings - (2 if "roberta" in made.family else 0)
    if most > 1024:  # a family of 8192 positions: as many take long, and no table of them can run out
        encoder = vicinal.load(made.folder, precision="fp32", max_document_tokens=1024)
    text = "cats purr " * most
    raw = encoder.encode_raw([text], "document")
    assert raw.cut == 1
    assert len(encoder._tokenizers["document"].read([text]).ids[0]) == encoder.max_document_tokens
    expected = made.vectors([text], "mean", encoder.max_document_tokens)
    np.testing.assert_allclose(vectors(encoder, [text]), expected, atol=1e-5)


def test_more_tokens_than_positions_are_refused(bert: Any) -> None:
    with pytest.raises(vicinal.VicinalError, match="--max-query-tokens 600 was asked for, but the model has 512 pos"):
        vicinal.load(bert.folder, max_query_tokens=600)


def test_local_attention_sees_half_a_window_to_each_side(make_model: Make) -> None:
    made = make_model("modernbert", num_hidden_layers=1, layer_types=["sliding_attention"])
    backbone = Backbone(made.folder, device=torch.device("cpu"), dtype=torch.float32)
    ids = [7] * 40
    changed = [*ids[:20], 8, *ids[21:]]
    with torch.inference_mode():
        difference = (backbone.states([ids])[0] - backbone.states([changed])[0]).abs().amax(dim=1)
    assert difference.nonzero().flatten().tolist() == list(range(20 - 8, 20 + 8 + 1))


def test_weights_below_a_head_are_found(make_model: Make, tmp_path: Path) -> None:
    for family, head in (("bert", transformers.BertForMaskedLM), ("roberta", transformers.RobertaForMaskedLM)):
        made = make_model(family)
        folder = tmp_path / family
        whole = head(made.model.config)
        getattr(whole, family).load_state_dict(made.model.state_dict(), strict=False)
        whole.save_pretrained(folder)
        shutil.copy(made.folder / "tokenizer.json", folder)
        assert "cls.predictions.bias" in load_file(folder / "model.safetensors") or family == "roberta"
        np.testing.assert_array_equal(vectors(load(folder), TEXTS), vectors(load(made.folder), TEXTS))


def test_weights_under_the_oldest_names_are_found(bert: Any, tmp_path: Path) -> None:
    weights = load_file(bert.folder / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights.items()
    }
    old["embeddings.position_ids"] = torch.arange(512)[None]
    shutil.copytree(bert.folder, tmp_path, dirs_exist_ok=True)
    save_file(old, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(vectors(load(tmp_path), TEXTS), vectors(load(bert.folder), TEXTS))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_stored_in_another_precision_are_read(bert: Any, tmp_path: Path, kind: torch.dtype) -> None:
    stored = {name: tensor.to(kind) for name, tensor in load_file(bert.folder / "model.safetensors").items()}
    for folder, weights in (("a", stored), ("b", {name: tensor.float() for name, tensor in stored.items()})):
        shutil.copytree(bert.folder, tmp_path / folder)
        save_file(weights, tmp_path / folder / "model.safetensors")
    np.testing.assert_array_equal(vectors(load(tmp_path / "a"), TEXTS), vectors(load(tmp_path / "b"), TEXTS))


def test_weights_in_parts_equal_weights_in_one_file(bert: Any, tmp_path: Path) -> None:
    shutil.copytree(bert.folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    bert.model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    np.testing.assert_array_equal(vectors(load(tmp_path), TEXTS), vectors(load(bert.folder), TEXTS))


def test_links_are_followed(bert: Any, tmp_path: Path) -> None:
    """The hub's cache is made of them."""
    for path in bert.folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    np.testing.assert_array_equal(vectors(load(tmp_path), TEXTS), vectors(load(bert.folder), TEXTS))


def published_nomic(made: Any, folder: Path, below: str = "", **config: Any) -> Path:
    """A NomicBERT as it was first published: GPT-2's names in config.json, its own names of weights."""
    ours = made.model.config
    first = {
        "model_type": "nomic_bert",
        "activation_function": "swiglu",
        "architectures": ["NomicBertModel"],
        "auto_map": {"AutoConfig": "configuration_hf_nomic_bert.NomicBertConfig"},
        "causal": False,
        "dense_seq_output": True,
        "layer_norm_epsilon": ours.layer_norm_eps,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "n_embd": ours.hidden_size,
        "n_head": ours.num_attention_heads,
        "n_inner": 200,
        "n_layer": ours.num_hidden_layers,
        "n_positions": ours.max_position_embeddings,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_base": ours.rope_parameters["rope_theta"],
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "type_vocab_size": 2,
        "vocab_size": ours.vocab_size,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**first, **config}), encoding="utf-8")
    shutil.copy(made.folder / "tokenizer.json", folder)
    names = {
        "embeddings.LayerNorm": "emb_ln",
        "layers.": "encoder.layers.",
        "self_attn.o_proj": "attn.out_proj",
        "up_proj": "fc11",
        "gate_proj": "fc12",
        "down_proj": "fc2",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in made.model.state_dict().items():
        for new, old in names.items():
            name = name.replace(new, old)
        weights[below + name] = tensor.clone()
    for layer in range(ours.num_hidden_layers):
        start = f"{below}encoder.layers.{layer}."
        thirds = [weights.pop(f"{start}self_attn.{part}_proj.weight") for part in "qkv"]
        weights[f"{start}attn.Wqkv.weight"] = torch.cat(thirds)
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def nomic(make_model: Make) -> Any:
    rope = {"rope_type": "default", "rope_theta": 777.0}
    return make_model("nomic_bert", max_position_embeddings=300, layer_norm_eps=0.1, rope_parameters=rope)


@pytest.mark.parametrize("below", ["", "bert."])
def test_a_nomicbert_as_first_published_is_read(nomic: Any, tmp_path: Path, below: str) -> None:
    ours = vectors(load(published_nomic(nomic, tmp_path / "nomic", below)), TEXTS)
    np.testing.assert_allclose(ours, nomic.vectors(TEXTS, "mean", MAX_TOKENS), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rotary_emb_fraction", 0.0),
        ("rotary_emb_interleaved", True),
        ("rotary_scaling_factor", 2),
        ("activation_function", "gelu"),
        ("prenorm", True),
        ("qkv_proj_bias", True),
        ("moe_every_n_layers", 2),
    ],
)
def test_a_nomicbert_that_transformers_lacks_is_refused(nomic: Any, tmp_path: Path, name: str, value: Any) -> None:
    folder = published_nomic(nomic, tmp_path / "nomic", **{name: value})
    with pytest.raises(ModelError, match=f"is a NomicBERT with {name} = {value!r}; only .* works"):
        load(folder)


def test_a_modernbert_with_the_names_of_its_first_release_is_read(make_model: Make, tmp_path: Path) -> None:
    rope = {
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 77.0},
    }
    made = make_model("modernbert", layer_types=None, global_attn_every_n_layers=2, rope_parameters=rope)
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    fields = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    for new in ("layer_types", "rope_parameters"):
        fields.pop(new)
    fields |= {"global_attn_every_n_layers": 2, "global_rope_theta": 5000.0, "local_rope_theta": 77.0}
    fields |= {"local_attention": 16, "position_embedding_type": "absolute", "reference_compile": False}
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    np.testing.assert_allclose(vectors(load(tmp_path), TEXTS), made.vectors(TEXTS, "mean", MAX_TOKENS), atol=1e-5)
