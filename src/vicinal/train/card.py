"""A run's story for people: README.md, the model's card, and plots of the loss and of retrieval.

>>> told = {"model": "m", "steps": 2, "tokens": 10, "seconds": 1.0, "loss": {"first": 2.0, "last": 1.0},
...     "best": {"step": 2, "own": 0.571}, "run": {"model": "tiny"}, "pairs": {"rows": 4, "domains": ["d"]},
...     "batches": {"batches": 2, "size": 2, "order": "tour"}, "vicinal": "0.1.0"}
>>> retrieval = {"mean": {"own": 0.571}, "collections": {"c": {"own": 0.571}}}
>>> "| own | 57.1 |" in text(told, [{"step": 2, "retrieval": retrieval}])
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import files
from ..errors import MissingExtra

SMOOTH = 0.1  # the share of a run that the drawn loss is a mean over


def write(folder: Path, told: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> None:
    """README.md and the plots."""
    files.write_text(folder / "README.md", text(told, records))
    plot(folder, records)


def text(told: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """The model's card."""
    domains = told["pairs"]["domains"]
    lines = [
        f"# {Path(told['model']).name}",
        "",
        f"Trained by vicinal {told['vicinal']} from {told['run']['model']}.",
        f"{told['steps']:,} steps, {told['tokens']:,} tokens, {told['seconds']:,.0f} s.",
        f"Loss {told['loss']['first']:.4f} -> {told['loss']['last']:.4f}.",
        "",
        "```python",
        "import vicinal",
        f"encoder = vicinal.load({Path(told['model']).name!r})",
        "```",
        "",
        "## Data",
        "",
        f"{told['pairs']['rows']:,} pairs in {len(domains)} domains: {', '.join(domains)}.",
        "",
        "Batches of {size} pairs, packed by {order}: {batches:,} in an epoch.".format(**told["batches"]),
        "",
    ]
    measured = [record for record in records if record.get("retrieval")]
    if measured:
        best = told["best"] or {"step": measured[-1]["step"]}
        shown = next((r for r in measured if r["step"] == best["step"]), measured[-1])["retrieval"]
        lines += ["## Retrieval", "", f"nDCG@10 x 100 at step {best['step']:,}, the best by these collections:", ""]
        lines += ["| context | mean |", "|---|--:|"]
        lines += [f"| {kind} | {100 * value:.1f} |" for kind, value in shown["mean"].items()]
        names = ", ".join(f"{name} {100 * each['own']:.1f}" for name, each in shown["collections"].items())
        lines += ["", f"Own context on each: {names}.", "", "![retrieval](retrieval.png)", ""]
    lines += [
        "![loss](loss.png)",
        "",
        "## The run",
        "",
        "```json",
        files.canonical_json(told["run"]).rstrip(),
        "```",
        "",
    ]
    lines += ["Its batches:", "", "```json", json.dumps(told["batches"], sort_keys=True), "```", ""]
    return "\n".join(lines)


def plot(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """loss.png, and retrieval.png where retrieval was measured."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("train", needed_for="plotting a run") from error

    def drawn(name: str, title: str, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for label, (steps, values) in lines.items():
            axes.plot(steps, values, label=label, marker="o" if len(steps) < 30 else None)
        axes.set_xlabel("step")
        axes.set_title(title, loc="left")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        with files.writing(folder / name) as partial:
            figure.savefig(partial, format="png", dpi=120)

    steps, losses = [record["step"] for record in records], [record["loss"] for record in records]
    drawn("loss.png", "loss of each step", {"loss": (steps, losses), "smoothed": (steps, smoothed(losses))})
    measured = [record for record in records if record.get("retrieval")]
    if measured:
        kinds = measured[0]["retrieval"]["mean"]
        at = [record["step"] for record in measured]
        drawn(
            "retrieval.png",
            "nDCG@10 x 100, mean over collections",
            {kind: (at, [100 * record["retrieval"]["mean"][kind] for record in measured]) for kind in kinds},
        )


def smoothed(values: Sequence[float]) -> list[float]:
    """Means over neighbours, as many as a tenth of the run.

    >>> smoothed([1.0, 3.0])
    [1.0, 3.0]
    """
    reach = int(SMOOTH * len(values) / 2)
    windows = (values[max(0, place - reach) : place + reach + 1] for place in range(len(values)))
    return [sum(window) / len(window) for window in windows]
