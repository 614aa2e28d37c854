"""Where a run stands, on the disk: whole or absent, and enough to go on to the same weights bit for bit.

    checkpoints/step-000500/   weights.safetensors     the model's state
                               optimiser.safetensors   AdamW's moments, by the weights' names
                               averaged.safetensors    the running average of weights, where there is one
                               state.json              the step, the run, and what has been measured so far

A step's dropouts and its batch depend on its number alone, so that no generator's state is kept. The last one is kept,
and replaced only by the next when that is whole.

>>> import tempfile
>>> weight = torch.nn.Linear(2, 1)
>>> optimiser = torch.optim.AdamW(weight.parameters())
>>> with tempfile.TemporaryDirectory() as folder:
...     save(Path(folder), 7, weight, optimiser, {}, {"run": {}})
...     latest(Path(folder)).name, load(latest(Path(folder)), weight, optimiser)[0]
('step-000007', 7)
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialised
from torch import Tensor

from .. import files
from ..errors import InputError

WEIGHTS, OPTIMISER, AVERAGED, STATE = "weights", "optimiser", "averaged", "state.json"
NAME = re.compile(r"step-(\d{6,})(?:-(\d+))?")


def save(
    folder: Path,
    step: int,
    model: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    averaged: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> None:
    """Publish the checkpoint of a step below `folder`, then remove the ones before it."""
    folder.mkdir(parents=True, exist_ok=True)
    # A second one of the same step never takes the place of the first before it is whole.
    names = itertools.chain([f"step-{step:06d}"], (f"step-{step:06d}-{count}" for count in itertools.count(2)))
    name = next(name for name in names if not (folder / name).exists())
    partial = folder / f".{name}.partial"
    files.remove(partial)
    partial.mkdir()
    tensors = {WEIGHTS: model.state_dict(), OPTIMISER: _moments(model, optimiser), AVERAGED: averaged}
    for part, named in tensors.items():
        # Copies: safetensors refuses tensors that share memory, as tied token tables do.
        whole = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in named.items()}
        (partial / f"{part}.safetensors").write_bytes(serialised(whole))
    (partial / STATE).write_text(files.canonical_json({**state, "step": step}), encoding="utf-8")
    files.publish(partial, folder / name)
    for other in folder.iterdir():
        if other.name != name and (NAME.fullmatch(other.name) or other.name.startswith(".step-")):
            shutil.rmtree(other, ignore_errors=True)


def latest(folder: Path) -> Path | None:
    """The checkpoint of the highest step; None where there is none."""
    found = {path: NAME.fullmatch(path.name) for path in folder.glob("step-*")} if folder.is_dir() else {}
    places = {path: (int(match[1]), int(match[2] or 1)) for path, match in found.items() if match}
    return max(places, key=lambda path: places[path], default=None)


def load(
    path: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    """Put a checkpoint into a model and its optimiser; its step, its averaged weights, and its state come back."""
    try:
        state = json.loads((path / STATE).read_bytes())
        parts = {part: load_file(path / f"{part}.safetensors") for part in (WEIGHTS, OPTIMISER, AVERAGED)}
        model.load_state_dict(parts[WEIGHTS])
        _restore(model, optimiser, parts[OPTIMISER])
        return int(state["step"]), parts[AVERAGED], state
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be gone on from ({reason}): remove it to begin anew") from None


def state_of(path: Path) -> dict[str, Any]:
    """What a checkpoint says of its run, without its tensors."""
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_bytes())
        return state
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be gone on from ({error}): remove it to begin anew") from None


def _moments(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {weight: name for name, weight in model.named_parameters()}
    return {
        f"{names[weight]}|{kind}": torch.as_tensor(value)
        for weight, kept in optimiser.state.items()
        for kind, value in kept.items()
    }


def _restore(model: torch.nn.Module, optimiser: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    weights = dict(model.named_parameters())
    optimiser.state.clear()
    for key, value in moments.items():
        name, kind = key.rsplit("|", 1)
        weight = weights[name]
        optimiser.state[weight][kind] = value if kind == "step" else value.to(weight.device)
