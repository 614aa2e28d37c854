"""Where a model lies, and what its folder says beside the backbone: pooling, prompts, limits, projections.

A name enters (shipped, a folder, or owner/name on the Hugging Face hub), a `Recipe` leaves. A folder without
sentence-transformers' modules.json is a plain one: then the mean of all states is taken, as its users do.

>>> read_recipe(find("tiny").folder).pooling
'mean'
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ModelError
from .pooling import POOLINGS

MODULES = ("Transformer", "Pooling", "Dense", "Normalize")  # of sentence-transformers, those that we know
ROLE_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}
UNKNOWN_SETTINGS = ("query_expansion", "processing_kwargs")  # of sentence-transformers; each changes what is read
NO_LIMIT = 1 << 40  # tokenizers write a number of thirty digits where they mean none
Json = TypeVar("Json", dict[str, Any], list[Any])


@dataclass(frozen=True)
class Shipped:
    """A model inside the package."""

    name: str
    folder: Path
    license: str
    about: str
    bytes: int


@dataclass(frozen=True)
class Place:
    """Where a model was found: what to call it, what to give `load` to find it again, and its folder."""

    name: str
    source: str
    folder: Path


@dataclass(frozen=True)
class Recipe:
    """What a folder says about turning states into vectors."""

    backbone: Path
    pooling: str
    prompts: Mapping[str, str]  # role -> text before each text
    max_tokens: Mapping[str, int | None]  # role -> limit, where the folder has one
    lower: bool
    dense: tuple[Path, ...]

    def with_pooling(self, pooling: str | None) -> Recipe:
        """The same recipe with another pooling; None keeps its own."""
        return self if pooling is None else replace(self, pooling=pooling)


def shipped() -> list[Shipped]:
    """The models that come with the package, and are found without a network."""
    models = []
    for folder in sorted(Path(str(files("vicinal") / "weights")).iterdir()):
        card = folder / "shipped.json"
        if card.is_file():
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            models.append(Shipped(folder.name, folder, **json.loads(card.read_text(encoding="utf-8")), bytes=size))
    return models


def find(name_or_folder: str | Path) -> Place:
    """Find a model: a shipped one by name, then a folder, then owner/name on the hub."""
    given = str(name_or_folder)
    models = shipped()
    for model in models:
        if given == model.name:
            return Place(model.name, model.name, model.folder)
    with suppress(OSError, RuntimeError, ValueError):  # too long for a name, a home that is not there, NUL: no folder
        folder = Path(name_or_folder).expanduser().resolve()
        if folder.is_dir():
            return Place(folder.name, str(folder), folder)
    names = ", ".join(model.name for model in models)
    if isinstance(name_or_folder, Path) or not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", given):
        raise ModelError(
            f"there is no model {given[:200]!r}; expected a shipped name ({names}), a model's folder, or owner/name on "
            "the Hugging Face hub"
        )
    return Place(given, given, _from_hub(given, names))


def _from_hub(name: str, names: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json"]))
    except Exception as error:  # no network, no such name, no permission: a class for each, or its HTTP client's
        reason = " ".join(str(error).split())[:160]
        raise ModelError(
            f"{name!r} is no folder here, and the Hugging Face hub lacks it ({type(error).__name__}: {reason}); "
            f"check the name and the network, or take a folder or a shipped model ({names})"
        ) from None


def read_recipe(folder: Path, *, is_chained: bool = True) -> Recipe:
    """Read a sentence-transformers folder, or a plain Hugging Face one; some are no chain of modules at all."""
    prompts = _prompts(read_json(folder / "config_sentence_transformers.json", dict, optional=True), folder)
    modules = _modules(folder) if is_chained else []
    parts = {kind: part for kind, part in modules if kind != "Dense"}
    backbone, pooling = parts.get("Transformer", folder), "mean"
    if "Pooling" in parts:
        pooling = _pooling(read_json(parts["Pooling"] / "config.json", dict), parts["Pooling"], any(prompts.values()))
    settings: dict[str, Any] = {}
    for path in sorted(backbone.glob("sentence_*_config.json")):  # sentence_bert_config.json; once one name per family
        settings |= read_json(path, dict)
    for name in UNKNOWN_SETTINGS:
        if settings.get(name):
            raise ModelError(f"{backbone} sets {name}, which is not known here: use a model without it")
    return Recipe(
        backbone,
        pooling,
        prompts,
        {role: _max_tokens(backbone, settings, role) for role in ROLE_NAMES},
        bool(settings.get("do_lower_case")),
        tuple(part for kind, part in modules if kind == "Dense"),
    )


def _modules(folder: Path) -> list[tuple[str, Path]]:
    """What modules.json chains: kinds and their folders; nothing where there is no such file."""
    path = folder / "modules.json"
    chain = []
    for module in read_json(path, list, optional=True):
        kind, place = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str):
            raise ModelError(f"{path} lists {str(module)[:80]}; expected a module's type and path: fetch it again")
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise ModelError(f"{path} leads out of its folder, to {place}; expected a path below it")
        kind = kind.rsplit(".", 1)[-1]
        if kind not in MODULES:
            raise ModelError(
                f"{folder} has the module {kind}, which is not known here: those that work are {', '.join(MODULES)}"
            )
        chain.append((kind, folder / place))
    kinds = [kind for kind, _ in chain]
    if kinds and not re.fullmatch("Transformer Pooling( Dense)*( Normalize)?", " ".join(kinds)):
        raise ModelError(f"{folder} chains {' > '.join(kinds)}; expected Transformer > Pooling > Dense... > Normalize")
    return chain


def _max_tokens(backbone: Path, settings: Mapping[str, Any], role: str) -> int | None:
    """The limit that a folder names, for a role or for both: in its settings, or else in its tokenizer's."""
    tokenizer = read_json(backbone / "tokenizer_config.json", dict, optional=True)
    named = (settings.get(f"{role}_length"), settings.get("max_seq_length"), tokenizer.get("model_max_length"))
    limit = next((value for value in named if value is not None), None)
    if limit is None:
        return None
    if not isinstance(limit, int | float) or not limit >= 1:
        raise ModelError(f"{backbone} limits texts to {limit!r} tokens; expected a number of them: fetch it again")
    return int(min(limit, NO_LIMIT))


def _pooling(config: Mapping[str, Any], part: Path, has_prompts: bool) -> str:
    """The pooling that sentence-transformers' settings ask for, in their old form or their new one."""
    given = config.get("pooling_mode")
    if given is None:
        given = [name for name, chosen in config.items() if name.startswith("pooling_mode_") and chosen is True]
        given = [name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for name in given]
    modes = [str(mode) for mode in (given if isinstance(given, list) else [given])] or ["mean"]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ModelError(f"{part} pools by {' and '.join(modes)}; those that work are {', '.join(POOLINGS)}")
    if has_prompts and config.get("include_prompt", True) is False:
        raise ModelError(f"{part} leaves prompts out of pooling, which is not known here: use a model that pools them")
    return modes[0]


def _prompts(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Role -> prompt: the role's own, else the default one, else none.

    sentence-transformers 6 writes an empty prompt for each role that has none, and reads a missing one as empty; here
    a folder from before that, with "passage" or a default prompt alone, gets what it names.
    """
    given, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(given, dict) or not all(isinstance(text, str | None) for text in given.values()):
        raise ModelError(f"the prompts of {folder} are {given!r}; expected a name and a text for each")
    if default is not None and (not isinstance(default, str) or default not in given):
        raise ModelError(f"the default prompt of {folder} is {default!r}; its prompts are {', '.join(given) or 'none'}")
    found = {}
    for role, names in ROLE_NAMES.items():
        name = next((name for name in names if name in given), default)
        found[role] = str((given[name] if name is not None else None) or "")
    return found


def read_json(path: Path, expected: type[Json], *, optional: bool = False) -> Json:
    """A JSON file of a model's folder, a `dict` or a `list`; one that may be absent counts as empty."""
    if optional and not os.path.lexists(path):  # a link to nothing is not absent: a download broke off
        return expected()
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: fetch the model again") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}): fetch the model again") from None
    if not isinstance(value, expected):
        what = "an object" if expected is dict else "a list"
        raise ModelError(f"{path} holds {str(value)[:80]}; expected {what}: fetch the model again")
    return value
