"""Whether gradients by chunks can be trusted, on a configuration of one's own: `vicinal selfcheck`.

A few texts of random tokens go through the run's own model, loss and dropouts, in at least three chunks a stage, once
by chunks and once with the graph kept (chunked.py). In 64 bit both must agree to 1e-9, in 32 bit to 1e-5.

>>> from ..recipes import tiny_cpu
>>> selfcheck(tiny_cpu())["held"]
True
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch

from ..batches.filter import Masks
from ..batches.sample import Step
from ..chunked import Batch, check
from ..encoder.prefix import layers_of
from . import loss_by, objective
from .feed import Ready
from .run import Run
from .student import student

PAIRS, CHUNKS = 6, 3
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-5}
ROTARY_LIMIT = 1e-5  # such models rotate in 32 bit, whatever their weights are in


def selfcheck(run: Run) -> dict[str, Any]:
    """The largest deviations of a run's gradients by chunks, beside what is allowed."""
    torch.manual_seed(run.seed)
    model = student(run).train()
    chance = np.random.default_rng(run.seed)
    vocabulary = model.second.config.vocab_size

    def texts(count: int, longest: int) -> list[list[int]]:
        lengths = chance.integers(min(3, longest), min(longest, 24) + 1, count)
        return [chance.integers(5, vocabulary, length).tolist() for length in lengths]

    queries, documents = texts(PAIRS, run.max_query_tokens), texts(2 * PAIRS, run.max_document_tokens)
    attends = run.encoder.attention != "none" or run.encoder.lane
    batch = Batch(queries, documents, list(range(PAIRS)) if attends else [])
    allowed = torch.from_numpy(chance.random((PAIRS, 2 * PAIRS)) < 0.8)
    masks = Masks(allowed, torch.ones(PAIRS, PAIRS, dtype=torch.bool), torch.ones_like(allowed))
    teacher = torch.from_numpy(chance.standard_normal((PAIRS, 2 * PAIRS))).float() if run.aim.kl else None
    ready = Ready(Step(0, "", np.arange(PAIRS)), batch, masks, teacher, sum(map(len, queries)))
    tokens = max(1, min(sum(map(len, queries)), sum(map(len, documents[:PAIRS]))) // CHUNKS)
    rotary = model.second.config.model_type in ("modernbert", "nomic_bert")
    found = {}
    for dtype, limit in LIMITS.items():
        far = check(
            model.to(dtype),
            batch,
            partial(objective, model, loss_by(run.aim), ready),
            chunk_tokens=tokens,
            seed=run.seed,
        )
        name = str(dtype).removeprefix("torch.")
        found[name] = {"difference": far, "limit": max(limit, ROTARY_LIMIT) if rotary else limit}
    return {
        "held": all(each["difference"] <= each["limit"] for each in found.values()),
        "gradients": found,
        "model": run.model,
        "layers": len(layers_of(model.second)),
        "encoder": asdict(run.encoder),
        "pairs": PAIRS,
        "hard_negatives": PAIRS,
        "chunk_tokens": tokens,
    }
