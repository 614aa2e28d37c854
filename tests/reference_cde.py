"""Our two-stage encoder against a recorded case of the CDE reference: `python tests/reference_cde.py CASE.safetensors`.

The case's weights, inputs, outputs and gradients lie in the file, its flags and sizes in the JSON beside it. The last
line of standard output is one JSON object: {"outputs": {name: largest absolute difference}, "gradients": {name: norm of
the difference over the reference's norm, 0 where the difference is under 1e-6}}. Needs the installed package only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import normalize, pad

from vicinal.encoder import published
from vicinal.encoder.contextual import ROTARY, TwoStage

NOT_COMPARED = ("short_context",)  # recorded as information: the published code runs on with lost positions
NOISE = 1e-6


def main(path: Path) -> dict[str, dict[str, float]]:
    tensors = load_file(path)
    about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    parts: dict[str, dict[str, Tensor]] = {"state": {}, "in": {}, "out": {}, "grad": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        parts[kind][rest] = tensor
    model = load(parts["state"], about)
    given = outputs(model, parts["in"], parts["out"], about)
    differences = {}
    for name, expected in parts["out"].items():
        if name not in NOT_COMPARED:
            differences[name] = difference(given[name], expected, name, parts["in"], model)
    return {"outputs": differences, "gradients": gradients(model, given["end_to_end"], parts["grad"], parts["state"])}


def load(state: Mapping[str, Tensor], about: Mapping[str, Any]) -> TwoStage:
    """The encoder of a case. A flag beside the configuration wins over the same flag inside it."""
    config = dict(about["cde_config"])
    flags = ("pool_ignore_contextual_tokens", "pool_ignore_instruction_tokens")
    config |= {flag: about[flag] for flag in flags if flag in about}
    end = about.get("pool_instruction_end_id")
    return published.from_state(
        state, config, about["backbone_config"], residual=about.get("residual_head"), instruction_end=end
    )


def outputs(
    model: TwoStage, given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], about: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Everything that a case may hold, by its name there."""
    ids, mask = given["input_ids"], given["attention_mask"]
    context_ids, context_mask = given["context_input_ids"], given["context_attention_mask"]
    vectors = model.embed_context(context_ids, context_mask)
    prefix = model.prepare(vectors)
    assert isinstance(prefix, Tensor)
    found = {"first_stage": vectors, "end_to_end": model(ids, mask, prefix)}
    with torch.no_grad():
        found["first_stage.hidden"] = model.first_states(context_ids, context_mask)
        found["soft_prompt"] = torch.cat([prefix.expand(len(ids), -1, -1), *model._soft(len(ids))], dim=1)
        found["second_stage"] = found["end_to_end"]
        found["second_stage.hidden"] = model.states(ids, mask, prefix)[0]
        found["second_stage.normalized"] = normalize(found["end_to_end"], dim=-1)
        if "null_context" in wanted:
            found["null_context"] = model(ids, mask, model.null_slots(len(prefix)))
        if "context_permuted" in wanted:
            order = given["context_permutation"]
            slots = vectors.flatten(0, 1) if len(order) == len(prefix) else vectors
            found["context_permuted"] = model(ids, mask, model.prepare(slots[order]))
        if "reordered_text" in wanted:
            reordered = given["reordered_input_ids"]
            found["reordered_text"] = model(reordered, torch.ones_like(reordered), prefix)
        if "pad_extended" in wanted:
            more = about["backbone_config"].get("pad_token_id") or 0
            width = min(5, room(model, ids))
            found["pad_extended"] = model(pad(ids, (0, width), value=more), pad(mask, (0, width)), prefix)
        if "extra_context" in wanted:
            surplus = model.prepare(torch.cat([vectors, vectors.flip(0)]), surplus="drop")
            found["extra_context"] = model(ids, mask, surplus)
    return found


def room(model: TwoStage, ids: Tensor) -> int:
    """How much longer a text may be: absolute positions are for context, soft prompt and text together."""
    if model.second.config.model_type in ROTARY:
        return 5
    used = (model.config.slots or 0) + model.config.soft_tokens + ids.shape[1]
    return int(model.second.config.max_position_embeddings) - used


def difference(ours: Tensor, recorded: Tensor, name: str, given: Mapping[str, Tensor], model: TwoStage) -> float:
    """The largest absolute difference; states at padded positions are left out."""
    delta = (ours.detach().reshape(recorded.shape) - recorded).abs()
    if name.endswith(".hidden"):
        mask = given["context_attention_mask" if name.startswith("first") else "attention_mask"].bool()
        delta = delta[pad(mask, (recorded.shape[1] - mask.shape[1], 0), value=True)]
    return float(delta.max())


def gradients(
    model: TwoStage, vectors: Tensor, recorded: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> dict[str, float]:
    """Gradients of <y, linspace(-1, 1)> through both stages."""
    model.zero_grad()
    (vectors * torch.linspace(-1, 1, vectors.numel()).view_as(vectors)).sum().backward()
    ours = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad
        for name, weight in model.named_parameters(remove_duplicate=False)
    }
    ours = published.published(ours, published.family_of(state))
    found = {}
    for name, expected in recorded.items():
        distance = float((ours[name] - expected).norm())
        found[name] = 0.0 if distance < NOISE else distance / max(float(expected.norm()), NOISE)
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(json.dumps(main(Path(sys.argv[1]))))
