"""A million vectors, indexed and searched exactly: how long it takes, how much memory, and against plain numpy.

    python benchmarks/million.py [--rows 1000000] [--dim 384] [--queries 20]

Prints one JSON line. The vectors lie in a file that another process writes, and are read in parts; the peak is that of
the whole process, pages of mapped files included. The same queries are then answered by numpy, which multiplies the
whole file at once: `ratio` is its time over ours for one query, and the hits must be the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

K = 10
PART = 10_000


def write_vectors(path: Path, rows: int, dim: int) -> None:
    numbers = np.random.default_rng(0)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, dim))
    for start in range(0, rows, PART):
        file[start : start + PART] = numbers.standard_normal((min(PART, rows - start), dim), dtype=np.float32)
    file.flush()


def peak_bytes() -> int:
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--dim", type=int, default=384)
    options.add_argument("--queries", type=int, default=20)
    options.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.write:
        write_vectors(asked.write, asked.rows, asked.dim)
        return

    with tempfile.TemporaryDirectory() as folder:
        path, index_path = Path(folder) / "vectors.npy", Path(folder) / "million.vicinal"
        size = ["--rows", str(asked.rows), "--dim", str(asked.dim)]
        subprocess.run([sys.executable, __file__, "--write", str(path), *size], check=True)

        import torch

        from vicinal import Index, __version__
        from vicinal.index.exact import Exact

        at_start = peak_bytes()
        vectors = np.load(path, mmap_mode="r")
        start = time.perf_counter()
        Index.from_vectors(index_path, (f"d{row}" for row in range(asked.rows)), vectors).close()
        seconds_index = time.perf_counter() - start

        queries = np.random.default_rng(1).standard_normal((asked.queries, asked.dim), dtype=np.float32)
        start = time.perf_counter()
        index = Index.open(index_path)
        seconds_open = time.perf_counter() - start
        found, one = [], []
        for query in queries:
            start = time.perf_counter()
            found.append([hit.id for hit in index.search_vector(query, K)])
            one.append(time.perf_counter() - start)
        start = time.perf_counter()
        Exact([block for segment in index.segments for block in segment.dense]).top(queries, K)
        seconds_together = time.perf_counter() - start
        peak = peak_bytes()

        lengths = np.concatenate(
            [np.linalg.norm(vectors[start : start + PART], axis=1) for start in range(0, asked.rows, PART)]
        )
        plain, theirs = [], []
        for query in queries:
            start = time.perf_counter()
            scores = vectors @ query / lengths
            best = np.argpartition(-scores, K)[:K]
            theirs.append([f"d{row}" for row in best[np.argsort(-scores[best])]])
            plain.append(time.perf_counter() - start)
        same = np.mean([len(set(a) & set(b)) / K for a, b in zip(found, theirs, strict=True)])

        result = {
            "benchmark": "million",
            "rows": asked.rows,
            "dim": asked.dim,
            "seconds_index": round(seconds_index, 2),
            "seconds_open": round(seconds_open, 3),
            "seconds_search": round(statistics.median(one), 3),
            "seconds_search_together": round(seconds_together / asked.queries, 3),
            "seconds_numpy": round(statistics.median(plain), 3),
            "ratio": round(statistics.median(plain) / statistics.median(one), 2),
            "shared_hits": round(float(same), 4),
            "peak_bytes": peak,
            "peak_bytes_at_start": at_start,
            "index_bytes": index.info()["bytes"],
            "vectors_bytes": path.stat().st_size,
            "threads": torch.get_num_threads(),
            "version": __version__,
        }
        index.close()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
