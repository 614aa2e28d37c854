"""A model's folder -> a transformers module, and token ids -> the states of its last layer.

config.json and *.safetensors enter; an untouched transformers model leaves, and `Backbone` runs it. The one idea: on a
CPU the texts of a batch lie end to end (attention.py), so that no layer ever sees padding; and where only the first
token's state is asked for, the last layer of a BERT-like model is computed for that token alone.

Families: see FAMILIES. Weights may be stored compactly, a matrix NAME as NAME.int8 (rows, columns) and NAME.scale
(rows, columns / 64): weight = int8 * scale, one scale for 64 neighbours of a row.

>>> unpack({"a.int8": torch.ones(1, 64, dtype=torch.int8), "a.scale": torch.tensor([[0.5]])})["a"].unique().tolist()
[0.5]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import ModelError
from .attention import packed, register, runs_of
from .pooling import starts

# model_type of config.json -> transformers' class
FAMILIES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "modernbert": "ModernBertModel",
    "nomic_bert": "NomicBertModel",
}
BERT_LIKE = ("bert", "roberta", "xlm-roberta")
GROUP = 64  # neighbours in a row that share a scale in the compact form

# NomicBERT's first published configurations have GPT-2's names; transformers reads its weights, but not these.
NOMIC_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}


class Backbone:
    """A transformer and how to run it on texts of any lengths."""

    def __init__(self, folder: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        self.config = read_config(folder)
        self.family: str = self.config.model_type
        self.dim: int = self.config.hidden_size
        self.device = device
        self.packs = device.type == "cpu"
        self.model = build(self.config, read_weights(folder), packed=self.packs).to(device, dtype)
        self.first_position = self.config.pad_token_id + 1 if self.family in ("roberta", "xlm-roberta") else 0
        self.max_tokens: int = self.config.max_position_embeddings - self.first_position

    def states(self, texts: Sequence[Sequence[int]], *, only_first: bool = False) -> tuple[Tensor, list[int]]:
        """The last layer's states of all texts end to end, and how many belong to each.

        `only_first` asks for each text's first state alone; a family that cannot save by it gives all the same.
        """
        lengths = [len(ids) for ids in texts]
        if not self.packs:
            return self._padded(texts, lengths), lengths
        flat = torch.tensor([[token for ids in texts for token in ids]])
        places = torch.cat([torch.arange(length) for length in lengths])[None] + self.first_position
        if only_first and self.family in BERT_LIKE:
            return self._first(flat, places, lengths), [1] * len(texts)
        output = self.model(input_ids=flat, position_ids=places, runs=runs_of(lengths))
        return output.last_hidden_state[0], lengths

    def _first(self, flat: Tensor, places: Tensor, lengths: list[int]) -> Tensor:
        """A BERT-like model whose last layer has keys and values for all tokens, and the rest for first tokens only."""
        runs = runs_of(lengths)
        hidden = self.model.embeddings(input_ids=flat, position_ids=places)
        *layers, last = self.model.encoder.layer
        for layer in layers:
            hidden = layer(hidden, None, runs=runs)
        chosen = hidden[:, torch.from_numpy(starts(lengths))]  # (1, texts, dim)
        self_attention = last.attention.self
        query, key, value = (
            project(states).unflatten(-1, (-1, self_attention.attention_head_size)).transpose(1, 2)
            for project, states in (
                (self_attention.query, chosen),
                (self_attention.key, hidden),
                (self_attention.value, hidden),
            )
        )
        attended, _ = packed(None, query, key, value, runs=runs, scaling=self_attention.scaling)
        chosen = last.attention.output(attended.flatten(2), chosen)
        return last.output(last.intermediate(chosen), chosen)[0]

    def _padded(self, texts: Sequence[Sequence[int]], lengths: list[int]) -> Tensor:
        """The usual way, for devices where many small attention calls cost more than padding."""
        longest = max(lengths)
        ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in texts], device=self.device)
        places = torch.arange(longest, device=self.device)[None]
        real = places < torch.tensor(lengths, device=self.device)[:, None]
        output = self.model(
            input_ids=ids, attention_mask=real.long(), position_ids=(places + self.first_position).expand_as(ids)
        )
        return output.last_hidden_state[real]


def read_config(folder: Path) -> Any:
    """Read config.json as transformers' configuration of one of the FAMILIES; every other is refused by name."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        family = fields["model_type"]
    except FileNotFoundError:
        raise ModelError(f"{folder} has no config.json; expected a Hugging Face or sentence-transformers folder") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} cannot be read as a model's configuration ({error!r}): fetch the model again") from None
    if family not in FAMILIES:
        raise ModelError(f"{folder.name} is of the family {family!r}; those that work are {', '.join(FAMILIES)}")
    if fields.get("is_decoder") or fields.get("position_embedding_type", "absolute") != "absolute":
        raise ModelError(f"{folder.name} is a decoder or has relative positions; expected a plain encoder")
    if "n_embd" in fields:
        _refuse_other_nomic(folder, fields)
        fields = {NOMIC_NAMES.get(name, name): value for name, value in fields.items()}
        fields["rope_parameters"] = {"rope_type": "default", "rope_theta": fields.get("rotary_emb_base", 10000.0)}
        fields["hidden_act"] = "silu"
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(**fields)
    except Exception as error:  # its validation raises many kinds
        raise ModelError(f"{path} is refused by transformers ({_line(error)}): fetch the model again") from None


def _refuse_other_nomic(folder: Path, fields: Mapping[str, Any]) -> None:
    expected = {
        "activation_function": "swiglu",
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "moe_every_n_layers": 0,
    }
    for name, value in expected.items():
        if fields.get(name, value) not in (value, None):
            raise ModelError(f"{folder.name} is a NomicBERT with {name} = {fields[name]!r}; only {value!r} works")


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read every *.safetensors file of a folder, compact matrices unpacked; nothing else is ever opened."""
    paths = weight_files(folder)
    weights: dict[str, Tensor] = {}
    for path in paths:
        try:
            weights |= load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(f"{path} is damaged ({_line(error)}): fetch the model again") from None
    weights = unpack(weights)
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ModelError(f"the weight {name} in {folder} holds NaN or infinity: fetch the model again")
    return weights


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: those of its index where there is one, else model*.safetensors."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            paths = [folder / Path(name).name for name in names]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} is damaged ({error!r}): fetch the model again") from None
    else:
        paths = [path for path in (folder / "model.safetensors", folder / "model.int8.safetensors") if path.is_file()][:1]
        if not paths and list(folder.glob("*.bin")):
            raise ModelError(
                f"{folder} has its weights as pickled *.bin only, which may run code when opened; convert them with "
                "transformers: AutoModel.from_pretrained(folder).save_pretrained(folder)"
            )
        if not paths:
            raise ModelError(f"{folder} has no model.safetensors; expected the weights beside config.json")
    for path in paths:
        if not path.is_file():
            raise ModelError(f"{path} is missing, although {index.name} names it: fetch the model again")
    return paths


def unpack(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reconstruct the matrices of the compact form; everything else is handed on as it is."""
    weights = {}
    for name, tensor in stored.items():
        if name.endswith(".int8"):
            name = name.removesuffix(".int8")
            scale = stored.get(f"{name}.scale")
            if scale is None or tensor.ndim != 2 or (*scale.shape, GROUP) != (*tensor.shape[:1], scale.shape[-1], GROUP):
                raise ModelError(f"the compact weight {name} lacks a scale of its shape: fetch the model again")
            if scale.shape[1] * GROUP != tensor.shape[1]:
                raise ModelError(f"the compact weight {name} lacks a scale of its shape: fetch the model again")
            weights[name] = (tensor.float().unflatten(1, (scale.shape[1], GROUP)) * scale[..., None]).flatten(1)
        elif not name.endswith(".scale"):
            weights[name] = tensor
    return weights


def build(config: Any, weights: dict[str, Tensor], *, packed: bool) -> Any:
    """Put weights into transformers' module: all that it needs must be there; heads that we do not use are left out."""
    import transformers

    pooler = {} if config.model_type == "modernbert" else {"add_pooling_layer": False}
    with _quiet():
        try:
            model, report = getattr(transformers, FAMILIES[config.model_type]).from_pretrained(
                None,
                config=config,
                state_dict=weights,
                dtype=torch.float32,
                attn_implementation=register() if packed else "sdpa",
                output_loading_info=True,
                **pooler,
            )
        except Exception as error:  # its loader raises many kinds
            raise ModelError(f"the weights do not fit config.json ({_line(error)}): fetch the model again") from None
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"{len(missing)} weights are missing, the first is {missing[0]}: the file is not whole, or of another model"
        )
    return model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' bar and report off the screen: what matters in them is an error here."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def _line(error: BaseException) -> str:
    """An error's text as one short line."""
    return " ".join(str(error).split())[:200]
