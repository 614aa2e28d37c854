"""A look at a batch, and how hard batches are.

A batch is hard where its queries have near documents that are not their own. With the surrogate vectors, each query's
similarity to every other document of its batch is taken: their mean and their highest, averaged over the queries.

>>> difficulty_of(np.array([[[1, 0], [1, 0]], [[0.6, 0.8], [1, 0]]]))
(0.8, 0.8)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import files
from ..errors import InputError, MissingExtra
from ..progress import Progress, silent
from .base import Pairs, Rows
from .cluster import KMeans
from .plan import SIZE, Plan
from .sample import EveryPairOnce
from .surrogate import Surrogate, Vectors


@dataclass(frozen=True)
class Look:
    """One batch, as a person reads it."""

    batch: int
    batches: int  # in the epoch
    domain: str
    rows: Rows
    queries: list[str]
    documents: list[str]
    clusters: dict[int, int]  # how many of its pairs are of which cluster
    mean: float  # difficulty: the queries' similarity to other documents of the batch
    highest: float
    plan: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "batch": self.batch,
            "batches": self.batches,
            "domain": self.domain,
            "clusters": {str(number): count for number, count in self.clusters.items()},
            "difficulty": {"mean": round(self.mean, 4), "highest": round(self.highest, 4)},
            "pairs": [
                {"row": row, "query": query, "document": document}
                for row, query, document in zip(self.rows.tolist(), self.queries, self.documents, strict=True)
            ],
            "plan": dict(self.plan),
        }


@dataclass(frozen=True)
class Difficulty:
    """How hard each batch of an epoch is, in the order of `plan.epoch`."""

    mean: npt.NDArray[np.float64]  # (batches,)
    highest: npt.NDArray[np.float64]


def show(
    pairs: Pairs,
    surrogate: Surrogate,
    *,
    batch: int,
    size: int = SIZE,
    order: str = "tour",
    seed: int = 0,
    epoch: int = 0,
    kmeans: KMeans | None = None,
    folder: Path | None = None,
    plot: Path | None = None,
    progress: Progress = silent,
) -> Look:
    """What the batch of this number holds, in the order that `EveryPairOnce(seed)` meets them in that epoch.

    `plot` gets a histogram of how hard the epoch's batches are, beside random ones of the same domains.
    """
    vectors = Vectors.of(pairs, surrogate, folder, progress)
    plan = Plan.of(pairs, vectors, size=size, order=order, kmeans=kmeans or KMeans(seed=seed), progress=progress)
    if plot is not None:
        both = {"clustered": plan, "random": Plan.of(pairs, None, size=size, order="random")}
        histogram(plot, {name: difficulty(each, vectors, seed, epoch) for name, each in both.items()})
    return look(plan, pairs, vectors, batch=batch, seed=seed, epoch=epoch)


def look(plan: Plan, pairs: Pairs, vectors: Vectors, *, batch: int, seed: int = 0, epoch: int = 0) -> Look:
    """A look at one batch of a plan."""
    if not 0 <= batch < len(plan):
        raise InputError(
            f"batch {batch} was asked for: an epoch has {len(plan)} batches of {plan.size} pairs, numbered from 0"
        )
    if epoch < 0:
        raise InputError(f"epoch {epoch} was asked for: expected 0 or more")
    rows = EveryPairOnce(seed).epoch(plan, epoch)[batch]
    domain = plan.domain_of(int(rows[0]))
    own = rows - domain.rows.start
    numbers, counts = np.unique(domain.labels[own], return_counts=True)
    mean, highest = difficulty_of(vectors.of_domain[domain.name][own])
    return Look(
        batch,
        len(plan),
        domain.name,
        rows,
        pairs.column("query", rows.tolist()),
        pairs.column("document", rows.tolist()),
        dict(sorted(zip(numbers.tolist(), counts.tolist(), strict=True), key=lambda found: (-found[1], found[0]))),
        mean,
        highest,
        plan.describe(),
    )


def difficulty(plan: Plan, vectors: Vectors, seed: int = 0, epoch: int = 0) -> Difficulty:
    """How hard the batches of one epoch are; any plan of the same pairs can be measured by the same vectors."""
    found = [
        difficulty_of(vectors.of_domain[domain.name][rows - domain.rows.start])
        for domain in plan.domains
        for rows in plan.epoch_of(domain, seed, epoch)
    ]
    table = np.array(found, dtype=np.float64).reshape(-1, 2)
    return Difficulty(table[:, 0], table[:, 1])


def difficulty_of(vectors: npt.NDArray[Any]) -> tuple[float, float]:
    """Mean and highest similarity of a query to the other documents of its batch, (pairs, 2, dim), over all queries."""
    if len(vectors) < 2:
        return 0.0, 0.0
    documents, queries = vectors[:, 0].astype(np.float32), vectors[:, 1].astype(np.float32)
    scores = queries @ documents.T  # (queries, documents)
    np.fill_diagonal(scores, 0)
    mean = scores.sum(axis=1) / (len(scores) - 1)
    np.fill_diagonal(scores, -np.inf)
    return round(float(mean.mean()), 6), round(float(scores.max(axis=1).mean()), 6)


def histogram(path: str | Path, measured: Mapping[str, Difficulty]) -> None:
    """Draw how hard batches are, one colour for each way of making them, as a PNG."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("train", needed_for="a plot of how hard batches are") from None
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    sides = figure.subplots(1, 2)
    for side, title in zip(sides, ("mean", "highest"), strict=True):
        every = {name: found.mean if title == "mean" else found.highest for name, found in measured.items()}
        values = np.concatenate([*every.values(), np.zeros(0)])
        edges = np.histogram_bin_edges(values, bins=40) if len(values) else 10
        for name, numbers in every.items():
            side.hist(numbers, bins=edges, alpha=0.6, label=f"{name} ({len(numbers)} batches)")
        side.set_xlabel(f"{title} similarity of a query to other documents of its batch")
        side.set_ylabel("batches")
        side.legend()
    with files.writing(Path(path)) as partial:
        figure.savefig(partial, format="png", dpi=120, metadata={"Software": None})
