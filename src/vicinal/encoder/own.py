"""Our own folder of a two-stage encoder: `save` writes it, `load` gives the same model bit for bit.

    config.json          {"model_type": "vicinal", "format": 1, "contextual": ..., "first": ..., "second": ...}, without
                         "first" where the encoder attends to no context
    model.safetensors    the state of `TwoStage`; a token table that both stages share is stored once, as the second's
    tokenizer.json, config_sentence_transformers.json, sentence_bert_config.json      tokens, prompts, limits

The one idea: config.json says everything, and the weights must be exactly what it says. The model is first built
without memory, so that a folder that asks for more than it holds is refused before anything is allocated.

>>> import tempfile
>>> from .contextual import toy_backbone
>>> from .folder import find
>>> model = TwoStage.start(toy_backbone(vocab_size=1024), ContextualConfig(soft_tokens=2))
>>> with tempfile.TemporaryDirectory() as folder:
...     save(model, folder, like=find("tiny").folder)
...     again = load(Path(folder))
>>> all(torch.equal(again.state_dict()[name], weight) for name, weight in model.state_dict().items())
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as serialised
from torch import Tensor

from .. import files
from ..errors import InputError, ModelError
from .backbone import FAMILIES, config_of, read_weights
from .contextual import ContextualConfig, TwoStage
from .folder import read_json, read_recipe

KIND = "vicinal"  # config.json's model_type
FORMAT = 1


def save(model: TwoStage, folder: str | Path, *, like: str | Path) -> None:
    """Write a model, with the tokenizer, prompts and limits of the folder `like`; config.json comes last."""
    target, recipe = Path(folder), read_recipe(Path(like))
    target.mkdir(parents=True, exist_ok=True)
    shared = shared_table(model)
    # Copies: safetensors refuses tensors that share memory, as tied ones do.
    state = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items() if name != shared}
    with files.writing(target / "model.safetensors") as partial:
        partial.write_bytes(serialised(state))
    with files.writing(target / "tokenizer.json") as partial:
        partial.write_bytes((recipe.backbone / "tokenizer.json").read_bytes())
    files.write_json(target / "config_sentence_transformers.json", {"prompts": dict(recipe.prompts)})
    limits = {f"{role}_length": limit for role, limit in recipe.max_tokens.items() if limit is not None}
    files.write_json(target / "sentence_bert_config.json", {**limits, "do_lower_case": recipe.lower})
    stages = {"first": model.first, "second": model.second}
    backbones = {name: json.loads(stage.config.to_json_string()) for name, stage in stages.items() if stage is not None}
    config = {"model_type": KIND, "format": FORMAT, "contextual": model.config.to_dict(), **backbones}
    files.write_json(target / "config.json", config)


def load(folder: Path) -> TwoStage:
    """Read what `save` wrote, in evaluation mode, on the CPU and in 32 bit."""
    fields = read_json(folder / "config.json", dict)
    if fields.get("format") != FORMAT:
        raise ModelError(f"{folder} is of the format {fields.get('format')!r}, this version reads {FORMAT}: update it")
    try:
        config = ContextualConfig.from_dict(fields.get("contextual") or {})
    except (InputError, TypeError) as error:
        raise ModelError(f"config.json of {folder} is not as it was saved ({error}): fetch the model again") from None
    stages = ("second",) if config.attention == "none" else ("first", "second")
    if wrong := [name for name in ("contextual", *stages) if not isinstance(fields.get(name), dict)]:
        raise ModelError(f"config.json of {folder} lacks {', '.join(wrong)}: fetch the model again")
    backbones = [config_of(fields[stage], folder) for stage in stages]
    state = read_weights(folder)
    if any(backbone.num_hidden_layers > len(state) for backbone in backbones):
        raise ModelError(f"config.json of {folder} asks for more layers than it has weights: fetch the model again")
    with torch.device("meta"):
        _check(state, _built(folder, backbones, config), folder)
    model = _built(folder, backbones, config)
    model.load_state_dict(state, strict=False)
    return model.eval()


def shared_table(model: TwoStage) -> str | None:
    """The name under which stage one has the token table that is stored as stage two's."""
    if not model.config.share_tokens or model.first is None:
        return None
    table = model.first.get_input_embeddings()
    return next(f"first.{name}.weight" for name, module in model.first.named_modules() if module is table)


def _built(folder: Path, backbones: list[Any], config: ContextualConfig) -> TwoStage:
    import transformers

    try:
        no_pooler = [{} if each.model_type == "modernbert" else {"add_pooling_layer": False} for each in backbones]
        models = [
            getattr(transformers, FAMILIES[each.model_type])(each, **options)
            for each, options in zip(backbones, no_pooler, strict=True)
        ]
        return TwoStage(models[0] if len(models) > 1 else None, models[-1], config)
    except (InputError, TypeError, ValueError, RuntimeError, KeyError, OverflowError, ZeroDivisionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"no model can be made of config.json of {folder} ({reason}): fetch it again") from None


def _check(state: Mapping[str, Tensor], empty: TwoStage, folder: Path) -> None:
    """Refuse weights that are not those of the model: by name, by shape and by type."""
    expected = {name: tensor.shape for name, tensor in empty.state_dict().items() if name != shared_table(empty)}
    given = {name: tensor.shape for name, tensor in state.items() if tensor.is_floating_point()}
    if given != expected or len(given) < len(state):
        names = sorted({*expected, *state})
        first = next(name for name in names if name not in given or given[name] != expected.get(name))
        here, wanted = given.get(first), expected.get(first)
        raise ModelError(
            f"the weight {first} in {folder} is {'absent' if here is None else tuple(here)}, config.json has "
            f"{'none' if wanted is None else tuple(wanted)} of that name: fetch the model again"
        )
