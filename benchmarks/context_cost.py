"""What a context costs on a CPU: `python benchmarks/context_cost.py`, one JSON line.

A random RoBERTa of granite-embedding-30m's geometry (384 x 6, 12 heads, [CLS] pooling) encodes a query of 16 tokens,
one at a time, and documents of mixed lengths in batches: without context, behind a cached one-way context, and two-way.
All arms take turns in one process; a ratio is the median over the rounds of one arm's time over its context-free twin's
in the same round. `cpu` is the same of processor time, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

from vicinal.encoder import batches
from vicinal.encoder.contextual import ContextualConfig, TwoStage
from vicinal.encoder.prefix import ContextCache

SIZES = (128, 512)
QUERY_TOKENS, DOCUMENTS, LONGEST, BATCH_TOKENS = 16, 64, 192, 2048
GEOMETRY = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def backbone() -> Any:
    return transformers.RobertaConfig(**GEOMETRY, vocab_size=50265, max_position_embeddings=1026, pad_token_id=1)


def arms(dtype: torch.dtype) -> tuple[dict[str, tuple[TwoStage, Any]], dict[str, int]]:
    """Name -> encoder and what it encodes behind; and each cache's bytes. All have the same second stage."""
    torch.manual_seed(0)
    one = TwoStage.start(backbone(), ContextualConfig(pooling="cls", first_layers=2)).eval()
    two = TwoStage(one.first, one.second, ContextualConfig("two-way", pooling="cls", first_layers=2)).eval()
    one, two = one.to(dtype), two.to(dtype)
    found: dict[str, tuple[TwoStage, Any]] = {"free": (one, None)}
    size = {}
    with torch.inference_mode():
        for slots in SIZES:
            vectors = torch.randn(slots, 384, dtype=dtype)
            cache = one.prepare(vectors)
            assert isinstance(cache, ContextCache)
            size[str(slots)] = cache.bytes
            found[f"one-way {slots}"] = (one, cache)
            found[f"two-way {slots}"] = (two, two.prepare(vectors))
    return found, size


def documents() -> list[list[int]]:
    """Lengths as real documents have them: a few short, many of some sentences, a tail that is cut."""
    draw = torch.Generator().manual_seed(1)
    lengths = (torch.randn(DOCUMENTS, generator=draw) * 0.6 + 4.5).exp().clamp(8, LONGEST).long().tolist()
    return [torch.randint(5, 50000, (length,), generator=draw).tolist() for length in lengths]


def measure(work: dict[str, Callable[[], Any]], rounds: int, warm: int) -> dict[str, dict[str, float]]:
    """Milliseconds of every arm, and its ratio to `free`, over rounds in which all take turns in a random order.

    Each arm runs `warm` times untimed just before, so that none pays for what the one before it left in the caches.
    """
    order, shuffle = list(work), random.Random(0).shuffle
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    with torch.inference_mode():
        for arm in work.values():
            arm()
        for _ in range(rounds):
            shuffle(order)
            for name in order:
                arm = work[name]
                for _ in range(warm):
                    arm()
                wall, cpu = time.perf_counter(), time.process_time()
                arm()
                taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    free = taken["free"]
    return {
        name: {
            "ms": round(statistics.median(wall for wall, _ in times) * 1000, 3),
            "ratio": round(statistics.median(t[0] / f[0] for t, f in zip(times, free, strict=True)), 3),
            "cpu": round(statistics.median(t[1] / f[1] for t, f in zip(times, free, strict=True)), 3),
        }
        for name, times in taken.items()
    }


def main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--document-rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    texts, query = documents(), [list(range(100, 100 + QUERY_TOKENS))]
    in_batches = [[texts[i] for i in batch] for batch in batches([len(text) for text in texts], BATCH_TOKENS)]
    found: dict[str, Any] = {"threads": asked.threads, "processor": platform.processor(), "torch": torch.__version__}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        encoders, size = arms(dtype)
        queries = {arm: _work(*encoders[arm], [query]) for arm in encoders}
        whole = {arm: _work(*encoders[arm], in_batches) for arm in encoders if "512" not in arm}
        found[name] = {
            "query": measure(queries, asked.rounds, warm=1),
            "documents": measure(whole, asked.document_rounds, warm=0),
            "cache_bytes": size,
        }
    found["settings"] = {**GEOMETRY, "query_tokens": QUERY_TOKENS, "documents": DOCUMENTS, "rounds": asked.rounds,
                         "tokens": sum(map(len, texts)), "batch_tokens": BATCH_TOKENS}  # fmt: skip
    return found


def _work(model: TwoStage, prefix: Any, groups: list[list[list[int]]]) -> Callable[[], Any]:
    return lambda: [model.encode(group, prefix) for group in groups]


if __name__ == "__main__":
    print(json.dumps(main()))
