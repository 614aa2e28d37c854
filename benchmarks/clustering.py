"""Clusters of a million pairs: FAISS beside plain torch, in 32 bit and in bfloat16; prints one JSON line.

    python benchmarks/clustering.py                                          # 1,000,000 x 2 x 384, hours on 2 cores
    python benchmarks/clustering.py --pairs 20000 --clusters 1954 --steps 4 --tries 1      # minutes; see `full_hours`

Each pair is two unit vectors of `dim` around one of many centres, which lie in groups themselves, some a hundred times
as large as others, as topics do. They lie in a file in 16 bit, and each engine clusters them in a process of its own,
whose peak memory is taken. Time grows with rows x clusters x steps x tries, so `full_hours` is what the paper's
settings (clusters of 512, 100 steps, best of 3, no sampling) would take for a million pairs. `ratio` is FAISS' time
over torch's in bfloat16. Objectives are measured alike, in 32 bit, over all rows that moved the
centroids. Where others share the cores, CPU seconds say more than seconds, though a thread that waits spends some.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = {"faiss": ("faiss", "fp32"), "torch_fp32": ("torch", "fp32"), "torch_bf16": ("torch", "bf16")}
FULL_PAIRS, FULL_SIZE, FULL_STEPS, FULL_TRIES = 1_000_000, 512, 100, 3
PART = 10_000


def write_vectors(path: Path, pairs: int, dim: int) -> None:
    chance = np.random.default_rng(0)
    groups = chance.standard_normal((64, dim))
    count = max(64, pairs // 200)
    centres = (groups[chance.integers(64, size=count)] + chance.standard_normal((count, dim))).astype(np.float32)
    weights = (np.arange(count) + 10.0) ** -0.7
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(pairs, 2, dim))
    for start in range(0, pairs, PART):
        stop = min(pairs, start + PART)
        of = chance.choice(count, size=stop - start, p=weights / weights.sum())
        points = centres[of][:, None] + chance.standard_normal((stop - start, 2, dim), dtype=np.float32)
        file[start:stop] = points / np.linalg.norm(points, axis=2, keepdims=True)
    file.flush()


def measure(path: Path, k: int, engine: str, asked: argparse.Namespace) -> dict[str, Any]:
    import resource

    import torch

    from vicinal.batches.cluster import KMeans, cluster

    name, precision = ENGINES[engine]
    torch.set_num_threads(asked.threads)
    if name == "faiss":
        import faiss

        faiss.omp_set_num_threads(asked.threads)
    kmeans = KMeans(asked.steps, asked.tries, engine=name, precision=precision, most_pairs=asked.most_pairs)
    vectors = np.load(path, mmap_mode="r")
    start, started = time.perf_counter(), time.process_time()
    found = cluster(vectors, k, kmeans)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - started
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = np.bincount(found.labels, minlength=k)
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "objective": round(found.objective, 5),
        "moved_by": found.moved_by,
        "steps": len(found.steps),
        "largest": int(sizes.max()),
        "empty": int((sizes == 0).sum()),
        "peak_bytes": most if sys.platform == "darwin" else most * 1024,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--pairs", type=int, default=FULL_PAIRS)
    options.add_argument("--dim", type=int, default=384)
    options.add_argument("--clusters", type=int, help="how many; by default pairs / 512")
    options.add_argument("--steps", type=int, default=FULL_STEPS)
    options.add_argument("--tries", type=int, default=FULL_TRIES)
    options.add_argument("--most-pairs", type=int, help="that centroids are moved by; by default all")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    options.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = options.parse_args()
    k = asked.clusters or -(-asked.pairs // FULL_SIZE)
    if asked.one:
        sys.stdout.write(json.dumps(measure(Path(asked.one[0]), k, asked.one[1], asked)) + "\n")
        return

    from vicinal import __version__

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        write_vectors(path, asked.pairs, asked.dim)
        for engine in asked.engines:
            command = [sys.executable, __file__, *sys.argv[1:], "--one", str(path), engine]
            run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[engine] = json.loads(run.stdout)
    full_k = -(-FULL_PAIRS // FULL_SIZE)
    for told in found.values():
        work = told["moved_by"] * k * (told["steps"] if asked.tries == 1 else asked.steps) * asked.tries
        times = FULL_PAIRS * full_k * FULL_STEPS * FULL_TRIES / work
        told["full_hours"] = round(told["seconds"] * times / 3600, 1)
        told["full_cpu_hours"] = round(told["cpu_seconds"] * times / 3600, 1)
    both = "faiss" in found and "torch_bf16" in found
    result = {
        "benchmark": "clustering",
        "pairs": asked.pairs,
        "dim": asked.dim,
        "k": k,
        "steps": asked.steps,
        "tries": asked.tries,
        "sampling": asked.most_pairs or "none",
        "engines": found,
        "ratio": round(found["faiss"]["seconds"] / found["torch_bf16"]["seconds"], 2) if both else None,
        "threads": asked.threads,
        "version": __version__,
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
