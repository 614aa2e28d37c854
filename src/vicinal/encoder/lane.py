"""The express lane: what a corpus's context does to a vector of length 1, without any attention.

With C the n context vectors (rows of length 1, truncated like the vector) and M = C'C / n their second moment,

    e(x) = normalise(W x),     W = (1 - g) I + g (I + M / gamma)^(-1/2),     g = (n - 1) / (n - 1 + halfway)

Directions that the whole corpus shares, its mean first of all, tell nothing about one document: they are damped, the
more the stronger they are, and what is rare in this corpus counts for more. A context of one document says nothing
about what is shared (g = 0), and few say little. Queries and documents take the same map, so a stored vector stays a
vector, and of a vector's length at least (1 + 1 / gamma)^(-1/2) is left.

The two constants are those that did best, untrained, on the collections kept for choosing (docs/log.md, "The lane
without training"); training starts from them.

>>> lane = Lane()
>>> shared = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.8, 0.0, 0.6]])
>>> lane.matrix(shared).diagonal().detach().numpy().round(2).astype(str).tolist()
['0.87', '0.94', '0.94']
"""

from __future__ import annotations

import torch
from torch import Tensor

GAMMA = 0.08
HALFWAY = 8.0


class Lane(torch.nn.Module):
    """The map of a context; its constants are parameters, kept as logarithms so that they stay positive."""

    def __init__(self, gamma: float = GAMMA, halfway: float = HALFWAY) -> None:
        super().__init__()
        self.log_gamma = torch.nn.Parameter(torch.tensor(gamma, dtype=torch.float64).log())
        self.log_halfway = torch.nn.Parameter(torch.tensor(halfway, dtype=torch.float64).log())

    @property
    def constants(self) -> list[float]:
        """gamma and halfway, for the record.

        >>> Lane().constants
        [0.08, 8.0]
        """
        return [round(float(log.detach().exp()), 9) for log in (self.log_gamma, self.log_halfway)]

    def matrix(self, context: Tensor) -> Tensor:
        """W for context vectors of length 1, (documents, dim) -> (dim, dim); gradients reach the context."""
        count, dim = context.shape
        one = torch.eye(dim, dtype=torch.float64, device=context.device)
        if count <= 1:
            return one.to(context.dtype)
        rows = context.double()
        gate = (count - 1) / (count - 1 + self.log_halfway.exp())
        moment = rows.T @ rows / count
        damped: Tensor = InverseRoot.apply(one + moment / self.log_gamma.exp())  # type: ignore[no-untyped-call]
        moved: Tensor = ((1 - gate) * one + gate * damped).to(context.dtype)
        return moved


class InverseRoot(torch.autograd.Function):
    """A^(-1/2) of symmetric positive definite A.

    The gradient is that of a function f of a matrix (Daleckii and Krein): with A = V diag(a) V', cotangent G becomes
    V (F * V'GV) V', F_ij = (f(a_i) - f(a_j)) / (a_i - a_j), which for f = a^(-1/2) needs no special case for equal
    eigenvalues: F_ij = -1 / (a_i sqrt(a_j) + a_j sqrt(a_i)). Differentiating through the eigenvectors would.

    >>> InverseRoot.apply(torch.tensor([[4.0, 0.0], [0.0, 1.0]])).tolist()
    [[0.5, 0.0], [0.0, 1.0]]
    """

    @staticmethod
    def forward(ctx, matrix: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        values, vectors = torch.linalg.eigh(matrix)
        ctx.save_for_backward(values, vectors)
        root: Tensor = (vectors * values.rsqrt()) @ vectors.T
        return root

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        values, vectors = ctx.saved_tensors
        roots = values.sqrt()
        shares = -1 / (values[:, None] * roots + roots[:, None] * values)
        cotangent: Tensor = vectors @ (shares * (vectors.T @ gradient @ vectors)) @ vectors.T
        return cotangent
