"""J_w(x) of a network: what every engine for it shares, with plain passes through the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from dnn2gp.features.budget.chunked import FEWER, form, joined
from dnn2gp.features.budget.peak import MORE, Peak, peak_of
from dnn2gp.features.budget.plan import MemoryTrial
from dnn2gp.features.checks import check_cotangents, check_vectors
from dnn2gp.features.engines.changed_gradients import REENTRANT, check_linear, derivatives_watched
from dnn2gp.features.engines.plain_passes import attempt, close, curved, probe_vectors, probed, pulled, pushed
from dnn2gp.features.feature_map import FeatureMap
from dnn2gp.features.knowledge import Knowledge
from dnn2gp.network import Network
from dnn2gp.network.inputs import (
    Inputs,
    check_inputs,
    detached,
    differentiable,
    first_few,
    in_parts,
    most_at_once,
    num_examples,
    take,
)
from dnn2gp.support.allocator import give_back, sparing
from dnn2gp.support.errors import NetworkError
from dnn2gp.support.memory import check_budget, chunks, require, room

Engine = TypeVar("Engine", bound="NetworkFeatures")
# The most examples in one plain forward or backward pass, as in training: no Jacobian is formed there.
_PASS = 512
# The number of examples on which derivatives are checked, and of those among which at least one must have a derivative.
_FEW = 3
_LOOKED_AT = 32
# How much more memory a pass takes than its tensors: what one layer frees, malloc often cannot give to the next.
_SLACK = 2.0
# How many times more than that of numbers of the usual size rounding may be for new inputs: it grows with their size.
_NEW = 1e5


class NetworkFeatures(FeatureMap):
    """φ_w(x)ᵀ = J_w(x) = ∇_w f_w(x)ᵀ ∈ R^{K×P}, Eq. (6): the neural tangent features.

    An engine is a network, the weights at which it is differentiated (`anchor`), and what has been learned about the
    network (`knowledge`), which engines at other weights share. Products with a few vectors are plain passes here and
    form no Jacobian. Nothing can be differentiated in torch.inference_mode(), so each method leaves it while it runs.
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
        """Features at `anchor` (default: the network's weights); `inputs` serve to check that f has derivatives.

        `must_move`: reject a network whose outputs do not depend on any weight for the first inputs.
        """
        self.network = network
        self.anchor = network.weights if anchor is None else anchor
        self.num_weights, self.num_outputs = network.num_weights, network.num_outputs
        self.memory_budget = check_budget(memory_budget)
        self.knowledge = Knowledge()
        inputs = detached(take(inputs, slice(0, _LOOKED_AT)))
        if not self._first_gradient(inputs).any() and must_move:
            self._check_dependence(inputs)
        self.rounding_scale = self._check_company(inputs)
        """The size of the numbers whose rounding the outputs contain: Σ_p |w_p ∂f/∂w_p|, which sums cannot cancel."""
        check_linear(network, self.anchor, take(inputs, slice(0, _FEW)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_weights} weights, {self.num_outputs} outputs)"

    def at(self: Engine, anchor: Float[Tensor, " P"], network: Network | None = None) -> Engine:
        """The same engine at other weights, or with other buffers; the two share what they learn."""
        moved = copy(self)
        moved.anchor, moved.network = anchor.contiguous(), network or self.network  # some of torch's rules need it
        return moved

    def restricted(self: Engine, names: list[str], inputs: Inputs) -> Engine:
        """The same engine for fewer weights, the others fixed: columns of J. `inputs` as in the construction."""
        here = self.network.with_state({**self.network.state(), **self.network.layout.unflatten(self.anchor)})
        found = type(self)(here.restricted(names), inputs, memory_budget=self.memory_budget, must_move=False)
        return found.of_team(self.team)

    def check(self, inputs: Inputs) -> Inputs:
        """These inputs, as the network takes them."""
        return self.network.check_inputs(check_inputs(inputs), keep_graph=True)

    @property
    def layers(self) -> list[tuple[slice, ...]]:
        """The ranges of weights that each module owns."""
        ranges = list(self.network.layout.ranges.values())
        return [tuple(ranges[position] for position in members) for members in self.network.layout.layers.values()]

    @torch.inference_mode(False)
    def outputs(self, inputs: Inputs) -> Float[Tensor, "N K"]:
        """f_w(x) at the anchor."""
        with torch.set_grad_enabled(differentiable(inputs)):
            size = num_examples(inputs) * self.num_outputs * self.anchor.element_size()
            passes = self._passes(inputs, self._forward, 2 * size)
            return joined(_each(self._forward, passes), num_examples(inputs))

    @torch.inference_mode(False)
    def jvp(self, inputs: Inputs, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "N K S"]:
        """J v for each column v, in forward mode: one pass per column, no Jacobian.

        More than 2K columns are cheaper with the factors of the Jacobian, chunk by chunk. Results that are to be
        differentiated need them too, as forward mode omits terms for some layers (LayerNorm).
        """
        check_vectors(vectors, self.num_weights)
        vectors = vectors.to(self.anchor.dtype)
        if differentiable(inputs) or vectors.shape[1] > 2 * self.num_outputs or not self._has_forward_mode(inputs):
            return super().jvp(inputs, vectors)

        def all_pushed(examples: Inputs) -> Float[Tensor, "n K S"]:
            return torch.stack([self._push(examples, column) for column in vectors.unbind(1)], -1)

        held = 2 * num_examples(inputs) * self.num_outputs * vectors.shape[1] * self.anchor.element_size()
        passes = self._forward_mode_passes(inputs, held)
        return joined(_each(all_pushed, passes), num_examples(inputs))

    @torch.inference_mode(False)
    def own_vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N K S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u for each column u, in reverse mode: one backward pass per column, no Jacobian (but see `jvp`)."""
        check_cotangents(cotangents, num_examples(inputs), self.num_outputs)
        if cotangents.shape[-1] > 2 * self.num_outputs or differentiable(inputs):
            return super().own_vjp(inputs, cotangents.to(self.anchor.dtype))
        total = self.anchor.new_zeros(self.num_weights, cotangents.shape[-1])
        for part, own in self._passes(inputs, self._pull_ones, 3 * total.nbytes):
            total += pulled(self.network, self.anchor, own, cotangents[part])
            del own
        return total

    @torch.inference_mode(False)
    def residual_curvature(
        self, inputs: Inputs, residual: Float[Tensor, "N K"], vectors: Float[Tensor, "P S"]
    ) -> Float[Tensor, "P S"]:
        """Σᵢ (∇²_ww f_w(xᵢ) · rᵢ) v, the second term of the Hessian in Eq. (6)."""

        def curved_by_ones(few: Inputs) -> Tensor:
            ones = residual.new_ones(num_examples(few), self.num_outputs)
            return curved(self.network, self.anchor, few, ones, vectors[:, :1])

        total = torch.zeros_like(vectors)
        for part, own in self._passes(inputs, curved_by_ones, 3 * total.nbytes, "second derivatives"):
            total += curved(self.network, self.anchor, own, residual[part], vectors)
            del own
        return self.team.sum(total)

    def _passes(
        self, inputs: Inputs, work: Callable[[Inputs], object], held: int = 0, name: str = ""
    ) -> Iterator[tuple[slice, Inputs]]:
        """Batches for plain passes such as `work` that stay within the budget together with `held` bytes."""
        if num_examples(inputs) == 1:
            return in_parts(inputs, [slice(0, 1)])
        return self._batches(inputs, self._pass_need(inputs, work, name), held)

    def _forward_mode_passes(self, inputs: Inputs, held: int) -> Iterator[tuple[slice, Inputs]]:
        """Batches for passes in forward mode, which cannot be watched while they run.

        Inside a dispatch mode, torch crashes in the forward mode of some functions (addcmul and addcdiv with value=).
        A pass in forward mode holds outputs and tangents of a few layers: at most three times what a forward pass
        needs, or what a backward pass needs, whichever is more.
        """
        if num_examples(inputs) == 1:
            return in_parts(inputs, [slice(0, 1)])
        with torch.no_grad():
            forward = self._pass_need(inputs, self._forward, "forward").times(3.0)
        backward = self._pass_need(inputs, self._pull_ones)
        return self._batches(inputs, Peak((*forward.curves, *backward.curves)), held)

    @torch.inference_mode(False)
    def _pass_need(self, inputs: Inputs, work: Callable[[Inputs], object], name: str = "") -> Peak:
        """The memory of a pass such as `work` through n examples."""

        def measure() -> Peak:
            three = first_few(inputs, MORE)
            return peak_of(lambda few: work(take(three, torch.arange(few, device="cpu"))))

        return self.knowledge.find(("pass", name or work.__name__, self.kind(inputs)), measure)

    def _batches(self, inputs: Inputs, need: Peak, held: int) -> Iterator[tuple[slice, Inputs]]:
        """As many examples at a time as fit into the budget together with `held` bytes."""
        budget, what = self.budget(), "A pass of a single example through the network"
        require(need.plus(held)(1), budget, f"{what}, with the result," if held else what, FEWER)
        give_back(budget)
        most = need.times(_SLACK).plus(held).most(room(budget, held))
        size = max(1, min(most, _PASS, most_at_once(inputs)))
        return sparing(in_parts(inputs, list(chunks(num_examples(inputs), size))), budget)

    @contextmanager
    def unchecked(self) -> Iterator[None]:
        """A context in which factors are made only to measure memory: an engine that checks some chunks does not."""
        yield

    def checked(self, trial: MemoryTrial) -> MemoryTrial:
        """A trial with the memory that such checks need."""
        return trial

    def _forward(self, inputs: Inputs) -> Float[Tensor, "n K"]:
        return self.network(self.anchor, inputs)

    def _pull_ones(self, inputs: Inputs) -> Float[Tensor, "P 1"]:
        ones = self.anchor.new_ones(num_examples(inputs), self.num_outputs, 1)
        return pulled(self.network, self.anchor, inputs, ones)

    def _push(self, inputs: Inputs, vector: Float[Tensor, " P"]) -> Float[Tensor, "N K"]:
        return pushed(self.network, self.anchor, inputs, vector)

    def _has_forward_mode(self, inputs: Inputs) -> bool:
        """Whether forward mode works for inputs of this form, and agrees with a backward pass.

        It is not used inside a dispatch mode of the user's: see `_forward_mode_passes`.
        """
        if _get_current_dispatch_mode() is not None:
            return False
        return self.knowledge.find(("forward mode", form(inputs)), lambda: self._try_forward_mode(inputs))

    def _try_forward_mode(self, inputs: Inputs) -> bool:
        few = probed(inputs)
        cotangents, vector = probe_vectors(self.anchor, num_examples(few), self.num_outputs)
        found = attempt(lambda: self._push(few, vector))
        return found is not None and all(
            close((found[one] * cotangents[one, :, 0]).sum(), self._pulled_plainly(few, cotangents, one)[:, 0] @ vector)
            for one in range(num_examples(few))
        )

    def _pulled_plainly(self, inputs: Inputs, cotangents: Float[Tensor, "n K R"], one: int) -> Float[Tensor, "P R"]:
        """Jᵀu of one example by plain backward passes."""
        own = slice(one, one + 1)
        return pulled(self.network, self.anchor, take(inputs, own), cotangents[own])

    @torch.inference_mode(False)
    def _first_gradient(self, inputs: Inputs) -> Float[Tensor, " P"]:
        """Jᵀu of the first example by a plain backward pass, with errors that say why there is none."""
        cotangent, _ = probe_vectors(self.anchor, 1, self.num_outputs)
        try:
            with derivatives_watched():
                return self._pulled_plainly(inputs, cotangent, 0)[:, 0]
        except RuntimeError as error:
            if "use_reentrant" in str(error):
                raise NetworkError(REENTRANT) from error
            if "inplace operation" in str(error):
                raise NetworkError(
                    f"network: it changes a tensor in place after a layer has used it ({error}), so the layer has no "
                    "derivative. Look for x.mul_(…), x += … or inplace=True on tensors that were used before."
                ) from error
            raise NetworkError(
                f"network: its outputs do not depend on its trainable weights in a differentiable way ({error}). "
                "Look for (a) detach(), .data, no_grad or argmax in forward, (b) layers without a derivative."
            ) from error

    def checked_new(self, inputs: Inputs) -> Inputs:
        """Inputs that the network has not seen, with their graph; none of them may depend on the others.

        Code such as `if x.max() > 1: x = x / 255` treats some batches differently, which training data may not show.
        """
        inputs = self.network.check_inputs(check_inputs(inputs), keep_graph=True)
        if num_examples(inputs) > 1 and not self.network.separate:
            self.network.check_company(detached(inputs), self.outputs, self.rounding_scale, _NEW)
        return inputs

    @torch.inference_mode(False)
    def _check_company(self, inputs: Inputs) -> float:
        """`rounding_scale`; reject a network whose derivatives depend on other examples, even if its outputs hide it.

        Jᵀu of a few examples in one pass is compared with the sum of those of each example alone. Rounding may move a
        few units of a large network across a kink, so the norms decide, with a share of 2e-5 (float32: 8e-3).
        """
        few = take(inputs, slice(0, _FEW))
        count = num_examples(few)
        cotangents, _ = probe_vectors(self.anchor, count, self.num_outputs)
        together = pulled(self.network, self.anchor, few, cotangents)
        alone = torch.stack([self._pulled_plainly(few, cotangents, one) for one in range(count)])
        gap, size = (together - alone.sum(0)).norm(), alone.flatten(1).norm(dim=1).sum()
        if gap > torch.finfo(gap.dtype).eps ** 0.3 * size:
            raise NetworkError(
                "network: the derivatives of the output for one example depend on the rest of the batch, although the "
                "outputs do not. Look for forward code that mixes examples, such as x.mean(0) or x - x[:1]."
            )
        return (alone.abs() * self.anchor.abs()[:, None]).sum((1, 2)).max().item()

    def _check_dependence(self, inputs: Inputs) -> None:
        """Reject a network whose outputs do not depend on any weight (rounding in forward, dead units)."""
        if not self.vjp(inputs, self.anchor.new_ones(num_examples(inputs), self.num_outputs, 1)).any():
            raise NetworkError(
                "network: no trainable weight changes the outputs: all derivatives are zero on the first examples. "
                "Look for (a) round(), sign() or argmax in forward, (b) units that are all dead, (c) layers frozen "
                "by mistake."
            )


def _each(work: Callable[[Inputs], Tensor], passes: Iterator[tuple[slice, Inputs]]) -> Iterator[Tensor]:
    """The result of the work for each batch."""
    try:
        for _, own in passes:
            result = work(own)
            del own
            yield result
            del result
    finally:
        passes.close()  # pyright: ignore[reportAttributeAccessIssue]
