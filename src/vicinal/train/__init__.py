"""Training: pairs in, a model's folder out. The loop reads from top to bottom in `train`.

    run.py          what a run is: a tree of records
    student.py      the start model as a two-stage encoder, and back into a folder
    feed.py         step numbers -> batches
    checkpoint.py   where a run stands, whole or absent
    card.py         the model's card and its plots

MODEL/ is what `vicinal.load` reads (model.safetensors, config.json, tokenizer.json and its settings), with README.md,
metrics.jsonl and plots beside it; checkpoints/ has the last step, to go on from, and the best model by evaluation.

>>> import tempfile
>>> from ..pairs import Pairs
>>> from ..recipes import tiny_cpu
>>> rows = [{"query": f"what is clause {n}", "document": f"clause {n} says {n * n}", "domain": "d"} for n in range(64)]
>>> with tempfile.TemporaryDirectory() as folder:
...     told = train(Pairs.read(rows), Path(folder) / "model", tiny_cpu().changed({"steps": "2", "meeting.pairs": "8"}))
>>> told["steps"], told["tokens"] > 0
(2, True)
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from .. import __version__, files
from ..batches.plan import Plan
from ..batches.surrogate import Vectors, surrogate_of
from ..chunked import average_gradients, backward
from ..encoder import Encoder, load
from ..encoder.contextual import TwoStage
from ..errors import InputError
from ..evaluation import MAX_DOCUMENT_TOKENS, MAX_QUERY_TOKENS, NULL, OWN, Collection, Shown, evaluate, nDCG
from ..losses import KL, Contrastive, Loss, Matryoshka, Sum, Views, across
from ..losses.gather import world
from ..pairs import Pairs
from ..progress import Progress, silent
from . import card, checkpoint
from .feed import Feed, Ready
from .run import Aim, Run
from .student import save, student

METRICS, PLAN = "metrics.jsonl", "plan.safetensors"
Tell = Callable[[Mapping[str, Any]], None]


def train(
    pairs: Pairs,
    target: Path,
    run: Run,
    *,
    collections: Sequence[Collection] = (),
    resume: bool = False,
    progress: Progress = silent,
    tell: Tell = lambda record: None,
) -> dict[str, Any]:
    """Train a model into the folder `target`, and return what was reached.

    `collections` are those that the best checkpoint is chosen by; `tell` hears of every step. A run that was killed
    goes on with `resume`, to the same weights; one that is interrupted loses no step that it had done.
    """
    start = load(
        run.model, precision="fp32", max_query_tokens=run.max_query_tokens, max_document_tokens=run.max_document_tokens
    )
    torch.manual_seed(run.seed)  # what the start model lacks is drawn
    model = student(run).to(_device()).train()
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    optimiser = torch.optim.AdamW(
        [
            {"params": [w for w in weights.values() if w.ndim > 1], "weight_decay": run.optimiser.weight_decay},
            {"params": [w for w in weights.values() if w.ndim < 2], "weight_decay": 0.0},
        ],
        lr=run.optimiser.learning_rate,
    )
    averaged = {name: w.detach().clone() for name, w in weights.items()} if run.optimiser.averaging else {}
    done, batches = 0, run.optimiser.accumulate
    seen = dict[str, Any](tokens=0, seconds=0.0, best=None)
    pending: dict[str, Any] | None = None  # the record of a step that was done, and not yet measured and written

    with ExitStack() as stack:
        stands = stack.enter_context(_alone_in(target, run, pairs, resume))
        plan, vectors = planned(pairs, run, target, progress)
        if stands is not None:
            done, kept, state = checkpoint.load(stands, model, optimiser)
            averaged = {name: average.to(weights[name].device) for name, average in kept.items()}
            seen, pending = state["seen"], state["pending"]
        _keep_metrics(target / METRICS, done - (pending is not None))
        if run.compiled:
            model.second.compile()
        loss_of, autocast = loss_by(run.aim), _autocast(run)
        is_first = world()[1] == 0
        metrics = stack.enter_context((target / METRICS).open("a", encoding="utf-8")) if is_first else None
        board = stack.enter_context(_board(target, run)) if is_first else None
        advance = stack.enter_context(progress("training", run.steps - done))

        def save_state() -> None:
            state = {"run": run.to_dict(), "pairs": pairs.fingerprint, "seen": seen, "pending": pending}
            if is_first:
                checkpoint.save(target / "checkpoints", done, model, optimiser, averaged, state)

        def finish(record: dict[str, Any]) -> None:
            """Measure, write down and keep what the last step has come to."""
            nonlocal pending
            is_last = done == run.steps
            if collections and (done % run.evaluate_every == 0 or is_last):
                record["retrieval"] = _retrieval(model, averaged, run, target, collections, seen, done)
            with uninterrupted():
                if metrics is not None:
                    metrics.write(json.dumps(record, sort_keys=True) + "\n")
                    metrics.flush()
                pending = None
            if board is not None:
                _write_board(board, record)
            tell(record)
            if done % run.save_every == 0 or is_last:
                save_state()

        def on_exit(kind: type[BaseException] | None, *_: object) -> None:
            if kind is not None and issubclass(kind, KeyboardInterrupt) and done:
                with uninterrupted():
                    save_state()

        stack.push(on_exit)
        if pending is not None:
            finish(pending)
        feed = Feed(pairs, plan, run, start, vectors).batches(done * batches)
        for step in range(done, run.steps):
            began = time.perf_counter()
            rate = learning_rate(run, step)
            losses, tokens = [], 0
            for part in range(batches):
                ready = next(feed)
                loss = backward(
                    model,
                    ready.batch,
                    partial(objective, model, loss_of, ready),
                    chunk_tokens=run.chunk_tokens,
                    seed=(run.seed * 1_000_003 + step) * batches + part,
                    weight=1 / batches,
                    autocast=autocast,
                )
                losses.append(float(loss))
                tokens += ready.tokens
            average_gradients(model)
            length = float(torch.nn.utils.clip_grad_norm_(weights.values(), run.optimiser.clip))
            if not math.isfinite(length):
                raise InputError(
                    f"the gradient is no number at step {step} (loss {losses}): lower learning_rate, raise temperature"
                )
            for group in optimiser.param_groups:
                group["lr"] = rate
            with uninterrupted():
                optimiser.step()
                for name, average in averaged.items():
                    average.lerp_(weights[name].detach(), 1 - run.optimiser.averaging)
                took = time.perf_counter() - began
                seen["tokens"], seen["seconds"] = seen["tokens"] + tokens, seen["seconds"] + took
                done = step + 1
                pending = {
                    "step": done,
                    "epoch": ready.step.epoch,
                    "domain": ready.step.domain,
                    "loss": sum(losses) / batches,
                    "gradient": length,
                    "learning_rate": rate,
                    "tokens_per_second": round(tokens / took),
                }
            optimiser.zero_grad()
            advance(1)
            finish(pending)
        return _finished(model, averaged, pairs, plan, target, run, seen)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C, or SIGTERM, wait until what is inside has been done as a whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, Any]] = []
    held = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
    for kind in held:
        signal.signal(kind, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        for kind, handler in held.items():
            signal.signal(kind, handler)
        for number, frame in waiting[:1]:
            handler = held[signal.Signals(number)]
            if callable(handler):
                handler(number, frame)
            elif handler is signal.SIG_DFL:
                raise KeyboardInterrupt


@contextmanager
def joined() -> Iterator[None]:
    """Meet the other processes that torchrun has started, where it has: RANK and WORLD_SIZE say so."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        distributed.barrier()  # nobody leaves while another still speaks
    finally:
        distributed.destroy_process_group()


def objective(
    model: TwoStage, loss: Loss, ready: Ready, queries: Tensor, documents: Tensor, shown: Tensor | None
) -> Tensor:
    """The loss of one batch's raw vectors, in the lane of the documents that are shown."""

    def correct(dim: int) -> Tensor | None:
        if model.lane is None or shown is None:
            return None
        return model.lane.matrix(torch.nn.functional.normalize(shown[:, :dim], dim=1))

    device = queries.device
    views = Views(
        queries,
        documents,
        allowed=ready.masks.allowed.to(device),
        allowed_queries=ready.masks.allowed_queries.to(device),
        allowed_documents=ready.masks.allowed_documents.to(device),
        teacher=None if ready.teacher is None else ready.teacher.to(device),
        correct=correct,
    )
    return loss(across(views))


def loss_by(aim: Aim) -> Loss:
    """The loss that a run asks for."""
    loss: Loss = Contrastive(aim.temperature, both=aim.both, same_side=aim.same_side)
    if aim.kl:
        kl = KL(temperature=aim.kl_temperature, teacher_temperature=aim.teacher_temperature)
        loss = Sum(((1.0, loss), (aim.kl, kl)))
    return Matryoshka(loss, aim.sizes) if aim.sizes else loss


def learning_rate(run: Run, step: int) -> float:
    """Up in a straight line over the warm-up, then down to nothing behind the last step.

    >>> run = Run(steps=10).changed({"learning_rate": "1.0", "warmup": "0.2"})
    >>> [round(learning_rate(run, step), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    warm = round(run.optimiser.warmup * run.steps)
    share = (step + 1) / warm if step < warm else (run.steps - step) / max(1, run.steps - warm)
    return run.optimiser.learning_rate * share


def planned(pairs: Pairs, run: Run, target: Path, progress: Progress) -> tuple[Plan, Vectors | None]:
    """The plan of a run's batches, taken from `target` where it is there, and the vectors that it was made from."""
    meeting = run.meeting
    vectors = None
    if meeting.clustered or meeting.margin is not None or run.aim.kl:
        vectors = Vectors.of(pairs, surrogate_of(meeting.surrogate, load), progress=progress)
    path = target / PLAN
    if path.exists():
        return Plan.load(path, pairs), vectors
    plan = Plan.of(
        pairs,
        vectors if meeting.clustered else None,
        size=meeting.pairs,
        cluster_size=meeting.cluster_pairs,
        order=meeting.order if meeting.clustered else "random",
        progress=progress,
    )
    if not len(plan):
        raise InputError(
            f"no domain has {meeting.pairs} pairs, which is one batch ({len(pairs)} pairs in {len(pairs.domains)} "
            "domains): give more pairs, or --set meeting.pairs=N"
        )
    if world()[1] == 0:
        plan.save(path)
    return plan, vectors


def reached(
    encoder: Encoder, collections: Sequence[Collection], cache: Path, progress: Progress = silent
) -> dict[str, Any]:
    """nDCG@10 in own context, without, and in a wrong one: that of each other collection; means over collections."""
    found: dict[str, Any] = {}
    for collection in collections:
        others = [Shown(f"wrong: {other.name}", other.corpus) for other in collections if other is not collection]
        contexts = [OWN, *([NULL] if encoder.has_null else []), *others]
        result = evaluate(
            collection, encoder, contexts=contexts, measures=[nDCG @ 10], cache=cache, progress=progress
        ).contexts
        values = {name: each.modes["dense"].measures["nDCG@10"] for name, each in result.items()}
        wrong = [value for name, value in values.items() if name.startswith("wrong")]
        told = {name: value for name, value in values.items() if not name.startswith("wrong")}
        found[collection.name] = told | ({"wrong": sum(wrong) / len(wrong)} if wrong else {})
    kinds = found[collections[0].name]
    means = {kind: sum(each[kind] for each in found.values()) / len(found) for kind in kinds}
    return {"mean": means, "collections": found}


def _retrieval(
    model: TwoStage,
    averaged: Mapping[str, Tensor],
    run: Run,
    target: Path,
    collections: Sequence[Collection],
    seen: dict[str, Any],
    step: int,
) -> dict[str, Any] | None:
    """Measure the model as it stands; where it is the best so far, keep it in checkpoints/best."""
    found = None
    if world()[1] == 0:
        partial_folder = target / "checkpoints" / ".measured.partial"
        files.remove(partial_folder)
        save(model, averaged, partial_folder, run)
        most = load(partial_folder)
        encoder = load(
            partial_folder,
            max_document_tokens=min(MAX_DOCUMENT_TOKENS, most.max_document_tokens),
            max_query_tokens=min(MAX_QUERY_TOKENS, most.max_query_tokens),
        )
        found = reached(encoder, collections, partial_folder / "cache")
        files.remove(partial_folder / "cache")
        best = target / "checkpoints" / "best"
        if seen["best"] is None or found["mean"]["own"] > seen["best"]["own"]:
            with uninterrupted():
                files.remove(best)
                files.publish(partial_folder, best)
                seen["best"] = {"step": step, "own": found["mean"]["own"]}
        files.remove(partial_folder)
    _meet()
    return found


def _finished(
    model: TwoStage,
    averaged: Mapping[str, Tensor],
    pairs: Pairs,
    plan: Plan,
    target: Path,
    run: Run,
    seen: Mapping[str, Any],
) -> dict[str, Any]:
    """The model's folder, of the best weights where they were measured, else of the last; its card and its plots."""
    _meet()
    records = _records(target / METRICS)
    if not records:
        raise InputError(f"{target / METRICS} holds no step of this run: restore it, or train into another folder")
    told = {
        "model": str(target),
        "steps": run.steps,
        "tokens": seen["tokens"],
        "seconds": round(seen["seconds"], 1),
        "loss": {"first": records[0]["loss"], "last": records[-1]["loss"]},
        "best": seen["best"],
        "run": run.to_dict(),
        "pairs": {"fingerprint": pairs.fingerprint, "rows": len(pairs), "domains": sorted(pairs.domains)},
        "batches": plan.describe(),
        "vicinal": __version__,
    }
    if world()[1] == 0:
        best = target / "checkpoints" / "best"
        if seen["best"] is not None and best.is_dir():
            for path in sorted(best.iterdir()):
                with files.writing(target / path.name) as partial_file:
                    partial_file.write_bytes(path.read_bytes())
        else:
            save(model, averaged, target, run)
        card.write(target, told, records)
    return told


@contextmanager
def _alone_in(target: Path, run: Run, pairs: Pairs, resume: bool) -> Iterator[Path | None]:
    """Hold the folder of a run, for all of its processes; the checkpoint that it goes on from, or None."""
    stands = _checked(target, run, pairs, resume)
    _meet()  # nobody writes before everyone has looked
    is_first = world()[1] == 0
    if is_first:
        target.parent.mkdir(parents=True, exist_ok=True)
    with files.alone(target) if is_first else nullcontext():
        if is_first:
            target.mkdir(exist_ok=True)
            for name in (
                (PLAN, METRICS) if stands is None else ()
            ):  # of a run that was killed before its first checkpoint
                files.remove(target / name)
        _meet()
        yield stands


def _meet() -> None:
    """Wait for the other processes."""
    if distributed.is_initialized():
        distributed.barrier()


def _checked(target: Path, run: Run, pairs: Pairs, resume: bool) -> Path | None:
    """Refuse at the door what would overwrite another's work, or go on with something else; where a run stands."""
    stands = checkpoint.latest(target / "checkpoints")
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file: give the name of a folder to train into")
    if not resume:
        if target.exists() and any(target.iterdir()):
            raise InputError(f"{target} is not empty: go on with --resume, or train into another folder")
        return None
    if stands is None:
        return None  # killed before its first checkpoint: it begins anew
    state = checkpoint.state_of(stands)
    asked = run.to_dict()
    different = [name for name in asked if state["run"].get(name) != asked[name]]
    if different:
        raise InputError(
            f"{target} is of a run with another {' and '.join(different)}: give it the same, or another folder"
        )
    if state["pairs"] != pairs.fingerprint:
        raise InputError(f"{target} was trained on other pairs: give it the same, or train into another folder")
    return stands


def _keep_metrics(path: Path, steps: int) -> None:
    """Of a run that goes on from an earlier step, the records of those that it will do again are dropped."""
    if world()[1] == 0 and path.exists():
        kept = [record for record in _records(path) if record["step"] <= steps]
        files.write_text(path, "".join(json.dumps(record, sort_keys=True) + "\n" for record in kept))


def _records(path: Path) -> list[dict[str, Any]]:
    """The steps that were written down, the last line of a killed run left out where it is torn."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def _device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", world()[1] % torch.cuda.device_count())
    return torch.device("cpu")


def _autocast(run: Run) -> Callable[[], Any]:
    if run.precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(_device().type, torch.bfloat16)


def _board(target: Path, run: Run) -> Any:
    """TensorBoard's writer, where it is asked for."""
    if not run.tensorboard:
        return nullcontext()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(target / "tensorboard"))


def _write_board(board: Any, record: Mapping[str, Any]) -> None:
    for name in ("loss", "gradient", "learning_rate", "tokens_per_second"):
        board.add_scalar(name, record[name], record["step"])
    for kind, value in ((record.get("retrieval") or {}).get("mean") or {}).items():
        board.add_scalar(f"nDCG@10/{kind}", value, record["step"])
