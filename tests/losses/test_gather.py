"""Several processes: the mean of their losses, and of their gradients, is that of one process with the whole batch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vicinal.errors import InputError
from vicinal.losses import Views, across, gathered
from vicinal.losses.gather import own_first, world

WORKER = Path(__file__).with_name("processes.py")


def worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("processes_of_tests", WORKER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULE = worker()


@dataclass(frozen=True)
class Run:
    """What the processes of one run found and were told, by rank."""

    processes: int
    found: list[dict[str, Tensor]]
    told: list[list[str]]


@pytest.fixture(scope="module", params=[2, 3], ids=lambda count: f"{count} processes")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    processes: int = request.param
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-W", "error", str(WORKER)]
    started = [
        subprocess.Popen([*command, str(rank), str(processes), str(folder)], stderr=subprocess.PIPE, text=True)
        for rank in range(processes)
    ]
    try:
        for one in started:
            _, errors = one.communicate(timeout=180)
            assert one.returncode == 0, errors
    finally:
        for one in started:
            one.kill()
            one.wait()
    ranks = range(processes)
    found = [load_file(folder / f"found-{rank}.safetensors") for rank in ranks]
    return Run(processes, found, [json.loads((folder / f"told-{rank}.json").read_text("utf-8")) for rank in ranks])


@pytest.mark.parametrize("case", MODULE.CASES)
def test_the_mean_over_processes_is_the_loss_of_the_whole_batch_and_so_is_its_gradient(run: Run, case: str) -> None:
    whole = MODULE.Batch(case, run.processes).whole()
    assert whole["loss"] > 0 and all(value.abs().sum() > 0 for value in whole.values())
    for found in run.found:
        mine = {name.removeprefix(f"{case}/"): value for name, value in found.items() if name.startswith(f"{case}/")}
        torch.testing.assert_close(mine, whole, rtol=0, atol=1e-9)


def test_a_process_finds_its_own_first_and_then_those_of_the_next_around(run: Run) -> None:
    for rank, found in enumerate(run.found):
        ranks = [(rank + step) % run.processes for step in range(run.processes)]
        queries = [[float(r), 0, i] for r in ranks for i in range(MODULE.N)]
        documents = [[float(r), 1, j] for r in ranks for j in range(MODULE.M)]
        assert found["layout/queries"].tolist() == queries[: MODULE.N]
        assert found["layout/others"].tolist() == queries[MODULE.N :]
        assert found["layout/documents"].tolist() == documents
        assert found["layout/gathered"].tolist() == sorted(queries)


def test_a_gradient_that_another_part_of_the_graph_shares_is_not_summed_for_it_too(run: Run) -> None:
    for rank, found in enumerate(run.found):
        assert (found["shared/beside"] == rank + 1).all()
        assert (found["shared/ours"] == sum(range(run.processes + 1))).all()


def test_every_process_is_told_what_does_not_fit_and_none_waits_for_ever(run: Run) -> None:
    expected = ("batches differ", "a mask to all or none", "allowed has 5 columns", "once")
    for told in run.told:
        assert all(words in sentence for words, sentence in zip(expected, told, strict=True)), told


def test_alone_nothing_is_gathered() -> None:
    views = Views(torch.eye(3), torch.eye(3))
    assert world() == (1, 0)
    assert across(views) is views
    assert gathered(views.queries) is views.queries


def test_a_mask_of_one_process_only_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="allowed has 3 columns, and all processes together have 6"):
        own_first("allowed", torch.ones(2, 3, dtype=torch.bool), 6, 0)
