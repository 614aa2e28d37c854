"""Where a model lies, and what its folder says beside the backbone: pooling, prompts, limits, projections.

A name enters (shipped, a folder, or owner/name on the Hugging Face hub), a `Recipe` leaves. A folder without
sentence-transformers' modules.json is a plain one: then the mean of all states is taken, as its users do.

>>> read_recipe(find("tiny").folder).pooling
'mean'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .pooling import POOLINGS

MODULES = ("Transformer", "Pooling", "Dense", "Normalize")  # of sentence-transformers, those that we know
ROLE_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}


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
    max_tokens: int | None
    lower: bool
    dense: tuple[Path, ...]
    files: tuple[Path, ...]  # every file that says so

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
    for model in shipped():
        if given == model.name:
            return Place(model.name, model.name, model.folder)
    folder = Path(name_or_folder).expanduser()
    if folder.is_dir():
        return Place(folder.resolve().name, str(folder.resolve()), folder.resolve())
    names = ", ".join(model.name for model in shipped())
    if isinstance(name_or_folder, Path) or given.count("/") != 1 or given.startswith((".", "~", "/")):
        raise ModelError(
            f"there is no model {given!r}; expected a shipped name ({names}), a model's folder, or owner/name on the "
            "Hugging Face hub"
        )
    return Place(given, given, _from_hub(given, names))


def _from_hub(name: str, names: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json", "*.txt"]))
    except Exception as error:  # no network, no such name, no permission: each a class of its own, or of its HTTP client
        reason = " ".join(str(error).split())[:160]
        raise ModelError(
            f"{name!r} is no folder here, and the Hugging Face hub does not give it ({type(error).__name__}: {reason}); "
            f"check the name and the network, or take a folder or a shipped model ({names})"
        ) from None


def read_recipe(folder: Path) -> Recipe:
    """Read a sentence-transformers folder, or a plain Hugging Face one."""
    paths = [folder / name for name in ("sentence_bert_config.json", "config_sentence_transformers.json", "modules.json")]
    settings, outer, modules = (_json(path, optional=True) for path in paths)
    prompts = _prompts(outer, folder)
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    _refuse_unknown(folder, kinds)
    if kinds and (kinds[:2] != list(MODULES[:2]) or "Normalize" in kinds[:-1]):
        raise ModelError(f"{folder.name} chains {' > '.join(kinds)}; expected Transformer > Pooling > Dense... > Normalize")
    backbone, pooling, dense = folder, "mean", []
    for kind, module in zip(kinds, modules, strict=True):
        part = folder / str(module.get("path", ""))
        if kind == "Transformer":
            backbone = part
            settings = {**settings, **_json(part / "sentence_bert_config.json", optional=True)}
            paths.append(part / "sentence_bert_config.json")
        elif kind == "Pooling":
            pooling = _pooling(_json(part / "config.json"), part, any(prompts.values()))
            paths.append(part / "config.json")
        elif kind == "Dense":
            dense.append(part)
    limit = settings.get("max_seq_length")
    return Recipe(
        backbone,
        pooling,
        prompts,
        limit if isinstance(limit, int) else None,
        bool(settings.get("do_lower_case")),
        tuple(dense),
        tuple(path for path in dict.fromkeys(paths) if path.is_file()),
    )


def _refuse_unknown(folder: Path, kinds: list[str]) -> None:
    unknown = [kind for kind in kinds if kind not in MODULES]
    if unknown:
        raise ModelError(
            f"{folder.name} has the module {unknown[0]}, which is not known here: those that work are {', '.join(MODULES)}"
        )


def _pooling(config: Mapping[str, Any], part: Path, has_prompts: bool) -> str:
    """The pooling that sentence-transformers' settings ask for, in their old form or their new one."""
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [old for old in config if old.startswith("pooling_mode_") and config[old] is True]
        modes = [old.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for old in modes]
    modes = [modes] if isinstance(modes, str) else modes or ["mean"]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ModelError(f"{part} pools by {' and '.join(map(str, modes))}; those that work are {', '.join(POOLINGS)}")
    if has_prompts and config.get("include_prompt", True) is False:
        raise ModelError(f"{part} leaves prompts out of pooling, which is not known here: use a model that pools them")
    return str(modes[0])


def _prompts(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Role -> prompt: the role's own, else the default one, else none."""
    given = config.get("prompts") or {}
    default = config.get("default_prompt_name")
    if not isinstance(given, dict) or not all(isinstance(text, str | None) for text in given.values()):
        raise ModelError(f"the prompts of {folder} are {given!r}; expected a name and a text for each")
    if default is not None and default not in given:
        raise ModelError(f"the default prompt of {folder} is {default!r}; expected one of {', '.join(given) or 'no'} prompts")
    found = {}
    for role, names in ROLE_NAMES.items():
        name = next((name for name in names if name in given), default)
        found[role] = (given[name] if name is not None else None) or ""
    return found


def _json(path: Path, *, optional: bool = False) -> Any:
    """A JSON file of a model's folder; one that may be absent counts as empty."""
    if optional and not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}): fetch the model again") from None
