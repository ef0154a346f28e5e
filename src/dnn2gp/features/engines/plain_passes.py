"""Plain forward and backward passes, which form no Jacobian; faster ways are tried and compared with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from threading import RLock

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.func import jvp

from dnn2gp.network import Network
from dnn2gp.network.eval_mode import differentiable_attention
from dnn2gp.network.inputs import Inputs, detached, first_few

WARNING_FILTERS = RLock()
"""Python's warning filters belong to the process: one thread at a time changes and restores them."""


def attempt(function: Callable[[], Tensor]) -> Tensor | None:
    """The result, or None if a layer lacks the necessary rule, so that another implementation is used.

    Where torch.func warns that it loops over a layer that has no batching rule, a plain loop is just as good.
    """
    try:
        with WARNING_FILTERS, warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule")
            return function()
    except (RuntimeError, ValueError, TypeError, UserWarning):
        return None


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two ways to a product agree up to rounding."""
    tolerance = 1e3 * torch.finfo(expected.dtype).eps * (1 + expected.abs().max())
    return bool((found - expected).abs().max() <= tolerance)


_FORWARD_MODE = RLock()
"""torch has one level of forward-mode differentiation for the whole process: with two threads inside, tangents of one
are lost or added to those of the other."""


def backward(
    outputs: Tensor,
    wanted: Sequence[Tensor] | Sequence[GradientEdge],
    cotangents: Tensor | None = None,
    **options: bool,
) -> tuple[Tensor | None, ...]:
    """torch.autograd.grad in the setting of the forward pass, parts of which checkpointing computes again here."""
    with differentiable_attention():
        return torch.autograd.grad(outputs, wanted, cotangents, **options)


def pull(outputs: Tensor, weights: Tensor, cotangent: Tensor, create_graph: bool = False) -> Float[Tensor, " P"]:
    """Jᵀu from the graph of the outputs, which is kept for more."""
    (found,) = backward(outputs, [weights], cotangent, retain_graph=True, create_graph=create_graph)
    assert found is not None
    return found


def pulled(
    network: Network, anchor: Float[Tensor, " P"], inputs: Inputs, cotangents: Float[Tensor, "n K S"]
) -> Float[Tensor, "P S"]:
    """Jᵀu for each column u: one forward pass, and one backward pass per column."""
    with torch.enable_grad():
        weights = anchor.detach().requires_grad_(True)
        outputs = network(weights, inputs)
        columns = cotangents.to(outputs.dtype).unbind(-1)
        return torch.stack([pull(outputs, weights, column) for column in columns], -1)


def pushed(
    network: Network, anchor: Float[Tensor, " P"], inputs: Inputs, vector: Float[Tensor, " P"]
) -> Float[Tensor, "n K"]:
    """J v, in forward mode."""
    with _FORWARD_MODE, torch.no_grad():
        return jvp(lambda weights: network(weights, inputs), (anchor,), (vector,))[1]


def curved(
    network: Network,
    anchor: Float[Tensor, " P"],
    inputs: Inputs,
    residual: Float[Tensor, "n K"],
    vectors: Float[Tensor, "P S"],
) -> Float[Tensor, "P S"]:
    """Σᵢ (∇²_ww f_w(xᵢ) · rᵢ) v for each column v, by differentiating Jᵀr once more."""
    with torch.enable_grad():
        weights = anchor.detach().requires_grad_(True)
        outputs = network(weights, inputs)
        first = pull(outputs, weights, residual.clone(), create_graph=True)
        if not first.requires_grad:  # f is linear in w and the term is zero
            return torch.zeros_like(vectors)
        return torch.stack([pull(first, weights, column) for column in vectors.unbind(1)], -1)


def probed(inputs: Inputs) -> Inputs:
    """The examples on which a faster way is compared with plain passes: several, as in the work itself."""
    return detached(first_few(inputs, 3))


def probe_vectors(
    anchor: Float[Tensor, " P"], count: int, num_outputs: int, columns: int = 1
) -> tuple[Float[Tensor, "n K R"], Float[Tensor, " P"]]:
    """Fixed random vectors for comparing two ways to the same product."""
    generator = torch.Generator().manual_seed(0)
    cotangents = torch.randn(count, num_outputs, columns, generator=generator, dtype=torch.float64).to(anchor)
    vector = torch.randn(len(anchor), generator=generator, dtype=torch.float64).to(anchor)
    return cotangents, vector
