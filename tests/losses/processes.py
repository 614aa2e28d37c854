"""One batch over several processes: `python processes.py RANK PROCESSES FOLDER` is one of them (test_gather.py).

The same parameters everywhere: raw vectors are inputs @ theta, and the context's map is made of `context`. `whole` is
the batch on one process, `part` a process's share of it; both give losses and gradients by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed

from vicinal.errors import InputError
from vicinal.losses import KL, Contrastive, Loss, MarginMSE, Matryoshka, Regression, Sum, Views, across, gathered

N, M, INPUTS, D, E = 3, 5, 4, 6, 5  # per process: queries, documents (two hard negatives)
HEAD = torch.nn.Linear(D, E).double()

CASES: dict[str, Loss] = {
    "contrastive": Contrastive(0.2),
    "both": Contrastive(0.2, both=True),
    "both, same side": Contrastive(0.2, both=True, same_side=True),
    "same side, no masks": Contrastive(0.2, both=True, same_side=True),
    "KL": KL(0.2, 0.3),
    "KL, a teacher of each process's own": KL(0.2, 0.3),
    "margin": MarginMSE(2.0),
    "regression": Regression(HEAD),
    "Matryoshka of a sum": Matryoshka(
        Sum(((1.0, Contrastive(0.2, both=True)), (0.5, KL(0.2, 0.3)), (0.3, Regression(HEAD)))), (2, D)
    ),
}


class Batch:
    """The whole batch's inputs and what is known of it; columns in the order of processes."""

    def __init__(self, case: str, processes: int) -> None:
        generator = torch.Generator().manual_seed(processes)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        def mask(rows: int, columns: int) -> Tensor | None:
            kept = torch.rand(rows, columns, generator=generator) < 0.6
            return None if case == "same side, no masks" else kept

        n, m = processes * N, processes * M
        self.case, self.processes = case, processes
        self.queries, self.documents = drawn(n, INPUTS), drawn(m, INPUTS)
        self.allowed, self.allowed_queries, self.allowed_documents = mask(n, m), mask(n, n), mask(n, m)
        self.teacher = drawn(n, m).masked_fill(torch.rand(n, m, generator=generator) < 0.3, -torch.inf)
        if case == "KL, a teacher of each process's own":
            elsewhere = torch.arange(n)[:, None] // N != torch.arange(m) // M
            self.teacher = self.teacher.masked_fill(elsewhere, -torch.inf)
        self.targets = drawn(n, E), drawn(m, E)
        self.parameters = {
            "theta": drawn(INPUTS, D),
            "context": 0.2 * drawn(D, D),
            "weight": drawn(E, D),
            "bias": drawn(E),
        }

    def measured(self, views: Callable[[Tensor, Callable[[int], Tensor]], Views]) -> dict[str, Tensor]:
        """The loss of what `views` makes of theta and a map, and its gradients."""
        given = {name: value.clone().requires_grad_() for name, value in self.parameters.items()}
        HEAD.weight.data, HEAD.bias.data = given["weight"].data, given["bias"].data
        HEAD.weight.grad = HEAD.bias.grad = None

        def correct(size: int) -> Tensor:
            return torch.eye(size, dtype=torch.float64) + given["context"][:size, :size]

        loss = CASES[self.case](views(given["theta"], correct))
        loss.backward()
        found = {"loss": loss.detach(), "theta": given["theta"].grad, "context": given["context"].grad}
        if HEAD.weight.grad is not None and HEAD.bias.grad is not None:
            found |= {"weight": HEAD.weight.grad.clone(), "bias": HEAD.bias.grad.clone()}
        return {name: value for name, value in found.items() if value is not None}

    def whole(self) -> dict[str, Tensor]:
        """On one process: all queries' own documents first, then all hard negatives."""
        places = torch.arange(self.processes * M).view(self.processes, M)
        order = torch.cat([places[:, :N].flatten(), places[:, N:].flatten()])

        def columns(table: Tensor | None) -> Tensor | None:
            return None if table is None else table[:, order]

        return self.measured(
            lambda theta, correct: Views(
                self.queries @ theta,
                self.documents[order] @ theta,
                columns(self.allowed),
                self.allowed_queries,
                columns(self.allowed_documents),
                columns(self.teacher),
                (self.targets[0], self.targets[1][order]),
                correct,
            )
        )

    def part(self, rank: int) -> dict[str, Tensor]:
        """On one process of several: its own queries and documents, and its rows of what is known."""
        queries, documents = slice(rank * N, (rank + 1) * N), slice(rank * M, (rank + 1) * M)

        def rows(table: Tensor | None) -> Tensor | None:
            return None if table is None else table[queries]

        own = "own" in self.case
        return self.measured(
            lambda theta, correct: across(
                Views(
                    self.queries[queries] @ theta,
                    self.documents[documents] @ theta,
                    rows(self.allowed),
                    rows(self.allowed_queries),
                    rows(self.allowed_documents),
                    self.teacher[queries, documents] if own else self.teacher[queries],
                    (self.targets[0][queries], self.targets[1][documents]),
                    correct,
                )
            )
        )


def refusals(rank: int, processes: int) -> list[str]:
    """What each process is told where batches or masks do not fit; all must be told, or some would wait for ever."""
    everything = torch.ones(N, processes * M, dtype=torch.bool)
    unequal = M + (rank == 1)
    wrong = [
        lambda: across(Views(torch.ones(N, D), torch.ones(unequal, D))),
        lambda: across(Views(torch.ones(N, D), torch.ones(M, D), everything if rank else None)),
        lambda: across(Views(torch.ones(N, D), torch.ones(M, D), everything[:, :M])),
        lambda: across(across(Views(torch.ones(N, D), torch.ones(M, D), everything))),
    ]
    told = []
    for attempt in wrong:
        try:
            attempt()
            told.append("nothing")
        except InputError as error:
            told.append(str(error))
    return told


def layout(rank: int) -> dict[str, Tensor]:
    """Which rows `across` and `gathered` put where: a row is (rank, 0 query or 1 document, number)."""
    queries = torch.tensor([[float(rank), 0, i] for i in range(N)])
    documents = torch.tensor([[float(rank), 1, j] for j in range(M)])
    views = across(Views(queries, documents))
    assert views.others is not None
    return {
        "queries": views.queries,
        "documents": views.documents,
        "others": views.others,
        "gathered": gathered(queries),
    }


def shared_gradient(rank: int, processes: int) -> dict[str, Tensor]:
    """Gradients of a sum of what was gathered and what was not: both get the same tensor, one of them sums it up."""
    ours, beside = torch.zeros(N, D, requires_grad=True), torch.zeros(processes * N, D, requires_grad=True)
    total = 1 * beside  # before the other: its gradient is asked for after it
    ((gathered(ours) + total) * (rank + 1.0)).sum().backward()
    assert ours.grad is not None and beside.grad is not None
    return {"ours": ours.grad, "beside": beside.grad}


def main(rank: int, processes: int, folder: Path) -> None:
    torch.set_num_threads(1)
    rendezvous = (folder / "rendezvous").as_uri()
    distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=processes)
    found = {f"layout/{name}": value.contiguous() for name, value in layout(rank).items()}
    found |= {f"shared/{name}": value for name, value in shared_gradient(rank, processes).items()}
    for case in CASES:
        for name, value in Batch(case, processes).part(rank).items():
            distributed.all_reduce(value)  # what data parallel training does: the mean over processes
            found[f"{case}/{name}"] = value / processes
    (folder / f"told-{rank}.json").write_text(json.dumps(refusals(rank, processes)), encoding="utf-8")
    save_file(found, folder / f"found-{rank}.safetensors")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
