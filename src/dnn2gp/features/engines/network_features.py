"""J_w(x) of a network: what every engine for it shares, with plain passes through the network."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp

from dnn2gp.features.budget.chunked import FEWER
from dnn2gp.features.budget.peak import peak_of
from dnn2gp.features.budget.work import MemoryTrial
from dnn2gp.features.checks import check_cotangents, check_vectors
from dnn2gp.features.engines.pointer import storage_pointer
from dnn2gp.features.feature_map import FeatureMap
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, check_inputs, differentiable, map_inputs, num_examples, take
from dnn2gp.support.errors import NetworkError
from dnn2gp.support.memory import bounded, check_budget, chunks, require, room

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

    def __repr__(self) -> str:
        """Of what network."""
        return f"{type(self).__name__}({self.num_weights} weights, {self.num_outputs} outputs)"

    def at(self, anchor: Float[Tensor, " P"], network: Network | None = None) -> NetworkFeatures:
        """The same engine at other weights, or for other buffers: what was learned of the network holds there too."""
        self._needs  # noqa: B018 (made now, so that both know what the other measures)
        moved = copy(self)
        moved.anchor, moved.network = anchor.contiguous(), network or self.network  # some of torch's rules need it
        return moved

    def restricted(self, names: list[str], inputs: Inputs) -> NetworkFeatures:
        """The same engine for fewer weights, the others fixed: columns of J. `inputs` as in the construction."""
        here = self.network.with_state({**self.network.state(), **self.network.layout.unflatten(self.anchor)})
        return type(self)(here.restricted(names), inputs, memory_budget=self.memory_budget, must_move=False)

    def check(self, inputs: Inputs) -> Inputs:
        """These inputs, as the network takes them."""
        return self.network.check_inputs(check_inputs(inputs), keep_graph=True)

    @property
    def layers(self) -> list[tuple[slice, ...]]:
        """The ranges of weights that each module owns."""
        ranges = list(self.network.layout.ranges.values())
        return [tuple(ranges[position] for position in members) for members in self.network.layout.layers.values()]

    @bounded
    @torch.inference_mode(False)
    def outputs(self, inputs: Inputs) -> Float[Tensor, "N K"]:
        """f_w(x) at the anchor."""
        with torch.set_grad_enabled(differentiable(inputs)):
            size = num_examples(inputs) * self.num_outputs * self.anchor.element_size()
            parts = [self._forward(take(inputs, part)) for part in self._passes(inputs, self._forward, 2 * size)]
        return torch.cat(parts)

    @bounded
    @torch.inference_mode(False)
    def jvp(self, inputs: Inputs, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "N K S"]:
        """J v for each column v, in forward mode: one pass over the network, no Jacobian.

        More columns than rows (S > 2K) are cheaper with the factors of the Jacobian, chunk by chunk; and results that
        are to be differentiated need them, as forward mode leaves out terms for some layers (LayerNorm).
        """
        check_vectors(vectors, self.num_weights)
        vectors = vectors.to(self.anchor.dtype)
        if not self.forward_mode or differentiable(inputs) or vectors.shape[1] > 2 * self.num_outputs:
            return super().jvp(inputs, vectors)

        def pushed(examples: Inputs) -> Float[Tensor, "n K S"]:
            return torch.stack([self._push(examples, column) for column in vectors.unbind(1)], -1)

        held = 2 * num_examples(inputs) * self.num_outputs * vectors.shape[1] * self.anchor.element_size()
        passes = self._passes(inputs, lambda few: self._push(few, vectors[:, 0]), held, "J v")
        return torch.cat([pushed(take(inputs, part)) for part in passes])

    @bounded
    @torch.inference_mode(False)
    def vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N K S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u for each column u, in reverse mode: one backward pass, no Jacobian (but see `jvp`)."""
        check_cotangents(cotangents, num_examples(inputs), self.num_outputs)
        if cotangents.shape[-1] > 2 * self.num_outputs or differentiable(inputs):
            return super().vjp(inputs, cotangents.to(self.anchor.dtype))
        total = self.anchor.new_zeros(self.num_weights, cotangents.shape[-1])
        for part in self._passes(inputs, self._pull_ones, 3 * total.nbytes):
            total += self._pulls(take(inputs, part), cotangents[part])
        return total

    @bounded
    @torch.inference_mode(False)
    def residual_curvature(
        self, inputs: Inputs, residual: Float[Tensor, "N K"], vectors: Float[Tensor, "P S"]
    ) -> Float[Tensor, "P S"]:
        """Σᵢ (∇²_ww f_w(xᵢ) · rᵢ) v, the second term of the Hessian in Eq. (6), by differentiating Jᵀr once more."""

        def curved(examples: Inputs, own: Float[Tensor, "n K"], columns: Float[Tensor, "P S"]) -> Tensor:
            with torch.enable_grad():
                weights = self.anchor.detach().requires_grad_(True)
                outputs = self.network(weights, examples)
                first = torch.autograd.grad(outputs, weights, own.clone(), create_graph=True)[0]
                if not first.requires_grad:  # f is linear in w and the term is zero
                    return torch.zeros_like(columns)
                return torch.stack([pull(first, weights, column) for column in columns.unbind(1)], -1)

        def curved_by_ones(few: Inputs) -> Tensor:
            return curved(few, residual.new_ones(num_examples(few), self.num_outputs), vectors[:, :1])

        total = torch.zeros_like(vectors)
        for part in self._passes(inputs, curved_by_ones, 3 * total.nbytes, "second derivatives"):
            total += curved(take(inputs, part), residual[part], vectors)
        return total

    @torch.inference_mode(False)
    def _passes(
        self, inputs: Inputs, work: Callable[[Inputs], object], held: int = 0, name: str = ""
    ) -> Iterator[slice]:
        """Batches for plain passes such as `work`, so that what they need stays within the budget beside `held`."""
        count = num_examples(inputs)
        if count == 1:
            return chunks(1, 1)
        key = "pass", name or work.__name__, self.kind(inputs)
        if key not in self._needs:
            self._needs[key] = peak_of(lambda few: work(take(inputs, torch.arange(few, device="cpu") % count)))
        need, budget = self._needs[key].plus(held), self.budget()
        what = "A pass of a single example through the network"
        require(need(1), budget, f"{what}, with the result," if held else what, FEWER)
        return chunks(count, max(1, min(need.most(room(budget)), _PASS)))

    @contextmanager
    def unchecked(self) -> Iterator[None]:
        """Factors that are made in here are only tried out: an engine that checks some of its chunks leaves them."""
        yield

    def checked(self, trial: MemoryTrial) -> MemoryTrial:
        """A trial with what such checks need."""
        return trial

    def _forward(self, inputs: Inputs) -> Float[Tensor, "n K"]:
        return self.network(self.anchor, inputs)

    def _pulls(self, inputs: Inputs, cotangents: Float[Tensor, "n K S"]) -> Float[Tensor, "P S"]:
        with torch.enable_grad():
            weights = self.anchor.detach().requires_grad_(True)
            outputs = self.network(weights, inputs)
            columns = cotangents.to(outputs.dtype).unbind(-1)
            return torch.stack([pull(outputs, weights, column) for column in columns], -1)

    def _pull_ones(self, inputs: Inputs) -> Float[Tensor, "P 1"]:
        return self._pulls(inputs, self.anchor.new_ones(num_examples(inputs), self.num_outputs, 1))

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
            if "inplace operation" in str(error):
                raise NetworkError(
                    f"The network changes a tensor in place after a layer has used it ({error}), so that the layer has "
                    "no derivative. Look for x.mul_(…), x += … or inplace=True on tensors that are used before."
                ) from error
            raise NetworkError(
                "The network's outputs do not depend on its trainable weights in a differentiable way "
                f"({error}). Look for (a) detach(), .data, no_grad or argmax in forward, (b) layers with no "
                "derivative."
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
