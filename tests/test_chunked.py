"""Gradients by chunks are those of the graph kept: one-way, two-way, with a lane, on several processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, distributed

from vicinal import chunked
from vicinal.chunked import Batch, average_gradients, backward, check
from vicinal.encoder.contextual import ContextualConfig, TwoStage, padded, toy_backbone
from vicinal.errors import InputError
from vicinal.losses import KL, Contrastive, Matryoshka, Sum, Views, across

QUERIES = [[1, 5 + n, 9, 2] if n % 2 else [1, 30 - n, 7, 6 + n, 2] for n in range(6)]
DOCUMENTS = [[1, *range(5 + n, 9 + 2 * n), 2] for n in range(6)]
NEGATIVES = [[1, 30, 9 + n, 2] for n in range(6)]
BATCH = Batch(QUERIES, [*DOCUMENTS, *NEGATIVES], shown=[0, 2, 3, 5])
LOSS = Matryoshka(Sum(((1.0, Contrastive(temperature=0.2, both=True)), (0.5, KL()))), sizes=(4, 16))
WAYS = {
    "one-way": {"attention": "one-way", "soft_tokens": 2},
    "two-way": {"attention": "two-way", "soft_tokens": 2, "head": "residual"},
    "one-way with a lane": {"attention": "one-way", "lane": True, "share_tokens": True},
    "two-way with a lane, several vectors each": {"attention": "two-way", "lane": True, "tokens_per_document": 2},
    "a lane alone": {"attention": "none", "lane": True},
    "nothing": {"attention": "none"},
}


def made(way: str, family: str = "bert", dropout: float = 0.1, **other: object) -> TwoStage:
    """A random model in training mode, whose layers all have a say; `dropout` is that of everything that has one."""
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if family == "modernbert":
        rates = {"embedding_dropout": dropout, "attention_dropout": dropout, "mlp_dropout": dropout}
    fields = {"first_layers": 1, "sequence_dropout": 3 * dropout, "context_dropout": 0.0} | WAYS[way] | other
    backbone = toy_backbone(family, hidden_size=16, initializer_range=0.3, **rates)
    model = TwoStage.start(backbone, ContextualConfig(**fields)).double().train()
    if model.lane is not None:
        model.lane.log_gamma.data.fill_(-1.0)
    return model


def objective(model: TwoStage, queries: Tensor, documents: Tensor, shown: Tensor | None) -> Tensor:
    """Filtered, distilled, at two sizes, in both directions, with hard negatives, in the lane of what is shown."""
    allowed = torch.ones(len(queries), len(documents), dtype=torch.bool)
    allowed[0, 1] = False
    teacher = torch.linspace(0, 1, allowed.numel(), dtype=queries.dtype).view_as(allowed)
    views = Views(queries, documents, teacher=teacher, correct=lane_of(model, shown))
    return LOSS(across(views) if distributed.is_initialized() else replace(views, allowed=allowed))


def lane_of(model: TwoStage, shown: Tensor | None) -> Callable[[int], Tensor | None]:
    return lambda dim: None if model.lane is None or shown is None else model.lane.matrix(unit64(shown[:, :dim]))


def unit64(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=1, keepdim=True)


def gradients(model: TwoStage) -> dict[str, Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    total = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    return float(torch.stack([(found[name] - expected[name]).norm() for name in expected]).norm() / total)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["bert", "nomic_bert", "modernbert"])
def test_the_gradient_by_chunks_is_that_of_the_graph_kept(way: str, family: str) -> None:
    model = made(way, family)
    tolerance = 1e-5 if family != "bert" else 1e-9  # rotary models rotate in 32 bit
    assert check(model, BATCH, partial(objective, model), chunk_tokens=12, seed=3) < tolerance
    assert not gradients(model)


@pytest.mark.parametrize("way", WAYS)
def test_without_dropout_chunks_do_not_show(way: str) -> None:
    model = made(way, dropout=0.0)
    found, losses = [], []
    for tokens in (1, 12, 10_000):
        losses.append(backward(model, BATCH, partial(objective, model), chunk_tokens=tokens, seed=0))
        found.append(gradients(model))
        model.zero_grad()
    loss = objective(model, *plainly(model))
    loss.backward()
    assert max(abs(loss.detach() - other) for other in losses) < 1e-9
    assert max(difference(other, gradients(model)) for other in found) < 1e-9
    reached = {name.split(".")[0] for name, gradient in gradients(model).items() if gradient.any()}
    expected = {"second"} | ({"first", "to_context"} if model.first is not None else set())
    assert expected <= reached and (model.lane is None or "lane" in reached)


def plainly(model: TwoStage) -> tuple[Tensor, Tensor, Tensor]:
    """Everything at once, as one would write it without chunks."""
    prefix = None
    if model.first is not None:
        prefix = model.prepare(model.embed_context(*padded([BATCH.documents[n] for n in BATCH.shown])))
    queries, documents = (model(*padded(texts), prefix) for texts in (BATCH.queries, BATCH.documents))
    return queries, documents, documents[list(BATCH.shown)]


def test_dropout_is_drawn_anew_in_every_step_and_chunk_and_nothing_outside_is_moved() -> None:
    model = made("one-way")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    losses = [float(backward(model, BATCH, partial(objective, model), chunk_tokens=12, seed=s)) for s in (0, 1, 0)]
    assert torch.equal(torch.rand(3), expected)
    assert losses[0] == losses[2] != losses[1]
    twins = replace(BATCH, queries=[QUERIES[0]] * 6, documents=[DOCUMENTS[0]] * 6, shown=[0])
    seen: list[Tensor] = []

    def look(queries: Tensor, documents: Tensor, shown: Tensor | None) -> Tensor:
        seen.append(queries.detach())
        return queries.sum()

    backward(model, twins, look, chunk_tokens=1, seed=0)
    assert len({tuple(vector.tolist()) for vector in seen[0]}) == 6


def test_a_dropped_context_leaves_stage_one_alone() -> None:
    model = made("one-way", context_dropout=1.0)
    backward(model, BATCH, partial(objective, model), chunk_tokens=12, seed=0)
    assert not any(name.startswith(("first", "to_context")) for name in gradients(model))


@pytest.mark.parametrize("way", ["one-way with a lane", "two-way with a lane, several vectors each"])
def test_a_dropped_context_has_no_lane_either_as_in_search(way: str) -> None:
    model, seen = made(way, context_dropout=1.0), list[Tensor | None]()

    def look(queries: Tensor, documents: Tensor, shown: Tensor | None) -> Tensor:
        seen.append(shown)
        return queries.sum()

    backward(model, BATCH, look, chunk_tokens=12, seed=0)
    backward(made(way, context_dropout=0.0), BATCH, look, chunk_tokens=12, seed=0)
    assert seen[0] is None and seen[1] is not None and len(seen[1]) == len(BATCH.shown)


def test_weights_gather_gradients_and_a_weight_counts() -> None:
    model = made("one-way")
    run = partial(backward, model, BATCH, partial(objective, model), chunk_tokens=12)
    run(seed=1)
    once = gradients(model)
    run(seed=1, weight=2.0)
    assert difference(gradients(model), {name: 3 * gradient for name, gradient in once.items()}) < 1e-12


def test_a_text_without_tokens_is_refused() -> None:
    model = made("nothing")
    with pytest.raises(InputError, match="1 texts have no token"):
        backward(model, replace(BATCH, queries=[*QUERIES[1:], []]), partial(objective, model), chunk_tokens=12, seed=0)


def test_in_32_bit_it_stays_near() -> None:
    model = made("one-way with a lane").float()
    assert check(model, BATCH, partial(objective, model), chunk_tokens=12, seed=3) < 1e-5


# -- several processes ----------------------------------------------------------------------------------------------


def share(rank: int, count: int) -> Batch:
    mine = range(rank * 6 // count, (rank + 1) * 6 // count)
    documents = [DOCUMENTS[n] for n in mine] + [NEGATIVES[n] for n in mine]
    return Batch([QUERIES[n] for n in mine], documents, shown=[0, 1])


def work(rank: int, count: int, folder: Path, way: str) -> None:
    """What one process does and saves: how far chunks are from the graph kept, and its averaged gradient."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
    model, mine = made(way), share(rank, count)
    far = check(model, mine, partial(objective, model), chunk_tokens=6, seed=3)
    chunks = [len(list(chunked.batches(list(map(len, texts)), 6))) for texts in (mine.queries, mine.documents[:2])]
    model = made(way, dropout=0.0)
    backward(model, mine, partial(objective, model), chunk_tokens=6, seed=3)
    average_gradients(model)
    told = {"far": str(far), "chunks": str(min(chunks))}
    save_file(gradients(model), folder / f"{rank}.safetensors", metadata=told)
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("count", "way"), [(2, "one-way with a lane"), (2, "two-way"), (3, "one-way with a lane"), (3, "nothing")]
)
def test_several_processes_are_one(count: int, way: str, tmp_path: Path) -> None:
    words = [[sys.executable, __file__, str(rank), str(count), str(tmp_path), way] for rank in range(count)]
    workers = [subprocess.Popen(each, stderr=subprocess.PIPE, text=True) for each in words]
    told = [worker.communicate()[1] for worker in workers]
    # Not their exit codes: now and then one of gloo's threads aborts a process that has done all and ends.
    assert all((tmp_path / f"{rank}.safetensors").is_file() for rank in range(count)), told
    shown = [place for rank in range(count) for place in (rank * 6 // count, rank * 6 // count + 1)]
    model = made(way, dropout=0.0)
    whole = Batch(QUERIES, [*DOCUMENTS, *NEGATIVES], shown)
    backward(model, whole, partial(alone, model, count), chunk_tokens=10_000, seed=0)
    for rank in range(count):
        with safe_open(tmp_path / f"{rank}.safetensors", framework="pt") as opened:
            said = opened.metadata()
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        assert float(said["far"]) < 1e-9 and int(said["chunks"]) >= 2
        assert difference(found, gradients(model)) < 1e-9


def alone(model: TwoStage, count: int, queries: Tensor, documents: Tensor, shown: Tensor | None) -> Tensor:
    """The loss of one process that has all; its teacher knows of each query what the one of its share does."""
    rows = 6 // count
    known = torch.linspace(0, 1, rows * 2 * rows, dtype=queries.dtype).view(rows, -1)
    teacher = torch.full((6, 12), -torch.inf, dtype=queries.dtype)
    for rank in range(count):
        mine = slice(rank * rows, (rank + 1) * rows)
        teacher[mine, mine] = known[:, :rows]
        teacher[mine, 6 + rank * rows : 6 + (rank + 1) * rows] = known[:, rows:]
    return LOSS(Views(queries, documents, teacher=teacher, correct=lane_of(model, shown)))


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
