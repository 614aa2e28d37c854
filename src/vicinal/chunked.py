"""Gradients of batches that do not fit into memory at once: GradCache (arXiv 2101.06983), in two stages.

A contrastive loss needs all vectors of a batch, but each vector only its own text. So the vectors are computed without
a graph, the loss says how each should move, and each is computed once more, a few at a time, to pass that on to the
weights. With a context there are two such stages, and the prefix between them, which is small and keeps its graph:

    shown --look, M1--> stage vectors --prepare--> prefix      texts --look, M2 behind the prefix--> vectors
                                                                                                        |
    shown <-replay, M1-- gradients <--backward-- gradients  <--replay, M2 behind the prefix-- gradients <-judge-- loss

The one idea: what is random is drawn from a seed that names the step, the stage and the chunk, so that a replay has the
same dropouts without any state to keep, and the gradient is exactly that of the graph kept (`keep_graph`, which
`check` compares it with). Over several processes all texts stand behind one context, to which each gives its own share.

>>> import vicinal.encoder.contextual as contextual
>>> config = contextual.ContextualConfig(first_layers=1, sequence_dropout=0.5)
>>> model = contextual.TwoStage.start(contextual.toy_backbone(), config).double().train()
>>> batch = Batch([[1, 5, 2], [1, 6, 2]], [[1, 7, 8, 2], [1, 9, 2]], shown=[0, 1])
>>> def objective(queries, documents, shown):
...     return -(queries * documents).sum()
>>> check(model, batch, objective, chunk_tokens=4, seed=0) < 1e-9
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, distributed

from .encoder import batches
from .encoder.contextual import Prefix, TwoStage, padded
from .encoder.prefix import ContextCache
from .errors import InputError
from .losses.gather import gathered, world

Texts = Sequence[Sequence[int]]  # token ids
Encode = Callable[[Texts], Tensor]
Objective = Callable[[Tensor, Tensor, Tensor | None], Tensor]
STAGE_ONE, BETWEEN, QUERIES, DOCUMENTS = range(4)  # what a draw is for


@dataclass(frozen=True)
class Batch:
    """Texts of one step, as token ids: documents[i] answers queries[i], further documents are hard negatives.

    `shown` says which documents are this process's share of the context.
    """

    queries: Texts
    documents: Texts
    shown: Sequence[int] = ()


def backward(
    model: TwoStage,
    batch: Batch,
    objective: Objective,
    *,
    chunk_tokens: int,
    seed: int,
    weight: float = 1.0,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    keep_graph: bool = False,
) -> Tensor:
    """Add the gradient of `weight` times the batch's loss to the weights' own, and return the loss.

    `objective` takes the raw vectors of queries and of documents, and of the context's documents where the model has a
    lane. A chunk has about `chunk_tokens` tokens. `keep_graph` does the same with the graph of all chunks in memory.
    """
    shown = [batch.documents[place] for place in batch.shown]
    device, rank = model.second.device, world()[1]
    _refuse_unequal(len(shown), device)

    def run(encode: Encode, texts: Texts, what: int) -> Chunks:
        return Chunks(encode, texts, chunk_tokens, (seed, rank, what), device, autocast, front)

    front = 0

    stage_one = run(lambda texts: model.embed_context(*padded(texts, device)), shown if model.first else [], STAGE_ONE)
    stage = stage_one.kept() if keep_graph else stage_one.look()
    with drawn(device, seed, BETWEEN), autocast():  # alike on every process, whose context is one
        prefix = model.prepare(gathered(stage) if len(stage) else None) if shown else _null(model)
    held = prefix if keep_graph else _leaf(prefix)
    if isinstance(held, Tensor):  # two-way: every text is read with the whole context
        front = len(held) + model.config.soft_tokens
    sides = [
        run(lambda texts: model.encode(texts, held), texts, what)
        for texts, what in ((batch.queries, QUERIES), (batch.documents, DOCUMENTS))
    ]
    vectors = [side.kept() if keep_graph else side.look() for side in sides]
    has_lane = model.lane is not None and not _is_null(model, prefix)  # as in search, where null has no correction
    loss = judge(objective, vectors[0], vectors[1], batch.shown if has_lane else ())
    (loss * weight).backward()  # type: ignore[no-untyped-call]
    if not keep_graph:
        for side, vector in zip(sides, vectors, strict=True):
            side.replay(vector.grad)
        moved = [(part, leaf.grad) for part, leaf in zip(_parts(prefix), _parts(held), strict=True)]
        moved = [(part, gradient) for part, gradient in moved if gradient is not None]
        if moved:
            torch.autograd.backward([part for part, _ in moved], [gradient for _, gradient in moved])
        stage_one.replay(stage.grad)
    return loss.detach()


@dataclass(frozen=True)
class Chunks:
    """Texts that are encoded a chunk at a time; what is random in a chunk depends on `seeds` and its number alone."""

    encode: Encode
    texts: Texts
    chunk_tokens: int
    seeds: tuple[int, ...]
    device: torch.device
    autocast: Callable[[], AbstractContextManager[object]]
    front: int = 0  # tokens that every text is read with, and that count

    def kept(self) -> Tensor:
        """The vectors of all texts, in their order, with their graph where gradients are wanted."""
        parts, places = [], []
        for chunk, vectors in self._encoded():
            parts.append(vectors)
            places.extend(chunk.tolist())
        if not parts:
            return torch.zeros(0, device=self.device)
        if len(places) < len(self.texts):
            raise InputError(f"{len(self.texts) - len(places)} texts have no token at all: leave them out of the batch")
        return torch.cat(parts)[torch.tensor(places, device=self.device).argsort()]

    def look(self) -> Tensor:
        """The same without a graph, as a leaf that gathers a gradient."""
        with torch.no_grad():
            vectors = self.kept()
        return vectors.requires_grad_()

    def replay(self, gradient: Tensor | None) -> None:
        """Encode again, with a graph, and pass a gradient of the vectors on to the weights."""
        if gradient is None:
            return
        for chunk, vectors in self._encoded():
            vectors.backward(gradient[torch.from_numpy(chunk).to(self.device)])  # type: ignore[no-untyped-call]

    def _encoded(self) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Chunks of texts of like lengths: their places, and their vectors in 32 bit at least."""
        for number, chunk in enumerate(
            batches([len(text) and len(text) + self.front for text in self.texts], self.chunk_tokens)
        ):
            with drawn(self.device, *self.seeds, number), self.autocast():
                vectors = self.encode([self.texts[place] for place in chunk])
            yield chunk, vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def judge(objective: Objective, queries: Tensor, documents: Tensor, shown: Sequence[int]) -> Tensor:
    """The loss of raw vectors; the lane's context is that of all processes."""
    context = gathered(documents[list(shown)]) if len(shown) else None
    return objective(queries, documents, context)


def average_gradients(model: torch.nn.Module) -> None:
    """Replace every gradient by its mean over processes; a weight that no process has a gradient of keeps none."""
    processes = world()[0]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if processes == 1 or not weights:
        return
    has_one = torch.tensor([weight.grad is not None for weight in weights], device=weights[0].device, dtype=torch.int32)
    distributed.all_reduce(has_one, distributed.ReduceOp.MAX)
    for weight, some in zip(weights, has_one.tolist(), strict=True):
        if some:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            distributed.all_reduce(weight.grad)
            weight.grad /= processes


def check(model: TwoStage, batch: Batch, objective: Objective, *, chunk_tokens: int, seed: int) -> float:
    """How far the gradient by chunks is from that of the graph kept: the norm of the difference over the norm."""
    found = []
    for keep_graph in (False, True):
        model.zero_grad()
        backward(model, batch, objective, chunk_tokens=chunk_tokens, seed=seed, keep_graph=keep_graph)
        found.append([None if weight.grad is None else weight.grad.clone() for weight in model.parameters()])
        model.zero_grad()
    differences, lengths = [], []
    for ours, kept in zip(*found, strict=True):
        if ours is not None or kept is not None:
            one, other = (torch.zeros(()) if gradient is None else gradient.double().cpu() for gradient in (ours, kept))
            differences.append((one - other).norm())
            lengths.append(other.norm())
    return float(torch.stack(differences).norm() / torch.stack(lengths).norm())


@contextmanager
def drawn(device: torch.device, *numbers: int) -> Iterator[None]:
    """What is random inside depends on these numbers alone, and what follows not on what was drawn inside.

    >>> with drawn(torch.device("cpu"), 7, 0):
    ...     one = torch.rand(())
    >>> with drawn(torch.device("cpu"), 7, 0):
    ...     bool(torch.rand(()) == one)
    True
    """
    others = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(others, device_type="cuda" if device.type == "cpu" else device.type):
        torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1)))
        yield


def _null(model: TwoStage) -> Prefix:
    """The prefix of a batch that is shown nothing."""
    return model.null_slots(model.config.slots or 1) if model.config.attention == "two-way" else None


def _is_null(model: TwoStage, prefix: Prefix) -> bool:
    """Whether context dropout has left a model that attends without its context."""
    if prefix is None:
        return model.config.attention != "none"
    return isinstance(prefix, Tensor) and model.null is not None and bool((prefix == model.null).all())


def _parts(prefix: Prefix) -> list[Tensor]:
    """The tensors of a prefix."""
    return list(prefix.states) if isinstance(prefix, ContextCache) else [] if prefix is None else [prefix]


def _leaf(prefix: Prefix) -> Prefix:
    """The same prefix without its graph, its tensors leaves that gather gradients."""
    leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in _parts(prefix)]
    if isinstance(prefix, ContextCache):
        return ContextCache(tuple(leaves), prefix.slots)
    return leaves[0] if leaves else None


def _refuse_unequal(shown: int, device: torch.device) -> None:
    """Processes that show unequally many documents would wait for each other for ever."""
    if world()[0] == 1:
        return
    counts = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(world()[0])]
    distributed.all_gather(counts, torch.tensor([shown], device=device))
    if len({int(count) for count in counts}) > 1:
        raise InputError(
            f"the processes show {', '.join(str(int(count)) for count in counts)} documents: expected as many each"
        )
