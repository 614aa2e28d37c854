"""The order of operations from a raw vector to a final one, the same everywhere.

    truncate to `dim` -> normalise -> the context's correction at `dim`, where there is one -> normalise

Raw vectors, as a model gives them, are what is kept; final ones are what is compared.

>>> final(torch.tensor([[3.0, 4.0, 12.0]]), dim=2).tolist()
[[0.6..., 0.8...]]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from .errors import InputError

Floats = npt.NDArray[np.float32]


LEAST_LENGTH = 1e-3  # of a corrected vector; what is shorter is rounding noise


def final(raw: torch.Tensor, dim: int | None = None, correction: torch.Tensor | None = None) -> torch.Tensor:
    """Raw vectors -> vectors of length 1 in 32 bit; `correction` is a context's map, (dim, dim).

    >>> half = torch.tensor([[0.5, 0.0], [0.0, 1.0]])
    >>> final(torch.tensor([[8.0, 3.0]]), correction=half).tolist()
    [[0.8..., 0.6...]]
    """
    vectors = unit(raw[:, :dim])
    if correction is None:
        return vectors
    corrected = vectors @ correction
    return unit(torch.where(vanished(corrected), vectors, corrected))


def vanished(corrected: torch.Tensor) -> torch.Tensor:
    """Of which vectors a correction leaves next to nothing, (vectors, 1); they are kept as they were."""
    is_short: torch.Tensor = corrected.norm(dim=1, keepdim=True) < LEAST_LENGTH
    return is_short


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Each vector over its length, in 32 bit; a vector without length stays zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6..., 0.8...], [0.0, 0.0]]
    """
    return torch.nn.functional.normalize(vectors.float(), dim=1, eps=1e-30)


def checked_dim(dim: int | None, full: int) -> int:
    """The number of leading dimensions to keep; refuses what a vector does not have."""
    if dim is None:
        return full
    if not 1 <= dim <= full:
        raise InputError(f"--dim {dim} was asked for, but vectors have {full} dimensions: choose one of 1 to {full}")
    return dim
