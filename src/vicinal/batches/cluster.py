"""A domain's surrogate vectors -> clusters of about `size` pairs, by spherical k-means.

With d and q the unit vectors of a pair's document and query, a cluster c (a unit vector too) is asked to lie near both
[d;q] and [q;d], so that a document near another one's query counts as a neighbour as well. What is climbed is

    objective = mean over both rows of every pair of  max over c of  [d;q] . c / sqrt(2)

and a pair belongs to the nearest centroid of its [d;q]. Two engines keep this promise: `faiss`, and `torch`, which
runs on accelerators too and reads vectors from where they lie instead of copying them.

>>> rows = np.array([[[1, 0], [1, 0]], [[1, 0.1], [1, 0]], [[0, 1], [0, 1]]], dtype=np.float16)
>>> found = cluster(rows, k=2, kmeans=KMeans(engine="torch"))
>>> bool(found.labels[0] == found.labels[1] != found.labels[2]), round(found.objective, 2)
(True, 1.0)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import InputError, MissingExtra
from ..progress import Advance, Progress, silent
from ..vectors import Floats, unit
from .base import Halves

ENGINES = ("faiss", "torch")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
SCORES_AT_ONCE = 1 << 24  # rows x centroids: 64 MB
SPLIT = 1 / 2**0.5  # [d;q] of two unit vectors is sqrt(2) long


@dataclass(frozen=True)
class KMeans:
    """How clusters are looked for: 100 steps, the best of 3 tries, over all rows (the paper's settings)."""

    steps: int = 100
    tries: int = 3
    seed: int = 0
    engine: str = "faiss"
    device: str = "cpu"  # of the engine torch
    precision: str = "fp32"  # of the scores that the engine torch compares; sums are always in 32 bit
    most_pairs: int | None = None  # that centroids are moved by; None: all

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise InputError(f"there is no engine {self.engine!r} for k-means: take one of {', '.join(ENGINES)}")
        if self.precision not in PRECISIONS:
            raise InputError(f"there is no precision {self.precision!r}: take one of {', '.join(PRECISIONS)}")
        if self.engine == "faiss" and (self.device, self.precision) != ("cpu", "fp32"):
            raise InputError(
                f"the engine faiss runs on the CPU in fp32, not on {self.device} in {self.precision}: take engine torch"
            )
        if self.steps < 1 or self.tries < 1 or self.seed < 0 or (self.most_pairs is not None and self.most_pairs < 1):
            raise InputError(f"{self} was asked for: expected steps, tries and pairs of 1 or more, a seed of 0 or more")


@dataclass(frozen=True, eq=False)
class Clusters:
    """Which cluster each pair belongs to."""

    labels: npt.NDArray[np.int32]  # (pairs,)
    centroids: Floats  # (k, 2 dim), each of length 1
    objective: float  # over the rows that moved the centroids
    steps: tuple[float, ...]  # the objective before each step, of the best try
    moved_by: int  # pairs: fewer than there are where a most was asked for


def cluster(vectors: Halves, k: int, kmeans: KMeans | None = None, progress: Progress = silent) -> Clusters:
    """Cluster pairs by their vectors, (pairs, 2, dim); the same seed gives the same clusters."""
    kmeans = kmeans or KMeans()
    if not 1 <= k <= len(vectors):
        raise InputError(f"{k} clusters of {len(vectors)} pairs were asked for: expected 1 to {len(vectors)}")
    moved_by = min(len(vectors), kmeans.most_pairs or len(vectors))
    if moved_by < k:
        raise InputError(f"{moved_by} pairs cannot move {k} centroids: raise most_pairs, or ask for larger clusters")
    shown = vectors
    if moved_by < len(vectors):
        drawn = np.random.default_rng(kmeans.seed).choice(len(vectors), size=moved_by, replace=False)
        shown = vectors[np.sort(drawn)]
    with progress("k-means", kmeans.tries * kmeans.steps) as advance:
        find = _by_faiss if kmeans.engine == "faiss" else _by_torch
        centroids, steps = find(shown, k, kmeans, advance)
    on, dtype = torch.device(kmeans.device), PRECISIONS[kmeans.precision]
    total = _assigned(shown, centroids.to(on), torch.float32, both=True).similarities.double().sum()
    labels = _assigned(vectors, centroids.to(on), dtype).labels.to(torch.int32).cpu().numpy()
    return Clusters(labels, centroids.cpu().numpy(), float(total) / (2 * moved_by), steps, moved_by)


def _by_torch(vectors: Halves, k: int, kmeans: KMeans, advance: Advance) -> tuple[Tensor, tuple[float, ...]]:
    on, dtype = torch.device(kmeans.device), PRECISIONS[kmeans.precision]
    # On an accelerator vectors move there once, in 16 bit; on the CPU they stay in their file.
    held: Halves | Tensor = vectors if on.type == "cpu" else torch.from_numpy(np.array(vectors)).to(on)
    best: tuple[Tensor, tuple[float, ...]] = (torch.zeros(0), ())
    for chance in np.random.default_rng(kmeans.seed).spawn(kmeans.tries):
        drawn = np.sort(chance.choice(len(vectors), size=k, replace=False))
        both = _stacked(vectors[drawn])  # (2, k, 2 dim)
        flipped = torch.from_numpy(chance.integers(2, size=k))
        centroids = unit(both[flipped, torch.arange(k)]).to(on)
        steps: list[float] = []
        before = torch.zeros(0)
        for step in range(kmeans.steps):
            found = _assigned(held, centroids, dtype, both=True)
            sums = _sums(held, found.labels, k)
            steps.append(float((sums.double() * centroids.double()).sum()) / (2 * len(vectors)))
            if torch.equal(found.labels, before):  # nothing will change any more
                advance(kmeans.steps - step)
                break
            before = found.labels
            empty = (torch.bincount(found.labels, minlength=k) == 0).nonzero()[:, 0]
            centroids = torch.where(sums.norm(dim=1, keepdim=True) > 0, unit(sums), centroids)
            if len(empty):  # no row misses these, so they go to the rows that are served worst, and nothing falls
                worst = found.similarities.topk(min(len(empty), 2 * len(vectors)), largest=False).indices.cpu().numpy()
                side, row = worst // len(vectors), worst % len(vectors)
                centroids[empty] = unit(_stacked(vectors[row])[side, np.arange(len(row))]).to(on)
            advance(1)
        if not best[1] or steps[-1] > best[1][-1]:
            best = centroids, tuple(steps)
    return best


def _by_faiss(vectors: Halves, k: int, kmeans: KMeans, advance: Advance) -> tuple[Tensor, tuple[float, ...]]:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("train", needed_for="k-means by faiss (the engine torch needs nothing)") from None
    rows = np.empty((2 * len(vectors), 2 * vectors.shape[2]), dtype=np.float32)
    for start, part in _parts(vectors, k):
        both = _stacked(part).numpy()
        rows[start : start + len(part)] = both[0]
        rows[len(vectors) + start : len(vectors) + start + len(part)] = both[1]
    if not np.isfinite(rows).all():
        raise InputError("a surrogate vector is not a number: make the vectors anew")
    model = faiss.Kmeans(
        rows.shape[1],
        k,
        niter=kmeans.steps,
        nredo=kmeans.tries,
        seed=kmeans.seed,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),  # by itself it would take 256 rows for each centroid and say nothing
    )
    model.train(rows)
    advance(kmeans.tries * kmeans.steps)
    return torch.from_numpy(np.array(model.centroids, dtype=np.float32)), tuple(
        (np.asarray(model.obj) / len(rows)).tolist()
    )


@dataclass(frozen=True)
class _Assigned:
    """The nearest centroid of every row and how near it is: of [d;q], and then, where asked for, of [q;d]."""

    labels: Tensor  # (pairs,) or (2 pairs,)
    similarities: Tensor


def _assigned(vectors: Halves | Tensor, centroids: Tensor, dtype: torch.dtype, both: bool = False) -> _Assigned:
    sides, n = 1 + both, len(vectors)
    labels = torch.empty(sides, n, dtype=torch.long, device=centroids.device)
    similarities = torch.empty(sides, n, device=centroids.device)
    transposed = centroids.to(dtype).T.contiguous()  # (2 dim, k)
    for start, part in _parts(vectors, len(centroids)):
        for side, rows in enumerate(_stacked(part)[:sides]):
            nearest = (rows.to(dtype) @ transposed).max(dim=1)
            labels[side, start : start + len(part)] = nearest.indices
            similarities[side, start : start + len(part)] = nearest.values
    return _Assigned(labels.flatten(), similarities.flatten())


def _sums(vectors: Halves | Tensor, labels: Tensor, k: int) -> Tensor:
    """The sum of the rows of each cluster, (k, 2 dim)."""
    sums = torch.zeros(k, 2 * vectors.shape[2], device=labels.device)
    for start, part in _parts(vectors, k):
        for side, rows in enumerate(_stacked(part)):
            first = side * len(vectors) + start
            of = labels[first : first + len(part)]
            starts = torch.cat([of.new_zeros(1), torch.bincount(of, minlength=k).cumsum(0)])
            # Bags of rows in one order, and not index_add_, which sums in any order on an accelerator.
            order = of.argsort(stable=True)
            sums += torch.nn.functional.embedding_bag(order, rows, starts, mode="sum", include_last_offset=True)
    if not torch.isfinite(sums).all():
        raise InputError("a surrogate vector is not a number: make the vectors anew")
    return sums


def _parts(vectors: Halves | Tensor, k: int) -> Iterator[tuple[int, Halves | Tensor]]:
    at_once = max(256, min(1 << 16, SCORES_AT_ONCE // k))
    for start in range(0, len(vectors), at_once):
        yield start, vectors[start : start + at_once]


def _stacked(part: Halves | Tensor) -> Tensor:
    """(pairs, 2, dim) -> both rows of each pair, in 32 bit, over their length: (2, pairs, 2 dim)."""
    rows = part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
    rows = rows.float() * SPLIT
    return torch.stack([rows.flatten(1), rows.flip(1).flatten(1)])
