"""A model's folder -> a transformers module, and token ids -> the states of its last layer.

config.json and *.safetensors enter; a transformers model leaves, and `Backbone` runs it. The one idea: on a CPU the
texts of a batch lie end to end (attention.py), so that no layer ever sees padding; and where only the first token's
state is asked for, the last layer of a BERT-like model is computed for that token alone.

Families: see FAMILIES. Weights may be stored compactly, a matrix NAME as NAME.int8 (rows, columns) and NAME.scale
(rows, columns / 64): weight = int8 * scale, one scale for 64 neighbours of a row.

>>> unpack({"a.int8": torch.ones(1, 64, dtype=torch.int8), "a.scale": torch.tensor([[0.5]])})["a"].unique().tolist()
[0.5]
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import ModelError
from .attention import register, runs_of
from .folder import read_json
from .linear import use_onednn
from .pooling import starts
from .prefix import ContextCache, attend

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
STORED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# NomicBERT's first published configurations have GPT-2's names; transformers reads its weights, but not these.
NOMIC_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}
NOMIC_EXPECTED = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "moe_every_n_layers": 0,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "use_rms_norm": False,
}
NOMIC_WIDTH = 256  # its feed-forward layer's width is rounded up to a multiple of this

_loading = Lock()  # transformers' loader sets torch's default type and its own verbosity, for all threads


class Backbone:
    """A transformer and how to run it on texts of any lengths; `packs` lays them end to end, by default on a CPU."""

    def __init__(self, folder: Path, *, device: torch.device, dtype: torch.dtype, packs: bool | None = None) -> None:
        packs = device.type == "cpu" if packs is None else packs
        config = read_config(folder)
        self._run(build(folder, config, read_weights(folder), packed=packs).to(device, dtype), packs)

    @classmethod
    def around(cls, model: Any) -> Backbone:
        """Run a model that is there already and attends by prefix.py, on the device and in the precision it is in."""
        backbone = cls.__new__(cls)
        backbone._run(model, model.device.type == "cpu")
        return backbone

    def _run(self, model: Any, packs: bool) -> None:
        self.model, self.config, self.device, self.packs = model, model.config, model.device, packs
        self.family: str = self.config.model_type
        self.dim: int = self.config.hidden_size
        self.vocabulary: int = self.config.vocab_size
        self.uncounted = uncounted(self.config)
        self.max_tokens: int = self.config.max_position_embeddings - (self.uncounted + 1)
        if self.device.type == "cpu":
            use_onednn(self.model)

    def states(
        self, texts: Sequence[Sequence[int]], *, only_first: bool = False, context: ContextCache | None = None
    ) -> tuple[Tensor, list[int]]:
        """The last layer's states of all texts end to end, and how many belong to each.

        `only_first` asks for each text's first state alone; a family that cannot save by it gives all the same.
        `context` is what the texts stand behind, for a model that attends by prefix.py.
        """
        lengths = [len(ids) for ids in texts]
        if not self.packs:
            return self._padded(texts, lengths, context), lengths
        flat = torch.tensor([token for ids in texts for token in ids])
        places = self._places(flat, lengths)
        if only_first and self.family in BERT_LIKE:
            return self._first(flat, places, lengths, context), [1] * len(texts)
        runs = runs_of(lengths)
        output = self.model(input_ids=flat[None], position_ids=places[None], runs=runs, context=context)
        return output.last_hidden_state[0], lengths

    def _places(self, flat: Tensor, lengths: list[int]) -> Tensor:
        """Each token's position in its own text."""
        counted = (flat != self.uncounted).long()
        number = counted.cumsum(0)
        before = (number - counted)[torch.from_numpy(starts(lengths))].repeat_interleave(torch.tensor(lengths))
        return (number - before) * counted + self.uncounted

    def _first(self, flat: Tensor, places: Tensor, lengths: list[int], context: ContextCache | None) -> Tensor:
        """A BERT-like model whose last layer has keys and values for all tokens, and the rest for first tokens only."""
        runs = runs_of(lengths)
        hidden = self.model.embeddings(input_ids=flat[None], position_ids=places[None])
        *layers, last = self.model.encoder.layer
        for layer in layers:
            hidden = layer(hidden, None, runs=runs, context=context)
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
        scaling = self_attention.scaling
        attended, _ = attend(self_attention, query, key, value, runs=runs, context=context, scaling=scaling)
        chosen = last.attention.output(attended.flatten(2), chosen)
        states: Tensor = last.output(last.intermediate(chosen), chosen)[0]
        return states

    def _padded(self, texts: Sequence[Sequence[int]], lengths: list[int], context: ContextCache | None) -> Tensor:
        """The usual way, for devices where many small attention calls cost more than padding."""
        longest, padding = max(lengths), self.config.pad_token_id or 0
        ids = torch.tensor([[*ids, *[padding] * (longest - len(ids))] for ids in texts], device=self.device)
        real = torch.arange(longest, device=self.device) < torch.tensor(lengths, device=self.device)[:, None]
        output = self.model(input_ids=ids, attention_mask=real.long(), context=context)
        states: Tensor = output.last_hidden_state[real]
        return states


def uncounted(config: Any) -> int:
    """The token that takes no position: RoBERTa's padding, behind whose id its positions begin; else none, -1."""
    return int(config.pad_token_id) if config.model_type in ("roberta", "xlm-roberta") else -1


def read_config(folder: Path) -> Any:
    """Read config.json as transformers' configuration of one of the FAMILIES; every other is refused by name."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no config.json; expected a Hugging Face or sentence-transformers folder")
    return config_of(read_json(path, dict), folder)


def config_of(fields: Mapping[str, Any], folder: Path) -> Any:
    """The fields of a configuration, found in a folder, as transformers' own, checked."""
    family = fields.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ModelError(f"{folder} is of the family {family!r}; those that work are {', '.join(FAMILIES)}")
    if fields.get("is_decoder") or fields.get("position_embedding_type", "absolute") != "absolute":
        raise ModelError(f"{folder} is a decoder or has relative positions; expected a plain encoder")
    from transformers import AutoConfig

    try:
        config = AutoConfig.for_model(**(_nomic(folder, fields) if "n_embd" in fields else fields))
        first_position = config.pad_token_id + 1 if family in ("roberta", "xlm-roberta") else 0
        positions = config.max_position_embeddings - first_position
    except ModelError:
        raise
    except Exception as error:  # its validation raises many kinds
        raise ModelError(
            f"the configuration in {folder} is refused by transformers ({_line(error)}): fetch the model again"
        ) from None
    if positions < 1:
        raise ModelError(
            f"the configuration in {folder} leaves positions for {positions} tokens; expected some: fetch it again"
        )
    return config


def _nomic(folder: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """NomicBERT's first configuration under the names of today; a variant that transformers lacks is refused."""
    for name, value in NOMIC_EXPECTED.items():
        if fields.get(name) is not None and fields[name] != value:
            raise ModelError(f"{folder} is a NomicBERT with {name} = {fields[name]!r}; only {value!r} works")
    inner = fields.get("n_inner") or int(8 * fields["n_embd"] / 3)
    return {
        **{NOMIC_NAMES.get(name, name): value for name, value in fields.items()},
        "intermediate_size": -(-inner // NOMIC_WIDTH) * NOMIC_WIDTH,
        "rope_parameters": {"rope_type": "default", "rope_theta": fields.get("rotary_emb_base", 10000.0)},
        "hidden_act": "silu",
    }


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read every *.safetensors file of a folder, compact matrices unpacked; nothing else is ever opened."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            weights |= load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(f"{path} is damaged ({_line(error)}): fetch the model again") from None
    weights = unpack(weights)
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            continue
        if tensor.dtype not in STORED:
            raise ModelError(f"the weight {name} in {folder} is of type {tensor.dtype}; expected 32 or 16 bit floats")
        if tensor.numel() and not all(extreme.isfinite() for extreme in tensor.aminmax()):
            raise ModelError(f"the weight {name} in {folder} holds NaN or infinity: fetch the model again")
    return weights


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: one whole file, or the parts that an index names."""
    for name in ("model.safetensors", "model.int8.safetensors"):
        if (folder / name).is_file():
            return [folder / name]
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if list(folder.glob("*.bin")):
            raise ModelError(
                f"{folder} has its weights as pickled *.bin only, which may run code when opened; convert them with "
                "transformers: AutoModel.from_pretrained(folder).save_pretrained(folder)"
            )
        raise ModelError(f"{folder} has no model.safetensors; expected the weights beside config.json")
    parts = read_json(index, dict).get("weight_map")
    names = sorted(set(map(str, parts.values()))) if isinstance(parts, dict) else []
    if not names or not all(re.fullmatch(r"[\w.-]+\.safetensors", name) for name in names):
        raise ModelError(f"{index} names {names[:3] or 'no parts'}; expected *.safetensors files beside it")
    for name in names:
        if not (folder / name).is_file():
            raise ModelError(f"{folder / name} is missing, although {index.name} names it: fetch the model again")
    return [folder / name for name in names]


def unpack(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reconstruct the matrices of the compact form; everything else is handed on as it is."""
    weights = {}
    for name, tensor in stored.items():
        if name.endswith(".int8"):
            name = name.removesuffix(".int8")
            scale = stored.get(f"{name}.scale")
            if scale is None or scale.ndim != 2 or tensor.shape != (scale.shape[0], scale.shape[1] * GROUP):
                raise ModelError(f"the compact weight {name} lacks a scale of its shape: fetch the model again")
            groups = tensor.float().view(*scale.shape, GROUP)
            weights[name] = groups.mul_(scale[..., None]).flatten(1)
        elif not name.endswith(".scale"):
            weights[name] = tensor
    return weights


def build(folder: Path, config: Any, weights: dict[str, Tensor], *, packed: bool) -> Any:
    """Put weights into transformers' module: all that it needs must be there; heads that we do not use are left out."""
    if config.num_hidden_layers > len(weights):
        raise ModelError(
            f"config.json of {folder} asks for {config.num_hidden_layers} layers, but its weights are {len(weights)} "
            "in all: fetch the model again"
        )
    import transformers

    if config.model_type == "nomic_bert":  # as the base of other heads its weights are below "bert."
        weights = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
    pooler = {} if config.model_type == "modernbert" else {"add_pooling_layer": False}
    with _loading, _quiet():
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
            raise ModelError(f"the weights in {folder} do not fit its config.json ({_line(error)})") from None
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"{folder} lacks {len(missing)} weights, the first is {missing[0]}: not whole, or another model's"
        )
    known = {_numberless(name) for name in model.state_dict()}
    if beyond := sorted(name for name in report["unexpected_keys"] if _numberless(name) in known):
        raise ModelError(f"{folder} holds the weight {beyond[0]}, a layer that its config.json lacks: fetch it again")
    return model.eval()


def _numberless(name: str) -> str:
    return re.sub(r"\.\d+\.", ".N.", name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' bar and report off the screen: what matters in them is an error here."""
    from transformers.utils import logging as screen

    verbosity, bar = screen.get_verbosity(), screen.is_progress_bar_enabled()
    screen.set_verbosity(logging.CRITICAL)
    screen.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        screen.set_verbosity(verbosity)
        if bar:
            screen.enable_progress_bar()  # type: ignore[no-untyped-call]


def _line(error: BaseException) -> str:
    """An error's text as one short line."""
    return " ".join(str(error).split())[:200]
