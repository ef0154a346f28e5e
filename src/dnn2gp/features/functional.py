"""The general engine: the Jacobian by torch.func, or by one backward pass a row where a layer has no batching rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev, jvp, vjp, vmap

from dnn2gp.errors import NetworkError
from dnn2gp.features.base import NetworkFeatures
from dnn2gp.inputs import Inputs, map_inputs, num_examples, take
from dnn2gp.memory import check_budget, chunk_size, chunks
from dnn2gp.network import Network

# The most examples in one plain forward or backward pass, as in training: no Jacobian is formed there.
_PASS = 512


class JacobianFeatures(NetworkFeatures):
    """φ_w(x)ᵀ = J_w(x) = ∇_w f_w(x)ᵀ ∈ R^{K×P}, Eq. (6): the neural tangent features, for any network.

    Nothing can be differentiated in torch.inference_mode(), so each method leaves it for its own duration.
    """

    def __init__(
        self,
        network: Network,
        inputs: Inputs,
        anchor: Float[Tensor, " P"] | None = None,
        memory_budget: int | None = None,
    ) -> None:
        """Features at `anchor` (default: the network's weights); an example of `inputs` decides how rows are made."""
        self.network = network
        self.anchor = network.weights if anchor is None else anchor
        self.num_weights, self.num_outputs = network.num_weights, network.num_outputs
        self.memory_budget = check_budget(memory_budget)
        if not self._probe(take(inputs, slice(0, 1))).any():
            self._check_dependence(inputs)

    @torch.inference_mode(False)
    def outputs(self, inputs: Inputs) -> Float[Tensor, "N K"]:
        """f_w(x) at the anchor."""
        with torch.no_grad():
            parts = [self.network(self.anchor, take(inputs, part)) for part in self._passes(inputs)]
        return torch.cat(parts)

    @torch.inference_mode(False)
    def jacobian(self, inputs: Inputs) -> Float[Tensor, "N K P"]:
        """J_w(x) of each example."""
        if not self.batched:
            eye = torch.eye(self.num_outputs, dtype=self.anchor.dtype, device=self.anchor.device)
            return self._pull_looped(inputs, eye.expand(num_examples(inputs), -1, -1))
        with torch.no_grad():
            return vmap(jacrev(self._single), in_dims=(None, 0))(self.anchor, inputs)

    @torch.inference_mode(False)
    def pull_each(self, inputs: Inputs, cotangents: Float[Tensor, "N K"]) -> Float[Tensor, "N P"]:
        """J(xᵢ)ᵀ uᵢ of each example apart: one backward pass an example."""
        if not self.batched:
            return self._pull_looped(inputs, cotangents.unsqueeze(1)).squeeze(1)

        def single(example: Inputs, cotangent: Tensor) -> Tensor:
            return vjp(lambda w: self._single(w, example), self.anchor)[1](cotangent)[0]

        with torch.no_grad():
            return vmap(single)(inputs, cotangents)

    @torch.inference_mode(False)
    def jvp(self, inputs: Inputs, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "N K S"]:
        """J v for each column v, in forward mode: one pass over the network, no Jacobian.

        More columns than rows (S > 2K) are cheaper with the rows of the Jacobian, chunk by chunk.
        """
        vectors = vectors.to(self.anchor.dtype)
        if not self.forward_mode or vectors.shape[1] > 2 * self.num_outputs:
            return super().jvp(inputs, vectors)
        parts = []
        for part in self._passes(inputs):
            examples = take(inputs, part)
            parts.append(torch.stack([self._push(examples, column) for column in vectors.unbind(1)], -1))
        return torch.cat(parts)

    @torch.inference_mode(False)
    def vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N K S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u for each column u, in reverse mode: one backward pass, no Jacobian (but see `jvp`)."""
        if cotangents.shape[-1] > 2 * self.num_outputs:
            return super().vjp(inputs, cotangents.to(self.anchor.dtype))
        total = self.anchor.new_zeros(self.num_weights, cotangents.shape[-1])
        for part in self._passes(inputs):
            with torch.enable_grad():
                weights = self.anchor.detach().requires_grad_(True)
                outputs = self.network(weights, take(inputs, part))
                columns = cotangents[part].to(outputs.dtype).unbind(-1)
                total += torch.stack([_pull(outputs, weights, column) for column in columns], -1)
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
                    total += torch.stack([_pull(first, weights, column) for column in vectors.unbind(1)], -1)
        return total

    def chunk(self, inputs: Inputs, share: float = 1.0, extra: int = 0) -> int:
        """Examples at a time, counting the activations that a batched backward pass of K cotangents holds."""
        own = self._COPIES * self.num_outputs * self.num_weights * 8
        passes = self.anchor.element_size() * (self._saved + 4 * self.num_outputs * self._largest)
        return self._chunk(inputs, own + passes + extra, share)

    def _passes(self, inputs: Inputs, copies: int = 2) -> Iterator[slice]:
        """Batches for a plain pass, whose activations and `copies` − 1 of their derivatives stay within the budget."""
        activations = copies * self.anchor.element_size() * max(1, self._saved)
        size = chunk_size(num_examples(inputs), activations, self.budget(), "A pass through the network")
        return chunks(num_examples(inputs), min(size, _PASS))

    def _single(self, weights: Tensor, example: Inputs) -> Tensor:
        return self.network(weights, map_inputs(lambda leaf: leaf.unsqueeze(0), example)).squeeze(0)

    def _push(self, inputs: Inputs, vector: Float[Tensor, " P"]) -> Float[Tensor, "N K"]:
        with torch.no_grad():
            return jvp(lambda w: self.network(w, inputs), (self.anchor,), (vector,))[1]

    def _pull_looped(self, inputs: Inputs, cotangents: Float[Tensor, "N R K"]) -> Float[Tensor, "N R P"]:
        rows = []
        for index in range(num_examples(inputs)):
            with torch.enable_grad():
                weights = self.anchor.detach().requires_grad_(True)
                outputs = self.network(weights, take(inputs, slice(index, index + 1)))[0]
                rows.append(torch.stack([_pull(outputs, weights, row) for row in cotangents[index]]))
        return torch.stack(rows)

    @torch.inference_mode(False)
    def _probe(self, example: Inputs) -> Float[Tensor, " P"]:
        """Find out on one example what autograd can do with this network, judged against a plain backward pass."""
        generator = torch.Generator().manual_seed(0)
        cotangent = torch.randn(1, self.num_outputs, 1, generator=generator, dtype=torch.float64).to(self.anchor)
        vector = torch.randn(self.num_weights, generator=generator, dtype=torch.float64).to(self.anchor)
        self._saved, self._largest = 0, 0
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._count_saved, lambda tensor: tensor):
                plain = self.vjp(example, cotangent)[:, 0]
        except RuntimeError as error:
            raise NetworkError(
                "The network's outputs do not depend on its trainable weights in a differentiable way "
                f"({error}). Look for (a) detach(), .data, no_grad or argmax in forward, (b) layers with no derivative."
            ) from error
        self.batched = True
        rows = _attempt(lambda: self.jacobian(example))
        self.batched = rows is not None and _close(torch.einsum("nkp,nk->p", rows, cotangent[..., 0]), plain)
        pushed = _attempt(lambda: self._push(example, vector))
        self.forward_mode = pushed is not None and _close((pushed * cotangent[..., 0]).sum(), plain @ vector)
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
        if tensor.untyped_storage().data_ptr() != self.anchor.untyped_storage().data_ptr():
            self._saved += tensor.numel()
            self._largest = max(self._largest, tensor.numel())
        return tensor


def _pull(outputs: Tensor, weights: Tensor, cotangent: Tensor) -> Float[Tensor, " P"]:
    return torch.autograd.grad(outputs, weights, cotangent, retain_graph=True)[0]


def _attempt(function: Callable[[], Tensor]) -> Tensor | None:
    """The result, or None where a layer lacks the rule for it (a second implementation then takes over).

    Where torch.func warns that it loops over a layer for want of a rule, the plain loop serves as well, in silence.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule")
            return function()
    except (RuntimeError, ValueError, TypeError, UserWarning):
        return None


def _close(found: Tensor, expected: Tensor) -> bool:
    tolerance = 1e3 * torch.finfo(expected.dtype).eps * (1 + expected.abs().max())
    return bool((found - expected).abs().max() <= tolerance)
