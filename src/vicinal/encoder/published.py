"""Published CDE checkpoints -> our two-stage encoder, and back.

A folder enters, with config.json and *.safetensors in the layout of the public CDE code; a `TwoStage` in the published
layout leaves. The one idea: the weights say what they are. The family, the sizes, the number of layers, whether there
is a null embedding or a soft prompt are read off the state's keys and shapes; only what shapes cannot tell (heads,
rotary bases, norms' epsilon) comes from `backbone_config`, where there is one, else from what the family's public model
has. So nothing is ever downloaded, and a backbone's name is not looked up.

    first_stage_model.embedder.*      M1               second_stage_model.backbone.*            M2
    first_stage_model.mlp.*           to_context       second_stage_model.prompt_projection.*   soft
    second_stage_model.sequence_dropout_null_embedding second_stage_model.output_projection.*   head

Versions disagree (docs/decisions.md). NomicBERT weights are read as the first published generation: no residual head,
context positions unrotated, type embedding on text only. ModernBERT and BERT weights are read as the second: residual
head, context in positions 0 to C-1, so that the order of the context matters (`config.order_matters` says so), and text
through the embedding's norm (and BERT's positions) twice. `residual` overrides the head. Not checked against weights
from a hub: there was no network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError, VicinalError
from .backbone import FAMILIES, read_weights
from .contextual import ContextualConfig, TwoStage

FIRST, SECOND = "first_stage_model.embedder.", "second_stage_model.backbone."
JOINS = {  # published -> ours
    "first_stage_model.mlp.": "to_context.",
    "second_stage_model.prompt_projection.": "soft.",
    "second_stage_model.output_projection.": "head.",
    "second_stage_model.sequence_dropout_null_embedding": "null",
}
NOMIC = {  # published -> transformers' NomicBertModel; Wqkv is three of them
    "emb_ln.": "embeddings.LayerNorm.",
    "encoder.layers.": "layers.",
    ".attn.out_proj.": ".self_attn.o_proj.",
    ".mlp.fc11.": ".mlp.up_proj.",
    ".mlp.fc12.": ".mlp.gate_proj.",
    ".mlp.fc2.": ".mlp.down_proj.",
    ".norm1.": ".post_attention_layernorm.",
    ".norm2.": ".post_mlp_layernorm.",
}
WQKV, QKV = ".attn.Wqkv.", (".self_attn.q_proj.", ".self_attn.k_proj.", ".self_attn.v_proj.")
NOT_OURS = ("pooler.", "embeddings.position_ids", "embeddings.token_type_ids", "rotary_emb.")  # heads and buffers
MARK = "transductive_corpus_size"  # of a published checkpoint's config.json
HEAD_WIDTH = 64  # of every public backbone that CDE was trained on


def load(
    folder: str | Path, *, residual: bool | None = None, instruction_end: int | None = None, device: str = "cpu"
) -> TwoStage:
    """Read a published checkpoint's folder, in evaluation mode and 32 bit.

    `instruction_end` is the token id of ":"; it is asked for where the checkpoint leaves instructions out of pooling.
    """
    path = Path(folder)
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} has no config.json; expected the folder of a published CDE checkpoint") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path / 'config.json'} cannot be read ({error}): fetch the checkpoint again") from None
    state = read_weights(path)
    given = config.get("backbone_config") or {}
    try:
        model = from_state(state, config, given, residual=residual, instruction_end=instruction_end)
    except VicinalError:
        raise
    except (
        AssertionError,
        AttributeError,
        KeyError,
        IndexError,
        RuntimeError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"the files of {path} do not fit together ({reason}): fetch the checkpoint again") from None
    return model.to(device)


def from_state(
    state: Mapping[str, Tensor],
    config: Mapping[str, Any],
    backbone_config: Mapping[str, Any],
    *,
    residual: bool | None = None,
    instruction_end: int | None = None,
) -> TwoStage:
    """A state in the published layout, the checkpoint's config.json and its backbone's -> the encoder."""
    state = _with_both_tables(state)
    family = family_of(state)
    second = backbone(state, SECOND, backbone_config)
    first = backbone(state, FIRST, backbone_config)
    settings = settings_of(state, config, family, residual, instruction_end)
    model = TwoStage(first, second, settings)
    missing, unknown = model.load_state_dict(ours(state), strict=False)
    if settings.share_tokens:
        missing = [name for name in missing if not name.endswith("embeddings.weight")]
    if missing or unknown:
        raise ModelError(
            f"the checkpoint lacks {len(missing)} weights and has {len(unknown)} that are not known here, the first is "
            f"{[*missing, *unknown][0]}: expected the layout of the public CDE code"
        )
    return model.eval()


def family_of(state: Mapping[str, Tensor]) -> str:
    """NomicBERT, ModernBERT or BERT, by the names of the second stage's weights.

    >>> family_of({"second_stage_model.backbone.emb_ln.weight": torch.ones(1)})
    'nomic_bert'
    """
    marks = {"emb_ln.weight": "nomic_bert", "embeddings.tok_embeddings.weight": "modernbert"}
    marks["embeddings.position_embeddings.weight"] = "bert"
    for stage, (mark, family) in product((SECOND, FIRST), marks.items()):
        if stage + mark in state:
            return family
    raise ModelError(
        "the weights are of no family that is known here: expected a CDE checkpoint (second_stage_model.backbone...) "
        "on NomicBERT, ModernBERT or BERT; a decoder as second stage is not supported"
    )


def _with_both_tables(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A token table that the stages share may be stored once, under either of them."""
    whole = dict(state)
    for table in ("embeddings.tok_embeddings.weight", "embeddings.word_embeddings.weight"):
        for one, other in ((FIRST, SECOND), (SECOND, FIRST)):
            if one + table in state:
                whole.setdefault(other + table, state[one + table])
    return whole


def settings_of(
    state: Mapping[str, Tensor],
    config: Mapping[str, Any],
    family: str,
    residual: bool | None,
    instruction_end: int | None,
) -> ContextualConfig:
    """The fields of config.json that shape an encoder; the rest is about training."""
    documents = config.get(MARK)
    if documents is None:
        raise ModelError("config.json lacks transductive_corpus_size: expected the number of context documents")
    if config.get("architecture", "transductive") not in ("transductive", "biencoder") or config.get(
        "autoregressive_backbone"
    ):
        raise ModelError("config.json is of a decoder or of another architecture; expected a two-stage encoder")
    if config.get("pooling_strategy", "mean") != "mean":
        raise ModelError(
            f"config.json pools by {config['pooling_strategy']!r}; published encoders only work with 'mean'"
        )
    leaves_out = bool(config.get("pool_ignore_instruction_tokens", False))
    if leaves_out and instruction_end is None:
        raise ModelError(
            "the checkpoint leaves instructions out of pooling: give the token id of ':', instruction_end=..."
        )
    has_null = "second_stage_model.sequence_dropout_null_embedding" in state
    soft = state.get("second_stage_model.prompt_projection.2.weight")
    plain_head = family == "nomic_bert" if residual is None else not residual
    return ContextualConfig(
        attention="two-way",
        published=True,
        position_free=family == "nomic_bert" and bool(config.get("disable_transductive_rotary_embedding", True)),
        documents=int(documents),
        tokens_per_document=int(config.get("transductive_tokens_per_document", 1)),
        share_tokens=bool(config.get("transductive_tie_token_embeddings", False)),
        soft_tokens=0 if soft is None else soft.shape[0] // soft.shape[1],
        sequence_dropout=float(config.get("transductive_sequence_dropout_prob", 0.0)) if has_null else 0.0,
        context_dropout=0.0,
        null_embedding=has_null,
        pool_context=not config.get("pool_ignore_contextual_tokens", True),
        instruction_end=instruction_end if leaves_out else None,
        head="plain" if plain_head else "residual",
    )


def backbone(state: Mapping[str, Tensor], stage: str, given: Mapping[str, Any]) -> Any:
    """An empty transformers model of a stage's family and sizes."""
    import transformers

    family = family_of(state)
    shape = {name.removeprefix(stage): tensor.shape for name, tensor in state.items() if name.startswith(stage)}
    words = shape.get("embeddings.tok_embeddings.weight", shape.get("embeddings.word_embeddings.weight"))
    if words is None:
        raise ModelError(
            f"the checkpoint has no token table under {SECOND}: expected the layout of the public CDE code"
        )
    numbers = {found[1] for name in shape if (found := re.search(r"layers?\.(\d+)\.", name))}
    sizes = {
        "vocab_size": words[0],
        "hidden_size": words[1],
        "num_hidden_layers": len(numbers),
        "num_attention_heads": given.get("n_head") or given.get("num_attention_heads") or words[1] // HEAD_WIDTH,
    }
    if family == "modernbert":
        fields: dict[str, Any] = {**given, **sizes, "intermediate_size": shape["layers.0.mlp.Wo.weight"][1]}
        fields["layer_types"] = None
    elif family == "nomic_bert":
        fields = {
            **sizes,
            "intermediate_size": shape["encoder.layers.0.mlp.fc2.weight"][1],
            "type_vocab_size": shape["embeddings.token_type_embeddings.weight"][0],
            "max_position_embeddings": given.get("n_positions") or 2048,
            "layer_norm_eps": given.get("layer_norm_epsilon") or 1e-12,
            "hidden_dropout_prob": given.get("resid_pdrop") or 0.0,
            "attention_probs_dropout_prob": given.get("attn_pdrop") or 0.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": float(given.get("rotary_emb_base") or 1000)},
            "pad_token_id": given.get("pad_token_id") or 0,
        }
    else:
        fields = {
            **given,
            **sizes,
            "intermediate_size": shape["encoder.layer.0.intermediate.dense.weight"][0],
            "type_vocab_size": shape["embeddings.token_type_embeddings.weight"][0],
            "max_position_embeddings": shape["embeddings.position_embeddings.weight"][0],
        }
        family = given.get("model_type") or family  # RoBERTa and XLM-R have BERT's names
    fields.pop("model_type", None)
    try:
        built = transformers.AutoConfig.for_model(family, **fields)
        no_pooler = {"add_pooling_layer": False} if family != "modernbert" else {}
        return getattr(transformers, FAMILIES[family])(built, **no_pooler)
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(
            f"backbone_config does not fit the weights ({error}): give that of the checkpoint's backbone"
        ) from None


def ours(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A published state under our names."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for stage, place in ((FIRST, "first."), (SECOND, "second.")):
            inner = name.removeprefix(stage)
            if inner != name and not inner.startswith(NOT_OURS):
                renamed |= {place + key: part for key, part in _native(inner, tensor).items()}
        for published, place in JOINS.items():
            if name.startswith(published):
                renamed[place + name.removeprefix(published)] = tensor
        if not name.startswith((FIRST, SECOND, *JOINS)):
            renamed[name] = tensor  # so that it is refused by its own name
    return renamed


def published(tensors: Mapping[str, Tensor], family: str) -> dict[str, Tensor]:
    """The inverse of `ours`, for weights or for their gradients."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for join, place in JOINS.items():
            if name.startswith(place):
                renamed[join + name.removeprefix(place)] = tensor
        for stage, place in ((FIRST, "first."), (SECOND, "second.")):
            inner = name.removeprefix(place)
            if inner == name:
                continue
            if family != "nomic_bert":
                renamed[stage + inner] = tensor
            elif QKV[0] in inner:
                thirds = [tensors[name.replace(QKV[0], part)] for part in QKV]
                renamed[stage + _replaced(inner.replace(QKV[0], WQKV), NOMIC, back=True)] = torch.cat(thirds)
            elif not any(part in inner for part in QKV):
                renamed[stage + _replaced(inner, NOMIC, back=True)] = tensor
    return renamed


def _native(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """One backbone weight under the names of transformers."""
    if not (name.startswith(("emb_ln.", "encoder.layers."))):
        return {name: tensor}
    renamed = _replaced(name, NOMIC)
    if WQKV not in renamed:
        return {renamed: tensor}
    return {renamed.replace(WQKV, part): third for part, third in zip(QKV, tensor.chunk(3), strict=True)}


def _replaced(name: str, names: Mapping[str, str], *, back: bool = False) -> str:
    for published_name, native in names.items():
        name = name.replace(native, published_name) if back else name.replace(published_name, native)
    return name
