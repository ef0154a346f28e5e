"""The general engine: the Jacobian by torch.func, or row by row where a layer has no batching rule."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev, vjp, vmap

from dnn2gp.features.budget.chunked import form
from dnn2gp.features.checks import Cotangents, resolved
from dnn2gp.features.engines.network_features import NetworkFeatures
from dnn2gp.features.engines.plain_passes import attempt, close, probe_vectors, probed, pull
from dnn2gp.features.factors import Factors
from dnn2gp.network.inputs import Inputs, differentiable, map_inputs, num_examples, take
from dnn2gp.support.errors import FallbackWarning, warn_user


@final
class JacobianFeatures(NetworkFeatures):
    """J_w(x) itself, for any network: R · P numbers per example."""

    @torch.inference_mode(False)
    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None, *, apart: bool = False) -> Factors:
        """One block with the rows of J, or of UᵀJ.

        Results that are to be differentiated again come from plain backward passes: torch.func omits terms for some
        layers there (LayerNorm).
        """
        if cotangents is not None and not isinstance(cotangents, Tensor):
            cotangents = resolved(cotangents, self.outputs(inputs))
        if differentiable(inputs) or not self._is_batched(inputs):
            return Factors.of_rows(self._looped(inputs, cotangents))
        return Factors.of_rows(self._batched(inputs, cotangents))

    def least_bytes(self, inputs: Inputs, num_rows: int) -> int:
        return num_rows * self.anchor.nbytes

    def operations(self, inputs: Inputs, num_rows: int) -> float:
        return 6.0 * num_rows * self.num_weights

    def _batched(self, inputs: Inputs, cotangents: Float[Tensor, "N K R"] | None) -> Float[Tensor, "N R P"]:
        """All examples and rows at once."""
        with torch.no_grad():
            if cotangents is None or cotangents.shape[2] > self.num_outputs:
                rows = vmap(jacrev(self._single), in_dims=(None, 0))(self.anchor, inputs)
                return rows if cotangents is None else cotangents.mT.to(rows.dtype) @ rows
            return vmap(self._pulled)(inputs, cotangents.mT.to(self.anchor.dtype))

    def _single(self, weights: Tensor, example: Inputs) -> Tensor:
        return self.network(weights, map_inputs(lambda leaf: leaf.unsqueeze(0), example)).squeeze(0)

    def _pulled(self, example: Inputs, cotangents: Float[Tensor, "R K"]) -> Float[Tensor, "R P"]:
        product = vjp(lambda w: self._single(w, example), self.anchor)[1]
        return vmap(product)(cotangents)[0]

    def _looped(self, inputs: Inputs, cotangents: Float[Tensor, "N K R"] | None) -> Float[Tensor, "N R P"]:
        """One backward pass per row."""
        eye = torch.eye(self.num_outputs, dtype=self.anchor.dtype, device=self.anchor.device)
        rows = []
        for index in range(num_examples(inputs)):
            own = eye if cotangents is None else cotangents[index].T.to(eye.dtype)
            with torch.enable_grad():
                weights = self.anchor.detach().requires_grad_(True)
                outputs = self.network(weights, take(inputs, slice(index, index + 1)))[0]
                own_rows = [pull(outputs, weights, row, differentiable(inputs)) for row in own]
                rows.append(torch.stack(own_rows))
        return torch.stack(rows)

    def _is_batched(self, inputs: Inputs) -> bool:
        """Whether torch.func can batch the network for inputs of this form, and agrees with a backward pass."""
        return self.knowledge.find(("batched", form(inputs)), lambda: self._try_batched(inputs))

    def _try_batched(self, inputs: Inputs) -> bool:
        """Several examples with several cotangents, in both ways that `_batched` has.

        Some of torch's batching rules are wrong where more than one axis is batched (cdist, linalg.solve), so the axes
        are those of the work itself.
        """
        few = probed(inputs)
        count = num_examples(few)
        cotangents, _ = probe_vectors(self.anchor, count, self.num_outputs, min(2, self.num_outputs))
        rows = attempt(lambda: self._batched(few, cotangents))
        whole = attempt(lambda: cotangents.mT @ self._batched(few, None))
        if rows is None or whole is None:
            return False
        plain = torch.stack([self._pulled_plainly(few, cotangents, one).T for one in range(count)])
        agrees = close(rows, plain) and close(whole, plain)
        if not agrees:
            warn_user(
                "torch.func computes wrong derivatives for a layer of this network: they differ from those of plain "
                "backward passes. Plain passes are used instead, one per example and output, which is slower.",
                FallbackWarning,
            )
        return agrees
