"""The evidence with one δ per layer and one σ per output.

With K_l = SᵀJ_l J_lᵀS the kernel of layer l, c_l multiples of δ and s_k multiples of σ, in function space

    A = diag(s²) + Σ_l K_l / c_l            log |A|, and for a Gaussian likelihood ỹᵀA⁻¹ỹ,

and in weight space, with G_k = J_kᵀΛ_k J_k of output k,

    Σ̃⁻¹ = Σ_k G_k / s_k² + diag(c).

Each evaluation needs one Cholesky factorisation; gradients come from automatic differentiation.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.evidence.function import EvidenceFunction, positive
from dnn2gp.evidence.spectrum import Spectrum, check_plain_prior
from dnn2gp.features import NetworkFeatures
from dnn2gp.inference import Groups, Inference, LinearModel
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import InputError
from dnn2gp.weights.expansion import Expansion


@final
class LayerEvidence(EvidenceFunction):
    """The evidence as a function of one c per layer (in the order of `layers`) and of one s, or one s per output."""

    def __init__(
        self,
        model: LinearModel,
        inference: Inference,
        layout: Layout,
        *,
        per_layer: bool = True,
        per_output: bool = False,
        at_weights: bool = False,
    ) -> None:
        """Compute the matrices of all layers or outputs once; without `per_layer`, one c applies to all weights.

        `at_weights`: use the Laplace evidence at fixed weights, for a Gaussian likelihood too.
        """
        expansion = check_plain_prior(model)
        if not isinstance(expansion.features, NetworkFeatures):
            raise InputError(
                "per_layer: one δ per layer can be tuned with Gauss-Newton features, but not with gradient features."
            )
        groups = Groups.of(layout, per_layer)
        self.layers = tuple(layout.layers) if per_layer else ("all layers",)
        self.num_precisions = len(groups)
        outputs = expansion.root.shape[2]
        self.num_noises = (outputs if per_output else 1) if expansion.quadratic else 0
        self._terms = inference.grouped_terms(model, groups, max(1, self.num_noises))
        self._at_weights = at_weights or not expansion.quadratic
        self._spectrum = Spectrum.of(model, inference, at_weights=at_weights)
        self._fit = _Misfit.of(expansion, max(1, self.num_noises))
        squares = model.prior.precision.double().diagonal() * expansion.anchor.double().square()
        self._penalties = squares.new_zeros(len(groups)).index_add(0, groups.of_weights(squares.device), squares)

    def __call__(
        self, precision_scale: Float[Tensor, "..."] | float, noise_scale: Float[Tensor, "..."] | float = 1.0
    ) -> Float[Tensor, ""]:
        """The log evidence with c_l δ₀ on layer l and s_k σ₀ on output k."""
        c = positive(precision_scale, "precision_scale").expand(self.num_precisions)
        s = positive(noise_scale, "noise_scale").expand(max(1, self.num_noises))
        if self.num_noises == 0 and bool((s != 1).any()):
            raise InputError("noise_scale: only a Gaussian likelihood has a noise level to tune. Leave it at 1.")
        half_log_det, squares = self._terms.terms(c, s, self._fit.misfits)
        if self._at_weights:
            squares = (self._fit.misfits / s.square()).sum() + (c * self._penalties).sum()
        return self._fit.constant - 0.5 * squares - half_log_det - self._fit.sites * s.log().sum()

    def start(self, precision: bool, noise: bool, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """The best single δ and σ."""
        best = self._spectrum.maximise(precision=precision, noise=noise, bounds=bounds)
        return best.precision_scale.expand(self.num_precisions), best.noise_scale.expand(max(1, self.num_noises))

    def limits(self, begin: Float[Tensor, " n"], limits: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """Four decades around the best single δ and around the best single σ², so that matrices stay regular."""
        width = torch.full_like(begin, log(1e4))
        width[self.num_precisions :] /= 2
        around = torch.stack([begin - width, begin + width], 1)
        return torch.stack([torch.maximum(around[:, 0], limits[:, 0]), torch.minimum(around[:, 1], limits[:, 1])], 1)


@final
@dataclass(frozen=True, eq=False)
class _Misfit:
    """log p(D|w) = constant − ½ Σ_k misfits_k / s_k² − sites Σ_k log s_k."""

    constant: float
    misfits: Float[Tensor, " K"]
    sites: int
    """The sites of each output, or of all outputs if they share s; 0 where there is no s."""

    @staticmethod
    def of(expansion: Expansion, groups: int) -> _Misfit:
        if not expansion.quadratic:
            return _Misfit(expansion.log_likelihood.item(), torch.zeros(1, dtype=torch.float64), 0)
        white = expansion.white_residual()
        misfits = white.reshape(-1, groups).square().sum(0) if groups > 1 else white.square().sum()[None]
        misfits = expansion.team.sum(misfits)
        return _Misfit(expansion.site_constant(), misfits, expansion.num_sites // groups)
