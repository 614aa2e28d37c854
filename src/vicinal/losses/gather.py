"""One batch over several processes: the views of this one -> views that have the vectors of all.

Each process asks its own queries, and meets the documents of all as negatives (and, where a loss wants them, the
queries of all). The law: when every process has as many queries and documents, and one context's map, the mean over
processes of their losses is the loss of one process with the whole batch, and so is the gradient, averaged over
processes as data parallel training does.

Columns of masks and of a teacher's scores are those of the whole batch: process 0's documents, its hard negatives among
them, then process 1's, and so on. A mask must say all of it, because a text of another process is as likely to be a
false negative as one's own. A teacher may say less, its own process's documents only: what it does not know is minus
infinity, as everywhere. Targets stay as they are, for a regression compares no two texts.

>>> alone = Views(torch.eye(2), torch.eye(2))
>>> across(alone) is alone  # no other process
True
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, distributed

from ..errors import InputError
from .base import Views


def across(views: Views) -> Views:
    """Views of this process's queries and everyone's documents: this process's first, then those of the next, around.

    >>> across(Views(torch.eye(2), torch.eye(2))).others is None
    True
    """
    processes, rank = world()
    if processes == 1:
        return views
    if views.others is not None:
        raise InputError("these views have other processes' queries already: pass a batch through `across` once")
    n, m = len(views.queries), len(views.documents)
    refuse_unequal(views, processes)
    blocks = gathered(torch.cat([views.queries, views.documents])).view(processes, n + m, -1).roll(-rank, dims=0)
    queries, documents = blocks[:, :n].flatten(0, 1), blocks[:, n:].flatten(0, 1)
    allowed = own_first("allowed", views.allowed, processes * m, -rank * m)
    teacher = views.teacher
    if teacher is not None and teacher.shape[1] == m:
        unknown = teacher.new_full((n, (processes - 1) * m), -torch.inf)
        teacher = torch.cat([teacher, unknown], dim=1)
    else:
        teacher = own_first("teacher", teacher, processes * m, -rank * m)
    return replace(
        views,
        queries=queries[:n],
        documents=documents,
        allowed=allowed,
        allowed_queries=own_first("allowed_queries", views.allowed_queries, processes * n, -rank * n),
        allowed_documents=own_first("allowed_documents", views.allowed_documents, processes * m, -rank * m),
        teacher=teacher,
        others=queries[n:],
        allowed_others=None if views.allowed is None else asked_of_ours(views.allowed, n, m),
    )


def gathered(tensor: Tensor) -> Tensor:
    """The tensors of all processes, end to end in the order of ranks; gradients go back to where each came from.

    >>> gathered(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    if world()[0] == 1:
        return tensor
    everyones: Tensor = AllGather.apply(tensor)  # type: ignore[no-untyped-call]
    return everyones


class AllGather(torch.autograd.Function):
    """Forward, all tensors; backward, the sum over processes of what each has found for ours."""

    @staticmethod
    def forward(ctx, tensor: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.length = len(tensor)
        return _collected(tensor)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        total = gradient.clone(memory_format=torch.contiguous_format)  # it is summed in place, and may be another's too
        distributed.all_reduce(total)
        start = world()[1] * ctx.length
        return total[start : start + ctx.length]


def world() -> tuple[int, int]:
    """How many processes share a batch, and which of them this is.

    >>> world()
    (1, 0)
    """
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    return 1, 0


def own_first(name: str, table: Tensor | None, width: int, shift: int) -> Tensor | None:
    """The columns of the whole batch, in the order of ranks -> this process's first, then those of the next, around."""
    if table is None:
        return None
    if table.shape[1] != width:
        raise InputError(
            f"{name} has {table.shape[1]} columns, and all processes together have {width}: expected a column for "
            "each, in the order of ranks, since a false negative may lie on another process"
        )
    return table.roll(shift, dims=1)


def asked_of_ours(allowed: Tensor, n: int, m: int) -> Tensor:
    """What every other process's queries are allowed of our queries' own documents, (others, n), the next rank's first.

    Each process sends to each just the columns that concern it: nobody holds the mask of the whole batch.
    """
    processes, rank = world()
    sent = allowed.reshape(n, processes, m)[:, :, :n].transpose(0, 1).to(torch.uint8).contiguous()
    received = torch.empty_like(sent)  # (processes, their n, our n)
    distributed.all_to_all_single(received, sent)
    return received.roll(-rank, dims=0)[1:].flatten(0, 1).bool()


def refuse_unequal(views: Views, processes: int) -> None:
    """Unequal batches, or a mask on some processes only: these would wait for each other for ever, or mix up rows."""
    tables = (views.allowed, views.allowed_queries, views.allowed_documents, views.teacher)
    widths = [0 if table is None else table.shape[1] for table in tables]
    mine = torch.tensor([[len(views.queries), *views.documents.shape, *widths]], device=views.queries.device)
    shapes = _collected(mine).tolist()
    if shapes.count(shapes[0]) < processes:
        told = "; ".join(", ".join(map(str, shape)) for shape in shapes)
        raise InputError(
            f"the {processes} processes' batches differ (queries, documents, dimensions, then the columns of masks and "
            f"teacher: {told}): give each as many, and a mask to all or none"
        )


def _collected(tensor: Tensor) -> Tensor:
    everyones = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(world()[0])]
    distributed.all_gather(everyones, tensor.contiguous())
    return torch.cat(everyones)
