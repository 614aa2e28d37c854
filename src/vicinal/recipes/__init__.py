"""Whole runs, a function each: a variant replaces two fields.

    tiny_cpu      a minute on two cores, to see that everything works
    small_gpu     the model that ships, from the start model, on one accelerator
    paper_small   the grid of "Contextual Document Embeddings": 6 layers, 64 + 64 tokens, batch and cluster sizes
    paper_large   the same paper's full model: 512 tokens, 512 context documents

>>> recipe("tiny_cpu").steps
200
>>> recipe("tiny_gpu")
Traceback (most recent call last):
vicinal.errors.InputError: there is no recipe 'tiny_gpu': did you mean 'tiny_cpu'?
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from ..encoder.contextual import ContextualConfig
from ..errors import InputError
from ..train.run import Aim, Meeting, Optimiser, Run


def tiny_cpu() -> Run:
    """The random model that comes with the package learns a little, one-way and with a lane."""
    return Run(
        model="tiny",
        encoder=ContextualConfig(first_layers=1, lane=True),
        meeting=Meeting(pairs=32, shown=16),
        aim=Aim(temperature=0.05),
        optimiser=Optimiser(learning_rate=5e-3),
        steps=200,
        max_query_tokens=24,
        max_document_tokens=48,
        save_every=50,
        evaluate_every=100,
    )


def small_gpu() -> Run:
    """granite-embedding-30m-english with one-way context, a lane, and the teacher whose scores know the corpus."""
    return Run(
        encoder=ContextualConfig(first_layers=2, lane=True, share_tokens=True),
        meeting=Meeting(surrogate="granite-embedding-30m-english", margin=0.0),
        aim=Aim(temperature=0.05, kl=1.0),
        optimiser=Optimiser(learning_rate=3e-5),
        steps=1000,
        chunk_tokens=131_072,
        precision="bf16",
    )


def paper_small(batch: int = 512, cluster: int = 512) -> Run:
    """Two-way, as the paper has it, at its small setting; `batch` and `cluster` span its grid."""
    return Run(
        encoder=ContextualConfig(attention="two-way", soft_tokens=8, head="residual"),
        meeting=Meeting(pairs=batch, cluster_pairs=cluster, surrogate="granite-embedding-30m-english", shown=64),
        optimiser=Optimiser(learning_rate=2e-5),
        steps=2000,
        max_query_tokens=64,
        max_document_tokens=64,
        chunk_tokens=65_536,
        precision="bf16",
    )


def paper_large(model: str = "nomic-ai/nomic-bert-2048") -> Run:
    """The paper's full model: 12 layers x 768 from `model`, 512 tokens, 512 context documents."""
    return Run(
        model=model,
        encoder=ContextualConfig(attention="two-way", soft_tokens=8, head="residual", context_dropout=0.0),
        meeting=Meeting(pairs=512, surrogate="granite-embedding-30m-english", shown=512),
        optimiser=Optimiser(learning_rate=2e-5),
        steps=10_000,
        max_query_tokens=512,
        max_document_tokens=512,
        chunk_tokens=32_768,
        precision="bf16",
    )


RECIPES: dict[str, Callable[[], Run]] = {
    function.__name__: function for function in (tiny_cpu, small_gpu, paper_small, paper_large)
}


def recipe(name: str) -> Run:
    """The run that a recipe's name stands for."""
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=1)
        raise InputError(
            f"there is no recipe {name!r}: {f'did you mean {near[0]!r}?' if near else f'take one of {list(RECIPES)}'}"
        )
    return RECIPES[name]()
