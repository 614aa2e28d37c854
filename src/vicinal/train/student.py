"""A model's folder -> the two-stage encoder that is trained, and back.

>>> from .run import Run
>>> model = student(Run(model="tiny").changed({"first_layers": "1", "lane": "true"}))
>>> model.config.pooling, model.lane is not None, len(model.first.encoder.layer)
('mean', True, 1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..encoder import own
from ..encoder.backbone import build, read_config, read_weights
from ..encoder.contextual import ContextualConfig, TwoStage
from ..encoder.folder import find, read_json, read_recipe
from ..errors import InputError
from .run import Run


def student(run: Run) -> TwoStage:
    """The start model of a run: both stages begin with its weights; one of our own is taken as it is."""
    place = find(run.model)
    if read_json(place.folder / "config.json", dict, optional=True).get("model_type") == own.KIND:
        model = own.load(place.folder)
        if model.config != replace(run.encoder, pooling=model.config.pooling):
            raise InputError(
                f"{place.name} is laid out as {model.config}: ask for the same, or start from a plain model"
            )
        return model
    recipe = read_recipe(place.folder)
    if recipe.dense or recipe.pooling not in ("mean", "cls"):
        raise InputError(
            f"{place.name} pools by {recipe.pooling}{' and projects' if recipe.dense else ''}: expected a model that "
            "takes the mean or the first state alone"
        )
    config = ContextualConfig.from_dict(run.encoder.to_dict() | {"pooling": recipe.pooling})
    weights = read_weights(recipe.backbone)
    stages = 1 if config.attention == "none" else 2
    models = [build(recipe.backbone, read_config(recipe.backbone), weights, packed=False) for _ in range(stages)]
    return TwoStage(models[0] if stages > 1 else None, models[-1], config)


def save(model: TwoStage, averaged: Mapping[str, Tensor], folder: Path, run: Run) -> None:
    """Write the model's folder, with the running average of the weights where there is one."""
    weights = dict(model.named_parameters())
    now = {name: weights[name].detach().clone() for name in averaged}
    with torch.no_grad():
        try:
            for name, average in averaged.items():
                weights[name].copy_(average)
            own.save(model, folder, like=find(run.model).folder)
        finally:  # whoever interrupts this keeps the weights that are being trained
            for name, value in now.items():
                weights[name].copy_(value)
