"""The loop: it learns, it can be killed and gone on with, and what it writes is a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vicinal
from vicinal import files
from vicinal.documents import Document
from vicinal.encoder import own
from vicinal.errors import IndexRefused, InputError
from vicinal.evaluation import Collection
from vicinal.pairs import Pairs
from vicinal.progress import silent
from vicinal.recipes import RECIPES, recipe, tiny_cpu
from vicinal.train import checkpoint, learning_rate, planned, train
from vicinal.train.feed import Feed, in_ranks
from vicinal.train.run import Run
from vicinal.train.student import student

WORDS = ("notice", "fees", "data", "law", "rent", "cats", "stars", "night", "service", "party")
ROWS = [
    {
        "query": f"the {WORDS[n % 10]} of {WORDS[n // 10 % 10]}",
        "document": f"{WORDS[n // 10 % 10]} and {WORDS[n % 10]}: {'both ' * (n % 5)}are in clause {n % 7}",
        "domain": "odd" if n % 2 else "even",
        "negatives": [f"{WORDS[(n + 3) % 10]} is in clause {n % 7}"],
    }
    for n in range(100)
]
SHORT = {"steps": "6", "save_every": "2", "evaluate_every": "3", "meeting.pairs": "8", "shown": "4"}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(**other: str) -> Run:
    return tiny_cpu().changed(SHORT | {name.replace("__", "."): value for name, value in other.items()})


def collections() -> list[Collection]:
    """Two tiny ones, so that each has the other for a wrong context."""
    found = []
    for name in ("even", "odd"):
        rows = [row for row in ROWS if row["domain"] == name][:20]
        documents = [Document(f"d{n}", text=str(row["document"])) for n, row in enumerate(rows)]
        queries = {f"q{n}": str(row["query"]) for n, row in enumerate(rows)}
        judgments = {f"q{n}": {f"d{n}": 1} for n in range(len(rows))}
        found.append(Collection(name, vicinal.Corpus.read(documents), queries, judgments))
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def alike(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"encoder.attention": "two-way", "averaging": "0.5", "accumulate": "2"},
        {"encoder.attention": "none", "lane": "false", "first_layers": "none", "clustered": "false", "margin": "none"},
        {"kl": "1.0", "sizes": "16,64", "alpha": "0.5", "negatives": "1", "same_side": "true", "both": "true"},
    ],
)
def test_what_is_written_is_a_model_and_the_loss_falls(tmp_path: Path, settings: dict[str, str]) -> None:
    asked = tiny_cpu().changed(SHORT | {"steps": "20", "save_every": "10"} | settings)
    seen: list[float] = []
    told = train(Pairs.read(ROWS), tmp_path / "m", asked, tell=lambda record: seen.append(record["loss"]))
    assert len(seen) == told["steps"] == 20 and sum(seen[-5:]) < 0.95 * sum(seen[:5])
    encoder = vicinal.load(tmp_path / "m", precision="fp32")
    assert encoder.attends == (asked.encoder.attention != "none")
    corpus = vicinal.Corpus.read([{"text": row["document"]} for row in ROWS])
    reader = encoder.with_context(encoder.context(corpus, size=8))
    assert reader.encode_queries(["the law of rent"]).dense.shape == (1, 64)
    assert Run.from_dict(told["run"]) == asked
    names = {path.name for path in (tmp_path / "m").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "metrics.jsonl", "loss.png"} <= names
    lines = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 21)) and [line["loss"] for line in lines] == seen


def test_the_same_run_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        train(Pairs.read(ROWS), tmp_path / name, run(seed=seed))
    assert alike(tmp_path / "a", tmp_path / "b") and not alike(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize("settings", [{}, {"averaging": "0.9", "accumulate": "2", "encoder__attention": "two-way"}])
def test_whenever_it_is_stopped_it_goes_on_to_the_same_weights(tmp_path: Path, settings: dict[str, str]) -> None:
    class Stopped(Exception):
        pass

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(Pairs.read(ROWS), whole, run(**settings), collections=collections())
    for last in (1, 3, 4, 5):

        def tell(record: Any, last: int = last) -> None:
            if record["step"] == last:
                raise Stopped

        with pytest.raises(Stopped):
            train(
                Pairs.read(ROWS),
                stopped,
                run(**settings),
                collections=collections(),
                resume=stopped.exists(),
                tell=tell,
            )
    told = train(Pairs.read(ROWS), stopped, run(**settings), collections=collections(), resume=True)
    assert alike(whole, stopped)
    records = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
        for folder in (whole, stopped)
    ]
    for lines in records:
        for line in lines:
            line.pop("tokens_per_second")
    assert records[0] == records[1]
    assert told["best"] is not None and (stopped / "checkpoints" / "best" / "model.safetensors").is_file()
    assert (
        len(list((stopped / "checkpoints").glob("step-000006*")))
        == 1
        == len(list((stopped / "checkpoints").glob("step-*")))
    )


@pytest.mark.parametrize("where", ["between steps", "while it is measured", "while it learns"])
def test_an_interrupted_run_loses_no_step_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(Pairs.read(ROWS), whole, run(), collections=collections())

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def tell(record: Any) -> None:
        if record["step"] == 3 and where == "between steps":
            raise KeyboardInterrupt
        if record["step"] == 3 and where == "while it learns":
            monkeypatch.setattr("vicinal.train.objective", interrupted)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if where == "while it is measured":
            patch.setattr("vicinal.train._retrieval", interrupted)
        train(Pairs.read(ROWS), stopped, run(), collections=collections(), tell=tell)
    monkeypatch.undo()
    assert [path.name for path in (stopped / "checkpoints").glob("step-*")] == ["step-000003"]
    seen: list[int] = []
    train(
        Pairs.read(ROWS),
        stopped,
        run(),
        collections=collections(),
        resume=True,
        tell=lambda record: seen.append(record["step"]),
    )
    assert seen == ([3, 4, 5, 6] if where == "while it is measured" else [4, 5, 6]) and alike(whole, stopped)
    texts = [(folder / "metrics.jsonl").read_text("utf-8") for folder in (whole, stopped)]
    lines = [[json.loads(line) | {"tokens_per_second": 0} for line in text.splitlines()] for text in texts]
    assert lines[0] == lines[1]


def test_an_interruption_while_averages_are_saved_leaves_the_weights_that_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    asked = run(averaging="0.9")
    train(Pairs.read(ROWS), whole, asked, collections=collections())
    saved = own.save

    def interrupted(*given: Any, **more: Any) -> None:
        saved(*given, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(own, "save", interrupted)
        train(Pairs.read(ROWS), stopped, asked, collections=collections())
    train(Pairs.read(ROWS), stopped, asked, collections=collections(), resume=True)
    assert alike(whole, stopped)


def test_a_checkpoint_of_the_same_step_takes_no_place_before_it_is_whole(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimiser = torch.optim.AdamW(model.parameters())
    for note in ("first", "second"):
        checkpoint.save(tmp_path, 3, model, optimiser, {}, {"note": note})
    found = checkpoint.latest(tmp_path)
    assert found is not None and found.name == "step-000003-2" and checkpoint.state_of(found)["note"] == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003-2"]


def test_two_runs_into_one_folder_are_refused(tmp_path: Path) -> None:
    with files.alone(tmp_path / "m"), pytest.raises(IndexRefused, match="another process is writing"):
        train(Pairs.read(ROWS), tmp_path / "m", run())


def test_a_run_that_ended_is_not_run_again(tmp_path: Path) -> None:
    train(Pairs.read(ROWS), tmp_path / "m", run())
    before = (tmp_path / "m" / "metrics.jsonl").read_bytes()
    train(Pairs.read(ROWS), tmp_path / "m", run(), resume=True)
    assert (tmp_path / "m" / "metrics.jsonl").read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_killed_at_any_step_it_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    program = (
        "import sys, torch; torch.set_num_threads(1); sys.path.insert(0, sys.argv[3]);"
        "from test_train import ROWS, run; from vicinal.train import train; from vicinal.pairs import Pairs;"
        "from pathlib import Path;"
        "train(Pairs.read(ROWS), Path(sys.argv[1]), run(steps='12'), resume=sys.argv[2] == 'resume',"
        " tell=lambda record: print(record['step'], flush=True))"
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(Pairs.read(ROWS), whole, run(steps="12"))
    for step in (3, 8):
        mode = "resume" if killed.exists() else "begin"
        words = [sys.executable, "-c", program, str(killed), mode, str(Path(__file__).parent)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) == step:
                    process.send_signal(signal.SIGKILL)
                    break
            else:
                pytest.fail("it ended before it could be killed")
        time.sleep(0.1)
    train(Pairs.read(ROWS), killed, run(steps="12"), resume=True)
    assert alike(whole, killed)


def test_the_best_step_by_the_collections_is_the_model(tmp_path: Path) -> None:
    told = train(Pairs.read(ROWS), tmp_path / "m", run(learning_rate="0.3", steps="9"), collections=collections())
    lines = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text("utf-8").splitlines()]
    measured = {line["step"]: line["retrieval"]["mean"] for line in lines if "retrieval" in line}
    assert list(measured) == [3, 6, 9] and set(measured[3]) == {"own", "null", "wrong"}
    best = max(measured, key=lambda step: (measured[step]["own"], -step))
    assert told["best"] == {"step": best, "own": measured[best]["own"]}
    assert alike(tmp_path / "m", tmp_path / "m" / "checkpoints" / "best")
    assert f"| own | {100 * told['best']['own']:.1f} |" in (tmp_path / "m" / "README.md").read_text("utf-8")
    assert (tmp_path / "m" / "retrieval.png").read_bytes().startswith(b"\x89PNG")


def test_what_would_overwrite_or_mix_is_refused(tmp_path: Path) -> None:
    pairs, folder = Pairs.read(ROWS), tmp_path / "m"
    train(pairs, folder, run())
    with pytest.raises(InputError, match="not empty: go on with --resume"):
        train(pairs, folder, run())
    with pytest.raises(InputError, match="another optimiser"):
        train(pairs, folder, run(learning_rate="1"), resume=True)
    with pytest.raises(InputError, match="other pairs"):
        train(Pairs.read(ROWS[1:]), folder, run(), resume=True)
    with pytest.raises(InputError, match="no domain has 64 pairs"):
        train(pairs, tmp_path / "n", run(meeting__pairs="64"))
    (tmp_path / "file").write_text("text", "utf-8")
    with pytest.raises(InputError, match="is a file"):
        train(pairs, tmp_path / "file", run())


def test_a_damaged_checkpoint_is_said_and_nothing_is_begun_anew_in_silence(tmp_path: Path) -> None:
    train(Pairs.read(ROWS), tmp_path / "m", run())
    (path,) = (tmp_path / "m" / "checkpoints").glob("step-*")
    (path / "optimiser.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="cannot be gone on from"):
        train(Pairs.read(ROWS), tmp_path / "m", run(), resume=True)


def test_a_step_that_explodes_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no number at step"):
        train(Pairs.read(ROWS), tmp_path / "m", run(learning_rate="1e6", warmup="0"))


# -- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name: str) -> None:
    asked = recipe(name)
    assert Run.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("learning_rat", "1", "did you mean 'learning_rate'"),
        ("steps", "many", "steps=many was asked for: expected int"),
        ("precision", "int8", "expected fp32 or bf16"),
        ("clustered", "yes", "expected bool"),
        ("steps", "0", "expected at least 1"),
        ("attention", "sideways", "expected one-way or two-way or none"),
        ("pairs.size", "3", "no field 'pairs.size'"),
        ("clip", "inf", "optimiser.clip is inf: expected"),
        ("clip", "-1", "optimiser.clip is -1.0"),
        ("learning_rate", "nan", "learning_rate is nan"),
        ("warmup", "5", "warmup is 5.0: expected 0 to 1"),
        ("negatives", "-1", "negatives is -1: expected 0 or more"),
        ("meeting.pairs", "1", "meeting.pairs is 1: expected 2 or more"),
    ],
)
def test_a_setting_that_is_not_one_is_refused(setting: str, value: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        Run().changed({setting: value})


def test_settings_are_read_by_their_types() -> None:
    changed = Run().changed({"sizes": "64,128", "alpha": "0.5", "margin": "none", "clustered": "False", "seed": "3"})
    assert changed.aim.sizes == (64, 128) and changed.meeting.alpha == 0.5 and changed.meeting.margin is None
    assert changed.meeting.clustered is False and changed.seed == 3


def test_the_rate_rises_falls_and_never_ends_before_the_run() -> None:
    asked = Run(steps=50).changed({"warmup": "0.1", "learning_rate": "2.0"})
    rates = [learning_rate(asked, step) for step in range(50)]
    assert max(rates) == rates[4] == 2.0 and rates[:5] == sorted(rates[:5])
    assert (
        rates[5:] == sorted(rates[5:], reverse=True)
        and len({round(rate, 9) for rate in rates}) == 45
        and min(rates) > 0
    )


# -- the student and its food ---------------------------------------------------------------------------------------


def test_the_student_begins_as_its_start_model() -> None:
    tiny = vicinal.load("tiny", precision="fp32")
    model = student(tiny_cpu().changed({"attention": "none"})).eval()
    texts = ["the law", "rent and fees, data and stars"]
    ids = tiny.tokenizer("query").read(texts).ids
    with torch.no_grad():
        vectors = torch.nn.functional.normalize(model.encode(ids, None), dim=1)
    torch.testing.assert_close(vectors.numpy(), tiny.encode_queries(texts).dense, atol=1e-5, rtol=0)
    one_way = student(tiny_cpu())
    with torch.no_grad():
        again = torch.nn.functional.normalize(one_way.eval().encode(ids, one_way.prepare(None)), dim=1)
    torch.testing.assert_close(again, vectors, atol=1e-5, rtol=0)


def test_batches_can_be_met_from_any_number_on(tmp_path: Path) -> None:
    pairs, asked = Pairs.read(ROWS), run(kl="1.0", negatives="1")
    plan, vectors = planned(pairs, asked, tmp_path, silent)
    feed = Feed(pairs, plan, asked, vicinal.load("tiny"), vectors)
    first = [ready for ready, _ in zip(feed.batches(), range(15), strict=False)]
    later = next(feed.batches(11))
    assert later.batch == first[11].batch and torch.equal(later.masks.allowed, first[11].masks.allowed)
    assert later.teacher is not None and torch.equal(later.teacher, first[11].teacher)
    for ready in first:
        rows = [ROWS_BY_DOMAIN[row] for row in ready.step.rows]
        assert ready.batch.queries == vicinal.load("tiny").tokenizer("query").read([r["query"] for r in rows]).ids
        assert len(ready.batch.documents) == 16 and ready.masks.allowed.shape == (8, 16)
        assert ready.teacher.shape == (8, 16) and (ready.teacher[:, 8:] == -torch.inf).all()
        assert len(set(ready.batch.shown)) == 4 and max(ready.batch.shown) < 8
        same = [[a["query"] == b["query"] or a["document"] == b["document"] for b in rows] for a in rows]
        assert not (ready.masks.allowed[:, :8] & torch.tensor(same) & ~torch.eye(8, dtype=torch.bool)).any()


ROWS_BY_DOMAIN = sorted(ROWS, key=lambda row: str(row["domain"]))  # as Pairs numbers them


def test_columns_stand_in_the_order_of_ranks() -> None:
    assert in_ranks(6, [1, 2, 0, 1, 0, 3], 3).tolist() == [0, 1, 6, 7, 8, 2, 3, 9, 4, 5, 10, 11, 12]
    assert in_ranks(4, [0, 0, 0, 0], 2).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("processes", [2, 4])
def test_each_process_has_its_rows_of_what_one_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    pairs, asked = Pairs.read(ROWS), run(kl="1.0", negatives="1")
    plan, vectors = planned(pairs, asked, tmp_path, silent)
    feed = Feed(pairs, plan, asked, vicinal.load("tiny"), vectors)
    whole, order = next(feed.batches(3)), in_ranks(8, [1] * 8, processes)
    assert whole.teacher is not None
    for rank in range(processes):
        monkeypatch.setattr("vicinal.train.feed.world", lambda rank=rank: (processes, rank))
        mine, ready = slice(rank * 8 // processes, (rank + 1) * 8 // processes), next(feed.batches(3))
        assert ready.teacher is not None and torch.equal(ready.teacher, whole.teacher[mine][:, order])
        assert torch.equal(ready.masks.allowed, whole.masks.allowed[mine][:, order])
        assert torch.equal(ready.masks.allowed_documents, whole.masks.allowed_documents[mine][:, order])
        assert ready.batch.queries == whole.batch.queries[mine]
        columns = [whole.batch.documents[place] for place in order]
        width = len(ready.batch.documents)
        assert ready.batch.documents == columns[rank * width : (rank + 1) * width]
