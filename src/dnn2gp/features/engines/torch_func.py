"""The general engine: the Jacobian by torch.func, or by one backward pass a row where a layer has no batching rule."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jacrev, vjp, vmap

from dnn2gp.features.budget.footprint import Footprint
from dnn2gp.features.cotangents import Cotangents, resolved
from dnn2gp.features.engines.network_features import NetworkFeatures, attempt, close, probe_vectors, pull
from dnn2gp.features.factors import Factors
from dnn2gp.network.inputs import Inputs, differentiable, map_inputs, num_examples, take


class JacobianFeatures(NetworkFeatures):
    """J_w(x) itself, for any network: R · P numbers an example."""

    @torch.inference_mode(False)
    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None, *, apart: bool = False) -> Factors:
        """One block with the rows of J, or of UᵀJ.

        Where the result is to be differentiated once more, by plain backward passes: torch.func leaves out terms there
        for some layers (LayerNorm).
        """
        if cotangents is not None and not isinstance(cotangents, Tensor):
            cotangents = resolved(cotangents, self.outputs(inputs))
        if not self.batched or differentiable(inputs):
            return Factors.of_rows(self._looped(inputs, cotangents))
        with torch.no_grad():
            if cotangents is None or cotangents.shape[2] > self.num_outputs:
                rows = vmap(jacrev(self._single), in_dims=(None, 0))(self.anchor, inputs)
                return Factors.of_rows(rows if cotangents is None else cotangents.mT.to(rows.dtype) @ rows)
            return Factors.of_rows(vmap(self._pulled)(inputs, cotangents.mT.to(self.anchor.dtype)))

    def footprint(self, inputs: Inputs, num_rows: int) -> Footprint:
        """R · P numbers."""
        rows = self.anchor.element_size() * num_rows * self.num_weights
        return Footprint(rows, rows, 6.0 * num_rows * self.num_weights)

    def _single(self, weights: Tensor, example: Inputs) -> Tensor:
        return self.network(weights, map_inputs(lambda leaf: leaf.unsqueeze(0), example)).squeeze(0)

    def _pulled(self, example: Inputs, cotangents: Float[Tensor, "R K"]) -> Float[Tensor, "R P"]:
        pulled = vjp(lambda w: self._single(w, example), self.anchor)[1]
        return vmap(pulled)(cotangents)[0]

    def _looped(self, inputs: Inputs, cotangents: Float[Tensor, "N K R"] | None) -> Float[Tensor, "N R P"]:
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

    def _probe_passes(self, example: Inputs) -> Float[Tensor, " P"]:
        """Find out on one example whether torch.func can batch this network."""
        plain = super()._probe_passes(example)
        cotangent, _ = probe_vectors(self.anchor, self.num_outputs)
        self.batched = True
        rows = attempt(lambda: self.factors(example, cotangent).rows())
        self.batched = rows is not None and close(rows[0, 0], plain)
        return plain
