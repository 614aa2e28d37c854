"""What a large batch costs in memory, with gradients by chunks: `python benchmarks/training_memory.py`, one JSON line.

One training step of granite-embedding-30m-english's geometry (384 x 6, random weights, one-way context of 128 documents
through a first stage of 2 layers, a lane, the contrastive loss with its filter's masks), at each size of batch in a
process of its own, with chunks of the same number of tokens. `ratio` is the peak of the largest batch over that of the
smallest; on an accelerator it is that of its memory, on a CPU that of the process, less what it held before the model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from typing import Any

GEOMETRY = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def step(pairs: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Train one step, and say what it took."""
    import resource

    import numpy as np
    import torch
    import transformers

    from vicinal.batches.filter import Masks
    from vicinal.batches.sample import Step
    from vicinal.chunked import Batch, backward
    from vicinal.encoder.contextual import ContextualConfig, TwoStage
    from vicinal.losses import Contrastive
    from vicinal.train import objective
    from vicinal.train.feed import Ready

    def held() -> int:
        if device.type == "cuda":
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    at_start = held()
    torch.manual_seed(0)
    backbone = transformers.RobertaConfig(**GEOMETRY, vocab_size=50265, max_position_embeddings=514, pad_token_id=1)
    model = TwoStage.start(backbone, ContextualConfig(pooling="cls", first_layers=2, lane=True)).to(device).train()
    chance = np.random.default_rng(0)

    def texts(longest: int) -> list[list[int]]:
        return [
            chance.integers(5, 50000, length).tolist() for length in chance.integers(longest // 2, longest + 1, pairs)
        ]

    batch = Batch(texts(asked.query_tokens), texts(asked.document_tokens), list(range(asked.shown)))
    allowed = torch.from_numpy(chance.random((pairs, pairs)) < 0.95)
    everyone = torch.ones(pairs, pairs, dtype=torch.bool)
    ready = Ready(Step(0, "", np.arange(pairs)), batch, Masks(allowed, everyone, everyone), None, 0)
    start = time.perf_counter()
    loss = partial(objective, model, Contrastive(0.05), ready)
    backward(model, batch, loss, chunk_tokens=asked.chunk_tokens, seed=0)
    return {"pairs": pairs, "seconds": round(time.perf_counter() - start, 1), "peak_bytes": held() - at_start}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--pairs", type=int, nargs="+", default=[512, 4096])
    options.add_argument("--query-tokens", type=int, default=16)
    options.add_argument("--document-tokens", type=int, default=32)
    options.add_argument("--chunk-tokens", type=int, default=8192)
    options.add_argument("--shown", type=int, default=128)
    options.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.one:
        print(json.dumps(step(asked.one, asked)))
        return
    given = ["--query-tokens", "--document-tokens", "--chunk-tokens", "--shown"]
    values = [asked.query_tokens, asked.document_tokens, asked.chunk_tokens, asked.shown]
    more = [word for flag, value in zip(given, values, strict=True) for word in (flag, str(value))]
    found = []
    for pairs in sorted(asked.pairs):
        told = subprocess.run(
            [sys.executable, __file__, "--one", str(pairs), *more], stdout=subprocess.PIPE, check=True
        )
        found.append(json.loads(told.stdout))
    ratio = found[-1]["peak_bytes"] / found[0]["peak_bytes"]
    print(
        json.dumps(
            {"benchmark": "training_memory", "ratio": round(ratio, 3), "steps": found, **vars(asked), **GEOMETRY}
        )
    )


if __name__ == "__main__":
    main()
