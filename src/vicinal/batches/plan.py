"""Which pairs are neighbours, in one file: clusters of every domain, and how batches are packed from them.

Clustering is the slow part and is done once; packing takes moments and is done anew every epoch. So a plan keeps a
label for each pair, the centroids, and the settings, 4 bytes a pair, and whoever streams the pairs follows it: `epoch`
gives row numbers. It belongs to the pairs of one fingerprint, and refuses others.

>>> labels = np.array([0, 1, 0, 1, 0], dtype=np.int32)
>>> domain = Domain("cooking", range(5), labels, np.eye(2, dtype=np.float32))
>>> plan = Plan("fingerprint of the pairs", size=2, order="random", domains=(domain,))
>>> len(plan), plan.remainder, plan.epoch(seed=0, epoch=0).shape
(2, {'cooking': 1}, (2, 2))
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .. import files
from ..errors import InputError
from ..progress import Progress, silent
from ..vectors import Floats
from .base import Pairs, Rows
from .cluster import KMeans, cluster
from .pack import check_packing, pack
from .surrogate import Vectors

SIZE = 512
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Domain:
    """One domain's rows and their clusters."""

    name: str
    rows: range
    labels: npt.NDArray[np.int32]  # (rows,)
    centroids: Floats  # (k, 2 dim)
    objective: float | None = None  # of k-means; None: there was one cluster, and nothing to look for
    moved_by: int = 0  # pairs that k-means looked at; fewer than `rows` where a most was asked for


@dataclass(frozen=True, eq=False)
class Plan:
    """Batches of `size` pairs; `Plan.of` makes one."""

    pairs: str  # the pairs' fingerprint
    size: int
    order: str
    domains: tuple[Domain, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # of surrogate and k-means, as JSON

    def __post_init__(self) -> None:
        check_packing(self.size, self.order)

    @classmethod
    def of(
        cls,
        pairs: Pairs,
        vectors: Vectors | None,
        *,
        size: int = SIZE,
        cluster_size: int | None = None,
        order: str = "tour",
        kmeans: KMeans | None = None,
        progress: Progress = silent,
    ) -> Plan:
        """Cluster each domain into about n / `cluster_size` clusters (`size`, where none is given).

        Without vectors there are no neighbours: batches are random ones of one domain.
        """
        check_packing(size, order)
        kmeans, cluster_size = kmeans or KMeans(), cluster_size or size
        if cluster_size < 1:
            raise InputError(f"clusters of {cluster_size} pairs were asked for: expected 1 or more")
        if vectors and vectors.pairs != pairs.fingerprint:
            raise InputError("these surrogate vectors are of other pairs: make them with Vectors.of(pairs, ...)")
        domains = []
        for name, rows in pairs.domains.items():
            k = -(-len(rows) // cluster_size)
            if vectors is None or k < 2:
                width = 0 if vectors is None else 2 * vectors.of_domain[name].shape[2]
                centroid = np.zeros((1, width), dtype=np.float32)
                domains.append(Domain(name, rows, np.zeros(len(rows), dtype=np.int32), centroid))
            else:
                found = cluster(vectors.of_domain[name], k, kmeans, progress)
                domains.append(Domain(name, rows, found.labels, found.centroids, found.objective, found.moved_by))
        settings: dict[str, Any] = {"surrogate": None}
        if vectors:
            settings = {"surrogate": dict(vectors.record), "kmeans": asdict(kmeans), "cluster_size": cluster_size}
        return cls(pairs.fingerprint, size, order, tuple(domains), settings)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return sum(len(domain.rows) // self.size for domain in self.domains)

    @property
    def remainder(self) -> dict[str, int]:
        """How many pairs of each domain an epoch leaves out, other ones each time; none where it is not named."""
        return {d.name: left for d in self.domains if (left := len(d.rows) % self.size)}

    @property
    def sampled(self) -> dict[str, int]:
        """How many pairs of each domain moved its centroids, where not all did."""
        return {d.name: d.moved_by for d in self.domains if 0 < d.moved_by < len(d.rows)}

    def epoch(self, seed: int = 0, epoch: int = 0) -> Rows:
        """The batches of one epoch, (batches, size) row numbers, domain after domain (a schedule shuffles them)."""
        parts = [self.epoch_of(domain, seed, epoch) for domain in self.domains]
        return np.concatenate([*parts, np.zeros((0, self.size), dtype=np.int64)])

    def epoch_of(self, domain: Domain, seed: int = 0, epoch: int = 0) -> Rows:
        """The batches of one domain in one epoch."""
        packed = pack(domain.labels, domain.centroids, self.size, self.order, seed=seed, epoch=epoch, name=domain.name)
        return packed.batches + domain.rows.start

    def domain_of(self, row: int) -> Domain:
        """The domain that a row belongs to."""
        return next(domain for domain in self.domains if row in domain.rows)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything in it."""
        return files.fingerprint_of(self._record())

    def describe(self) -> dict[str, Any]:
        """What a run keeps of its plan, as JSON."""
        return {
            "fingerprint": self.fingerprint,
            "batches": len(self),
            "size": self.size,
            "order": self.order,
            "clusters": sum(len(d.centroids) for d in self.domains),
            "pairs": sum(len(d.rows) for d in self.domains),
            "remainder": self.remainder,
            "sampled": self.sampled,
            **self.settings,
        }

    def save(self, path: str | Path) -> None:
        """Write the plan as one .safetensors file."""
        data = save(self._tensors(), metadata={"plan": files.canonical_json(self._record())})
        with files.writing(Path(path)) as partial:
            partial.write_bytes(data)

    @classmethod
    def load(cls, path: str | Path, pairs: Pairs) -> Plan:
        """Read what `save` wrote; a file that was changed, or that is of other pairs, is refused."""
        try:
            with safe_open(path, framework="np") as opened:
                metadata, labels = opened.metadata() or {}, opened.get_tensor("labels")
                centroids = opened.get_tensor("centroids")
            record = json.loads(metadata["plan"])
            domains, row, place = [], 0, 0
            for told in record["domains"]:
                rows = range(told["start"], told["stop"])
                mine = labels[row : row + len(rows)], centroids[place : place + told["clusters"]]
                domains.append(Domain(told["name"], rows, *mine, told["objective"], told["moved_by"]))
                row, place = row + len(rows), place + told["clusters"]
            plan = cls(record["pairs"], record["size"], record["order"], tuple(domains), record["settings"])
            intact = record["format"] == FORMAT and plan._record() == record
        except FileNotFoundError:
            raise InputError(f"there is no file {path}: expected a plan of batches that was saved") from None
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{path} is not a saved plan of batches ({error}): make it again") from None
        if not intact:
            raise InputError(f"{path} is not as it was saved, or of a newer format: make the plan again")
        if plan.pairs != pairs.fingerprint:
            raise InputError(f"{path} is the plan of other pairs, or of these before they changed: make it again")
        return plan

    def _tensors(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "labels": np.concatenate([d.labels for d in self.domains] or [np.zeros(0, dtype=np.int32)]),
            "centroids": np.concatenate([d.centroids for d in self.domains] or [np.zeros((0, 0), dtype=np.float32)]),
        }

    def _record(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "pairs": self.pairs,
            "size": self.size,
            "order": self.order,
            "settings": dict(self.settings),
            "domains": [
                {
                    "name": d.name,
                    "start": d.rows.start,
                    "stop": d.rows.stop,
                    "clusters": len(d.centroids),
                    "objective": d.objective,
                    "moved_by": d.moved_by,
                }
                for d in self.domains
            ],
        } | {name: _hash(tensor) for name, tensor in self._tensors().items()}


def _hash(tensor: npt.NDArray[Any]) -> str:
    """Of the numbers and how they are laid out."""
    told = f"{tensor.dtype} {tensor.shape} ".encode()
    return hashlib.sha256(told + np.ascontiguousarray(tensor).tobytes()).hexdigest()
