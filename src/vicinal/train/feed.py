"""Step numbers -> batches, ready for the model: token ids, masks of false negatives, a teacher's scores.

Everything of a step depends on its number, the run and the pairs alone, so a run that is resumed at step 1000 meets
what it would have met. Over several processes each step is one batch for all: this process reads its share of the
texts, and masks have a column for every document of everyone, in the order of ranks (losses/gather.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..batches.base import Rows
from ..batches.filter import Filter, Masks
from ..batches.plan import Plan
from ..batches.sample import EveryPairOnce, Multinomial, Schedule, Step, slice_of
from ..batches.surrogate import Vectors
from ..batches.teacher import fused
from ..chunked import Batch
from ..encoder import Encoder
from ..losses.gather import world
from ..pairs import Pair, Pairs
from .run import Run


@dataclass(frozen=True)
class Ready:
    """One batch of one step."""

    step: Step
    batch: Batch
    masks: Masks  # rows: this process's queries; columns: everyone's documents
    teacher: Tensor | None  # the same rows and columns
    tokens: int


@dataclass(frozen=True)
class Feed:
    """Batches from any number on; the next one is made while the last is learnt from."""

    pairs: Pairs
    plan: Plan
    run: Run
    start: Encoder  # whose tokenizers read the texts
    vectors: Vectors | None  # by which false negatives are judged, and the teacher's dense half

    @property
    def schedule(self) -> Schedule:
        alpha, seed = self.run.meeting.alpha, self.run.seed
        return EveryPairOnce(seed) if alpha is None else Multinomial(alpha, seed)

    def batches(self, first: int = 0) -> Iterator[Ready]:
        """Batch number `first`, and all after it."""
        steps = enumerate(self.schedule.steps(self.plan, first), first)
        with ThreadPoolExecutor(1) as ahead:
            waiting = ahead.submit(self._ready, *next(steps))
            while True:
                ready, waiting = waiting.result(), ahead.submit(self._ready, *next(steps))
                yield ready

    def _ready(self, number: int, step: Step) -> Ready:
        processes, rank = world()
        meeting = self.run.meeting
        pairs = self.pairs.take(step.rows.tolist())
        mine = slice_of(np.arange(len(pairs)), rank, processes)
        negatives = [list(pair.negatives[: meeting.negatives]) for pair in pairs]
        if processes > 1:  # which must have as many documents each
            negatives = [part[: min(map(len, negatives))] for part in negatives]
        own = [pairs[place] for place in mine]
        queries = self.start.tokenizer("query").read([pair.query for pair in own]).ids
        texts = [pair.document for pair in own] + [text for place in mine for text in negatives[place]]
        documents = self.start.tokenizer("document").read(texts).ids
        masks, teacher = self._judged(step, pairs, negatives)
        chance = np.random.default_rng([self.run.seed, number, rank])
        shown = chance.choice(len(own), min(meeting.shown // processes, len(own)), replace=False)
        attends = self.run.encoder.attention != "none" or self.run.encoder.lane
        batch = Batch(queries, documents, np.sort(shown).tolist() if attends else ())
        tokens = sum(map(len, queries)) + sum(map(len, documents))
        return Ready(step, batch, masks.of(slice(mine[0], mine[-1] + 1)), teacher, tokens)

    def _judged(
        self, step: Step, pairs: Sequence[Pair], negatives: Sequence[Sequence[str]]
    ) -> tuple[Masks, Tensor | None]:
        """Masks of the whole batch, and the teacher's scores of this process's queries with everyone's documents.

        Hard negatives are known by their texts alone: of those no surrogate vectors were made.
        """
        processes, rank = world()
        queries, documents = [pair.query for pair in pairs], [pair.document for pair in pairs]
        if self.vectors is None:
            vectors = torch.zeros(2, len(pairs), 1)
            rule = Filter(margin=None)
        else:
            start = self.pairs.domains[step.domain].start
            halves = self.vectors.of_domain[step.domain][step.rows - start]
            vectors = torch.from_numpy(np.asarray(halves, dtype=np.float32)).transpose(0, 1)  # documents', queries'
            rule = Filter(margin=self.run.meeting.margin)
        masks = rule.masks(vectors[1], vectors[0], queries, documents)
        flat = [text for part in negatives for text in part]
        order = torch.from_numpy(in_ranks(len(documents), list(map(len, negatives)), processes))
        if flat:
            by_text = Filter(margin=None).masks(
                torch.zeros(len(queries), 1), torch.zeros(len(documents) + len(flat), 1), queries, [*documents, *flat]
            )
            further = slice(len(documents), None)
            masks = Masks(
                torch.cat([masks.allowed, by_text.allowed[:, further]], dim=1),
                masks.allowed_queries,
                torch.cat([masks.allowed_documents, by_text.allowed_documents[:, further]], dim=1),
            )
            masks = Masks(masks.allowed[:, order], masks.allowed_queries, masks.allowed_documents[:, order])
        teacher = None
        if self.run.aim.kl:
            mine = slice_of(np.arange(len(pairs)), rank, processes)
            scores = fused(queries, documents, vectors[1], vectors[0], self.run.aim.words)
            known = torch.nn.functional.pad(scores[mine[0] : mine[-1] + 1], (0, len(flat)), value=-torch.inf)
            teacher = known[:, order]
        return masks, teacher


def in_ranks(documents: int, negatives: Sequence[int], processes: int) -> Rows:
    """The order of ranks: of each, its own documents and then its hard negatives; from all own ones, then all others.

    >>> in_ranks(4, [1, 0, 2, 0], processes=2).tolist()
    [0, 1, 4, 2, 3, 5, 6]
    """
    starts = documents + np.cumsum([0, *negatives])
    parts = []
    for rank in range(processes):
        mine = slice_of(np.arange(documents), rank, processes)
        parts += [mine, np.arange(starts[mine[0]], starts[mine[-1] + 1])]
    return np.concatenate(parts).astype(np.int64)
