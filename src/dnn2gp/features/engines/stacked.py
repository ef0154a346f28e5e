"""The Jacobians at S weights: stacked, as Appendix A.2 has them for S samples of q_t, or averaged (Appendix B.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.features.checks import Cotangents, check_cotangents, check_vectors, resolved
from dnn2gp.features.engines.network_features import NetworkFeatures
from dnn2gp.features.factors import Factors
from dnn2gp.features.feature_map import FeatureMap
from dnn2gp.network import Network
from dnn2gp.network.inputs import Inputs, num_examples
from dnn2gp.support.errors import InputError


class _SeveralMaps(FeatureMap):
    """Features composed of the Jacobians of one network at S weights."""

    def __init__(self, maps: Sequence[NetworkFeatures]) -> None:
        """One map for each of the S weights, all of one network."""
        if not maps:
            raise InputError("maps: expected the features at one or more samples; got none.")
        first = maps[0]
        self.maps = tuple(maps)
        self.anchor, self.memory_budget, self.knowledge = first.anchor, first.memory_budget, first.knowledge
        self.num_weights, self.num_outputs = first.num_weights, first.num_outputs
        self.fewest, self.team = max(each.fewest for each in maps), first.team

    @property
    def name(self) -> str:
        return f"{type(self).__name__} of {len(self.maps)}"

    @property
    def network(self) -> Network:
        """f_w(x), the same for all maps."""
        return self.maps[0].network

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.maps)} × {self.maps[0]!r})"

    def check(self, inputs: Inputs) -> Inputs:
        return self.maps[0].check(inputs)

    def checked_new(self, inputs: Inputs) -> Inputs:
        """See `NetworkFeatures.checked_new`."""
        return self.maps[0].checked_new(inputs)

    def least_bytes(self, inputs: Inputs, num_rows: int) -> int:
        return num_rows * self.anchor.nbytes

    def operations(self, inputs: Inputs, num_rows: int) -> float:
        return 6.0 * num_rows * self.num_weights * len(self.maps)


class StackedFeatures(_SeveralMaps):
    """φ(x)ᵀ = [J_{w₁}(x); …; J_{w_S}(x)] ∈ R^{SK×P}: the features of the linear model of Theorem 2 with S samples."""

    def __init__(self, maps: Sequence[NetworkFeatures]) -> None:
        """One map for each of the S weights, all of one network."""
        super().__init__(maps)
        self.num_outputs = len(maps) * maps[0].num_outputs

    def outputs(self, inputs: Inputs) -> Float[Tensor, "N SK"]:
        """f_{w_s}(x) of each sample, side by side."""
        return torch.cat([each.outputs(inputs) for each in self.maps], 1)

    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None, *, apart: bool = False) -> Factors:
        """The rows of all maps, which share no factors: layers have different inputs at different weights."""
        if cotangents is None:
            return Factors.of_rows(torch.cat([each.factors(inputs).rows() for each in self.maps], 1))
        if not isinstance(cotangents, Tensor):
            cotangents = resolved(cotangents, self.outputs(inputs))
        pieces = self._split(cotangents)
        rows = self.maps[0].factors(inputs, pieces[0]).rows()
        for each, own in zip(self.maps[1:], pieces[1:], strict=True):
            rows = rows + each.factors(inputs, own).rows()
        return Factors.of_rows(rows)

    def jvp(self, inputs: Inputs, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "N SK S"]:
        """J v of each map."""
        check_vectors(vectors, self.num_weights)
        return torch.cat([each.jvp(inputs, vectors) for each in self.maps], 1)

    def own_vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N SK S"]) -> Float[Tensor, "P S"]:
        """Σ_s J_sᵀ u_s."""
        check_cotangents(cotangents, num_examples(inputs), self.num_outputs)
        pulled = [each.own_vjp(inputs, own) for each, own in zip(self.maps, self._split(cotangents), strict=True)]
        return torch.stack(pulled).sum(0)

    def _split(self, columns: Float[Tensor, "N SK R"]) -> list[Float[Tensor, "N K R"]]:
        return [own.contiguous() for own in columns.split(self.maps[0].num_outputs, 1)]


class AveragedFeatures(_SeveralMaps):
    """φ(x)ᵀ = (1/S) Σ_s J_{w_s}(x): the features of the average of S maps, for the predictions of Appendix B.3."""

    def outputs(self, inputs: Inputs) -> Float[Tensor, "N K"]:
        """The average of f_{w_s}(x)."""
        return torch.stack([each.outputs(inputs) for each in self.maps]).mean(0)

    def factors(self, inputs: Inputs, cotangents: Cotangents | None = None, *, apart: bool = False) -> Factors:
        """The average of the rows."""
        if cotangents is not None and not isinstance(cotangents, Tensor):
            cotangents = resolved(cotangents, self.outputs(inputs))
        rows = self.maps[0].factors(inputs, cotangents).rows()
        for each in self.maps[1:]:
            rows = rows + each.factors(inputs, cotangents).rows()
        return Factors.of_rows(rows / len(self.maps))

    def jvp(self, inputs: Inputs, vectors: Float[Tensor, "P S"]) -> Float[Tensor, "N K S"]:
        """J v, averaged."""
        return torch.stack([each.jvp(inputs, vectors) for each in self.maps]).mean(0)

    def own_vjp(self, inputs: Inputs, cotangents: Float[Tensor, "N K S"]) -> Float[Tensor, "P S"]:
        """Jᵀ u, averaged."""
        return torch.stack([each.own_vjp(inputs, cotangents) for each in self.maps]).mean(0)
