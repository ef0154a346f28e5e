"""The evidence with a δ for each layer and a σ for each output, from per-layer kernels or per-output precisions.

With K_l = SᵀJ_l J_lᵀS the kernel of layer l, c_l multiples of δ and s_k multiples of σ, in function space

    A = diag(s²) + Σ_l K_l / c_l            log |A|, and for a Gaussian likelihood ỹᵀA⁻¹ỹ,

and in weight space, with G_k = J_kᵀΛ_k J_k of output k,

    Σ̃⁻¹ = Σ_k G_k / s_k² + diag(c).

A point costs a Cholesky factorisation of the smaller one; gradients come by automatic differentiation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.evidence.function import EvidenceFunction, positive
from dnn2gp.evidence.spectrum import Spectrum, check_plain_prior, site_constant, white_residual
from dnn2gp.features import FactoredJacobian, NetworkFeatures
from dnn2gp.inference import FunctionSpace, choose_space
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.network.layout import Layout
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import require
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.linalg import cholesky
from dnn2gp.weights.structures import DiagonalPrecision

_KNOB = "Raise the prior precision δ or the noise σ, or use float64."


@final
class LayerEvidence(EvidenceFunction):
    """One c a layer (in the order of `layers`) and one s, or one an output."""

    def __init__(
        self,
        model: LinearModel,
        layout: Layout,
        *,
        per_layer: bool = True,
        per_output: bool = False,
        at_weights: bool = False,
    ) -> None:
        """Kernels or precisions of each layer, made once; without `per_layer`, one c for all weights.

        `at_weights`: the Laplace evidence, with the weights where they are, for a Gaussian likelihood too.
        """
        expansion = check_plain_prior(model)
        if not isinstance(expansion.features, NetworkFeatures):
            raise InputError("A δ for each layer is tuned with Gauss-Newton's features, not with gradient features.")
        groups = list(layout.layers.values()) if per_layer else [list(range(len(layout.names)))]
        self.layers = tuple(layout.layers) if per_layer else ("all layers",)
        self.num_precisions = len(groups)
        outputs = expansion.root.shape[2]
        self.num_noises = (outputs if per_output else 1) if expansion.quadratic else 0
        self._at_weights = at_weights or not expansion.quadratic
        self._spectrum = Spectrum.of(model, at_weights=at_weights)
        self._fit = _Misfit.of(expansion, max(1, self.num_noises))
        squares = model.prior.precision.double().diagonal() * expansion.anchor.double().square()
        layer = _layer_of_weight(layout, groups).to(squares.device)
        self._penalties = squares.new_zeros(len(groups)).index_add(0, layer, squares)
        if choose_space(model) is FunctionSpace:
            self._side: _Space = _FunctionSide.of(model, layout, groups)
        else:
            self._side = _WeightSide.of(model, layer, max(1, self.num_noises))

    def __call__(
        self, precision_scale: Float[Tensor, "..."] | float, noise_scale: Float[Tensor, "..."] | float = 1.0
    ) -> Float[Tensor, ""]:
        """The log evidence with c_l δ₀ on layer l and s_k σ₀ on output k."""
        c = positive(precision_scale, "precision_scale").expand(self.num_precisions)
        s = positive(noise_scale, "noise_scale").expand(max(1, self.num_noises))
        if self.num_noises == 0 and bool((s != 1).any()):
            raise InputError("noise_scale: only a Gaussian likelihood has a noise to tune; leave it at 1.")
        half_log_det, squares = self._side.terms(c, s, self._fit.misfits)
        if self._at_weights:
            squares = (self._fit.misfits / s.square()).sum() + (c * self._penalties).sum()
        return self._fit.constant - 0.5 * squares - half_log_det - self._fit.sites * s.log().sum()

    def start(self, precision: bool, noise: bool, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """The best single δ and σ."""
        best = self._spectrum.maximise(precision=precision, noise=noise, bounds=bounds)
        return best.precision_scale.expand(self.num_precisions), best.noise_scale.expand(max(1, self.num_noises))

    def limits(self, begin: Float[Tensor, " n"], limits: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """Four decades about the best single δ, and about the square of the best single σ: matrices stay regular."""
        width = torch.full_like(begin, log(1e4))
        width[self.num_precisions :] /= 2
        around = torch.stack([begin - width, begin + width], 1)
        return torch.stack([torch.maximum(around[:, 0], limits[:, 0]), torch.minimum(around[:, 1], limits[:, 1])], 1)


@dataclass(frozen=True, eq=False)
class _Misfit:
    """log p(D|w) = constant − ½ Σ_k misfits_k / s_k² − sites Σ_k log s_k."""

    constant: float
    misfits: Float[Tensor, " K"]
    sites: int
    """Of each output, or of all if they share s; 0 where there is no s."""

    @staticmethod
    def of(expansion: Expansion, groups: int) -> _Misfit:
        if not expansion.quadratic:
            return _Misfit(expansion.log_likelihood.item(), torch.zeros(1, dtype=torch.float64), 0)
        white = white_residual(expansion)
        misfits = white.reshape(-1, groups).square().sum(0) if groups > 1 else white.square().sum()[None]
        return _Misfit(site_constant(expansion, white), misfits, expansion.num_sites // groups)


class _Space(ABC):
    """One of the two spaces."""

    @abstractmethod
    def terms(
        self, c: Float[Tensor, " L"], s: Float[Tensor, " K"], misfits: Float[Tensor, " K"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """½ log |I + SᵀKS|, and for a Gaussian likelihood ỹᵀ(s²I + ΦΦᵀ/c)⁻¹ỹ."""


@final
@dataclass(frozen=True, eq=False)
class _FunctionSide(_Space):
    """A = diag(s²) + Σ_l K_l / c_l, in units of the noise σ₀."""

    kernels: Float[Tensor, "L M M"]
    outputs: Float[Tensor, " M"]
    """ỹ, for a Gaussian likelihood; else zeros."""

    @staticmethod
    def of(model: LinearModel, layout: Layout, layers: list[list[int]]) -> _FunctionSide:
        expansion, count = model.expansion, model.expansion.num_sites
        _require((len(layers) + 3) * count**2, expansion)
        precision, features = model.prior.precision.double().diagonal(), expansion.features
        assert isinstance(features, NetworkFeatures)
        kernels = []
        for members in layers:
            own = features.restricted([layout.names[position] for position in members], expansion.inputs)
            values = torch.cat([precision[layout.ranges[name]] for name in own.network.layout.names])
            rows = FactoredJacobian(
                own,
                expansion.inputs,
                expansion.root,
                DiagonalPrecision(values),
                torch.float64,
                reserve=3 * 8 * count**2,
            )
            kernels.append(rows.gram())
        outputs = torch.zeros(count, dtype=torch.float64, device=precision.device)
        if expansion.quadratic:
            linear = features.jvp(expansion.inputs, expansion.anchor[:, None]).double()
            outputs = (expansion.root.double().mT @ linear).reshape(-1) - white_residual(expansion)
        return _FunctionSide(torch.stack(kernels), outputs)

    def terms(
        self, c: Float[Tensor, " L"], s: Float[Tensor, " K"], misfits: Float[Tensor, " K"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """From one Cholesky factorisation of A."""
        noise = s.square().repeat(len(self.outputs) // len(s))
        matrix = torch.tensordot(c.reciprocal(), self.kernels, 1) + noise.diag()
        factor = cholesky(matrix, "I + SᵀKS", _KNOB)
        white = torch.linalg.solve_triangular(factor, self.outputs[:, None], upper=False)
        return factor.diagonal().log().sum() - 0.5 * noise.log().sum(), white.square().sum()


@final
@dataclass(frozen=True, eq=False)
class _WeightSide(_Space):
    """Σ̃⁻¹ = Σ_k G_k / s_k² + V⁻¹ diag(c)."""

    matrices: Float[Tensor, "K P P"]
    pulled: Float[Tensor, "K P"]
    """J_kᵀ r_k."""
    weights: Float[Tensor, " P"]
    precision: Float[Tensor, " P"]
    layer: Int[Tensor, " P"]
    """The layer of each weight."""

    @staticmethod
    def of(model: LinearModel, layer: Int[Tensor, " P"], groups: int) -> _WeightSide:
        expansion = model.expansion
        features, inputs = expansion.features, expansion.inputs
        _require((groups + 4) * features.num_weights**2, expansion)
        matrices, pulled = [], []
        for own in [slice(None)] if groups == 1 else [slice(k, k + 1) for k in range(groups)]:
            matrices.append(features.ggn(inputs, expansion.root[:, :, own]).double())
            residual = torch.zeros_like(expansion.residual)
            residual[:, own] = expansion.residual[:, own]
            pulled.append(features.vjp(inputs, residual[..., None])[:, 0].double())
        precision = model.prior.precision.double().diagonal()
        return _WeightSide(torch.stack(matrices), torch.stack(pulled), expansion.anchor.double(), precision, layer)

    def terms(
        self, c: Float[Tensor, " L"], s: Float[Tensor, " K"], misfits: Float[Tensor, " K"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The second as the least of Σ_k ‖ỹ_k − Φ_k w‖²/s_k² + wᵀCw over w.

        So an error of the step to where it is least counts only squared, and the step need not be differentiated.
        """
        prior, noise = c[self.layer] * self.precision, s.square().reciprocal()
        matrix = torch.tensordot(noise, self.matrices, 1) + prior.diag()
        factor = cholesky(matrix, "The precision of the weights", _KNOB)
        half_log_det = factor.diagonal().log().sum() - 0.5 * prior.log().sum()
        gradient = noise @ self.pulled + prior * self.weights
        step = torch.cholesky_solve(gradient[:, None], factor)[:, 0].detach()
        bends = torch.einsum("p,kpq,q->k", step, self.matrices, step)
        left = (misfits - 2 * self.pulled @ step + bends).clamp(min=0)
        return half_log_det, (left * noise).sum() + (prior * (self.weights - step).square()).sum()


def _layer_of_weight(layout: Layout, layers: list[list[int]]) -> Int[Tensor, " P"]:
    of_tensor = torch.empty(len(layout.names), dtype=torch.long)
    for position, members in enumerate(layers):
        of_tensor[members] = position
    return of_tensor.repeat_interleave(torch.tensor(layout.sizes))


def _require(numbers: int, expansion: Expansion) -> None:
    require(
        8 * numbers,
        expansion.features.budget(),
        "A matrix for each layer or output, for an evidence with a δ for each layer",
        "Tune one δ for all layers, use fewer of the data, or take fewer layers (subset=).",
    )
