"""J_w(x) of a network: what every engine for it shares, with plain passes through the network."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp

from dnn2gp.errors import NetworkError
from dnn2gp.features.base import FeatureMap
from dnn2gp.features.pointer import storage_pointer
from dnn2gp.inputs import Inputs, differentiable, map_inputs, num_examples, take
from dnn2gp.memory import check_budget, chunk_size, chunks
from dnn2gp.network import Network

# The most examples in one plain forward or backward pass, as in training: no Jacobian is formed there.
_PASS = 512


class NetworkFeatures(FeatureMap):
    """φ_w(x)ᵀ = J_w(x) = ∇_w f_w(x)ᵀ ∈ R^{K×P}, Eq. (6): the neural tangent features, however they are made.

    Products with a few vectors need no Jacobian and are plain passes here. Nothing can be differentiated in
    torch.inference_mode(), so each method leaves it for its own duration.
    """

    def __init__(
        self,
        network: Network,
        inputs: Inputs,
        anchor: Float[Tensor, " P"] | None = None,
        memory_budget: int | float | None = None,
        *,
        must_move: bool = True,
    ) -> None:
        """Features at `anchor` (default: the network's weights); a few of `inputs` show what autograd can do.

        `must_move`: refuse a network whose outputs no weight moves on the first inputs.
        """
        self.network = network
        self.anchor = network.weights if anchor is None else anchor
        self.num_weights, self.num_outputs = network.num_weights, network.num_outputs
        self.memory_budget = check_budget(memory_budget)
        self._saved, self._largest = 0, 0
        inputs = map_inputs(torch.Tensor.detach, inputs)
        if not self._probe_passes(take(inputs, slice(0, 1))).any() and must_move:
            self._check_dependence(inputs)

    @property
    def layers(self) -> list[tuple[slice, ...]]:
        """The ranges of weights that each module owns."""
        ranges = list(self.network.layout.ranges.values())
        return [tuple(ranges[position] for position in members) for members in self.network.layout.layers.values()]

    @torch.inference_mode(False)
    def outputs(self, inputs: Inputs) -> Float[Tensor, "N K"]:
        """f_w(x) at the anchor."""
        with torch.set_grad_enabled(differentiable(inputs)):
            parts = [self.network(self.anchor, take(inputs, part)) for part in self._passes(inputs)]
        return torch.cat(parts)

    @torch.inference_mode(False)
    def jvp(self, inputs: Inputs, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "N K S"]:
        """J v for each column v, in forward mode: one pass over the network, no Jacobian.

        More columns than rows (S > 2K) are cheaper with the factors of the Jacobian, chunk by chunk; and results that
        are to be differentiated need them, as forward mode leaves out terms for some layers (LayerNorm).
        """
        vectors = vectors.to(self.anchor.dtype)
        if not self.forward_mode or differentiable(inputs) or vectors.shape[1] > 2 * self.num_outputs:
            return super().jvp(inputs, vectors)
        parts = []
        for part in self._passes(inputs):
            examples = take(inputs, part)
            parts.append(torch.stack([self._push(examples, column) for column in vectors.unbind(1)], -1))
        return torch.cat(parts)

    @torch.inference_mode(False)
    def vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N K S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u for each column u, in reverse mode: one backward pass, no Jacobian (but see `jvp`)."""
        if cotangents.shape[-1] > 2 * self.num_outputs or differentiable(inputs):
            return super().vjp(inputs, cotangents.to(self.anchor.dtype))
        total = self.anchor.new_zeros(self.num_weights, cotangents.shape[-1])
        for part in self._passes(inputs):
            with torch.enable_grad():
                weights = self.anchor.detach().requires_grad_(True)
                outputs = self.network(weights, take(inputs, part))
                columns = cotangents[part].to(outputs.dtype).unbind(-1)
                total += torch.stack([pull(outputs, weights, column) for column in columns], -1)
        return total

    @torch.inference_mode(False)
    def residual_curvature(
        self, inputs: Inputs, residual: Float[Tensor, "N K"], vectors: Float[Tensor, "P S"]
    ) -> Float[Tensor, "P S"]:
        """Σᵢ (∇²_ww f_w(xᵢ) · rᵢ) v, the second term of the Hessian in Eq. (6), by differentiating Jᵀr once more."""
        total = torch.zeros_like(vectors)
        for part in self._passes(inputs, copies=6):
            with torch.enable_grad():
                weights = self.anchor.detach().requires_grad_(True)
                outputs = self.network(weights, take(inputs, part))
                first = torch.autograd.grad(outputs, weights, residual[part].clone(), create_graph=True)[0]
                if first.requires_grad:  # else f is linear in w and the term is zero
                    total += torch.stack([pull(first, weights, column) for column in vectors.unbind(1)], -1)
        return total

    def _passes(self, inputs: Inputs, copies: int = 2) -> Iterator[slice]:
        """Batches for a plain pass, whose activations and `copies` − 1 of their derivatives stay within the budget."""
        activations = copies * self.anchor.element_size() * max(1, self._saved)
        size = chunk_size(num_examples(inputs), activations, self.budget(), "A pass through the network")
        return chunks(num_examples(inputs), min(size, _PASS))

    def _push(self, inputs: Inputs, vector: Float[Tensor, " P"]) -> Float[Tensor, "N K"]:
        with torch.no_grad():
            return jvp(lambda w: self.network(w, inputs), (self.anchor,), (vector,))[1]

    @torch.inference_mode(False)
    def _probe_passes(self, example: Inputs) -> Float[Tensor, " P"]:
        """Jᵀu of one example by a plain backward pass; what it saves is counted, and forward mode is tried."""
        cotangent, vector = probe_vectors(self.anchor, self.num_outputs)
        try:
            plain = self.vjp(example, cotangent)[:, 0]
            with torch.autograd.graph.saved_tensors_hooks(self._count_saved, lambda tensor: tensor):
                attempt(lambda: self.vjp(example, cotangent))
        except RuntimeError as error:
            raise NetworkError(
                "The network's outputs do not depend on its trainable weights in a differentiable way "
                f"({error}). Look for (a) detach(), .data, no_grad or argmax in forward, (b) layers with no "
                "derivative, (c) tensors that are changed in place after a layer has used them."
            ) from error
        pushed = attempt(lambda: self._push(example, vector))
        self.forward_mode = pushed is not None and close((pushed * cotangent[..., 0]).sum(), plain @ vector)
        return plain

    def _check_dependence(self, inputs: Inputs) -> None:
        """Refuse a network whose outputs no weight moves (a rounding in forward, units that are all dead)."""
        few = take(inputs, slice(0, 32))
        if not self.vjp(few, self.anchor.new_ones(num_examples(few), self.num_outputs, 1)).any():
            raise NetworkError(
                "No trainable weight moves the outputs: all derivatives are zero on the first examples. Look for "
                "(a) round(), sign() or argmax in forward, (b) units that are all dead, (c) the wrong layers frozen."
            )

    def _count_saved(self, tensor: Tensor) -> Tensor:
        if storage_pointer(tensor) != storage_pointer(self.anchor):
            self._saved += tensor.numel()
            self._largest = max(self._largest, tensor.numel())
        return tensor


def probe_vectors(anchor: Float[Tensor, " P"], num_outputs: int) -> tuple[Float[Tensor, "1 K 1"], Float[Tensor, " P"]]:
    """Fixed random vectors for comparing two ways to the same product."""
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(1, num_outputs, 1, generator=generator, dtype=torch.float64).to(anchor)
    vector = torch.randn(len(anchor), generator=generator, dtype=torch.float64).to(anchor)
    return cotangent, vector


def pull(outputs: Tensor, weights: Tensor, cotangent: Tensor, create_graph: bool = False) -> Float[Tensor, " P"]:
    """Jᵀu, keeping the graph for more."""
    return torch.autograd.grad(outputs, weights, cotangent, retain_graph=True, create_graph=create_graph)[0]


def attempt(function: Callable[[], Tensor]) -> Tensor | None:
    """The result, or None where a layer lacks the rule for it (a second implementation then takes over).

    Where torch.func warns that it loops over a layer for want of a rule, the plain loop serves as well, in silence.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule")
            return function()
    except (RuntimeError, ValueError, TypeError, UserWarning):
        return None


def close(found: Tensor, expected: Tensor) -> bool:
    """Whether two ways to a product agree up to rounding."""
    tolerance = 1e3 * torch.finfo(expected.dtype).eps * (1 + expected.abs().max())
    return bool((found - expected).abs().max() <= tolerance)
