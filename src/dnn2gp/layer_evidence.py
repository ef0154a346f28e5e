"""The evidence with a δ for each layer and a σ for each output, from per-layer kernels or per-output precisions.

With K_l = SᵀJ_l J_lᵀS the kernel of layer l, c_l multiples of δ and s_k multiples of σ, in function space

    A = diag(s²) + Σ_l K_l / c_l            log |A|, and for a Gaussian likelihood ỹᵀA⁻¹ỹ,

and in weight space, with G_k = J_kᵀΛ_k J_k of output k,

    Σ̃⁻¹ = Σ_k G_k / s_k² + diag(c).

A point costs a Cholesky factorisation of the smaller one; gradients come by automatic differentiation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.errors import InputError
from dnn2gp.evidence_function import EvidenceFunction, positive
from dnn2gp.expansion import Expansion
from dnn2gp.features import FactoredJacobian, NetworkFeatures
from dnn2gp.inference import FunctionSpace, choose_space
from dnn2gp.layout import Layout
from dnn2gp.linear_model import LinearModel
from dnn2gp.memory import require
from dnn2gp.spectrum import Spectrum, check_plain_prior, site_constant, white_residual
from dnn2gp.structures import cholesky

_KNOB = "Raise the prior precision δ or the noise σ, or use float64."


@final
class LayerEvidence(EvidenceFunction):
    """One c a layer (in the order of `layers`) and one s, or one an output."""

    def __init__(self, model: LinearModel, layout: Layout, *, per_layer: bool = True, per_output: bool = False) -> None:
        """Kernels or precisions of each layer, made once; without `per_layer`, one c for all weights."""
        expansion = check_plain_prior(model)
        if not isinstance(expansion.features, NetworkFeatures):
            raise InputError("A δ for each layer is tuned with Gauss-Newton's features, not with gradient features.")
        groups = list(layout.layers.values()) if per_layer else [list(range(len(layout.names)))]
        self.layers = tuple(layout.layers) if per_layer else ("all layers",)
        self.num_precisions = len(groups)
        outputs = expansion.root.shape[2]
        self.num_noises = (outputs if per_output else 1) if expansion.quadratic else 0
        self._spectrum = Spectrum.of(model)
        kind = _FunctionSide if choose_space(model) is FunctionSpace else _WeightSide
        self._side = kind.of(model, layout, groups, max(1, self.num_noises))

    def __call__(
        self, precision_scale: Float[Tensor, "..."] | float, noise_scale: Float[Tensor, "..."] | float = 1.0
    ) -> Float[Tensor, ""]:
        """The log evidence with c_l δ₀ on layer l and s_k σ₀ on output k."""
        c = positive(precision_scale, "precision_scale").expand(self.num_precisions)
        s = positive(noise_scale, "noise_scale").expand(max(1, self.num_noises))
        if self.num_noises == 0 and bool((s != 1).any()):
            raise InputError("noise_scale: only a Gaussian likelihood has a noise to tune; leave it at 1.")
        return self._side.value(c, s)

    def start(self, noise: bool, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """The best single δ and σ."""
        best = self._spectrum.maximise(noise=noise, bounds=bounds)
        return best.precision_scale.expand(self.num_precisions), best.noise_scale.expand(max(1, self.num_noises))


@dataclass(frozen=True, eq=False)
class _FunctionSide:
    """A = diag(s²) + Σ_l K_l / c_l, in units of the noise σ₀."""

    kernels: Float[Tensor, "L M M"]
    penalties: Float[Tensor, " L"]
    """w_lᵀ V_l⁻¹ w_l."""
    outputs: Float[Tensor, " M"] | None
    """ỹ, for a Gaussian likelihood."""
    fit: float
    """log p(D|w), or for a Gaussian likelihood log |S| − (M/2) log 2π."""

    @staticmethod
    def of(model: LinearModel, layout: Layout, layers: list[list[int]], outputs: int) -> _FunctionSide:
        expansion, count = model.expansion, model.expansion.num_sites
        _require((len(layers) + 3) * count**2, expansion)
        precision = model.prior.precision.double()
        features = expansion.features
        assert isinstance(features, NetworkFeatures)
        kernels = []
        for members in layers:
            names = [layout.names[position] for position in members]
            own = features.restricted(names, expansion.inputs)
            values = torch.cat([precision.diagonal()[layout.ranges[name]] for name in own.network.layout.names])
            rows = FactoredJacobian(
                own, expansion.inputs, expansion.root, type(precision)(values), torch.float64, reserve=3 * 8 * count**2
            )
            kernels.append(rows.gram())
        squares = (precision.diagonal() * expansion.anchor.double().square()).split(layout.sizes)
        penalties = torch.stack([torch.stack([squares[each].sum() for each in members]).sum() for members in layers])
        if not expansion.quadratic:
            return _FunctionSide(torch.stack(kernels), penalties, None, expansion.log_likelihood.item())
        white = white_residual(expansion)
        linear = features.jvp(expansion.inputs, expansion.anchor[:, None]).double()
        transformed = (expansion.root.double().mT @ linear).reshape(-1) - white
        return _FunctionSide(torch.stack(kernels), penalties, transformed, site_constant(expansion, white))

    def value(self, c: Float[Tensor, " L"], s: Float[Tensor, " K"]) -> Float[Tensor, ""]:
        count = self.kernels.shape[1]
        matrix = torch.tensordot(c.reciprocal(), self.kernels, 1)
        factor = cholesky(matrix + s.square().repeat(count // len(s)).diag(), "I + SᵀKS", _KNOB)
        half_log_det = factor.diagonal().log().sum()
        if self.outputs is None:
            return self.fit - 0.5 * (c * self.penalties).sum() - half_log_det
        white = torch.linalg.solve_triangular(factor, self.outputs[:, None], upper=False)
        return self.fit - 0.5 * white.square().sum() - half_log_det


@dataclass(frozen=True, eq=False)
class _WeightSide:
    """Σ̃⁻¹ = Σ_k G_k / s_k² + V⁻¹ diag(c)."""

    matrices: Float[Tensor, "K P P"]
    pulled: Float[Tensor, "K P"]
    """J_kᵀ r_k."""
    weights: Float[Tensor, " P"]
    precision: Float[Tensor, " P"]
    misfits: Float[Tensor, " K"]
    """Σᵢ r_ik² / Λ_k."""
    layer: Int[Tensor, " P"]
    """The layer of each weight."""
    sites: int
    """Of each output (or of all, if they share s)."""
    quadratic: bool
    fit: float

    @staticmethod
    def of(model: LinearModel, layout: Layout, layers: list[list[int]], groups: int) -> _WeightSide:
        expansion = model.expansion
        features, inputs, root = expansion.features, expansion.inputs, expansion.root
        size = features.num_weights
        _require((groups + 4) * size**2, expansion)
        columns = [slice(None)] if groups == 1 else [slice(k, k + 1) for k in range(groups)]
        matrices, pulled = [], []
        for own in columns:
            matrices.append(features.ggn(inputs, root[:, :, own]).double())
            residual = torch.zeros_like(expansion.residual)
            residual[:, own if groups > 1 else slice(None)] = expansion.residual[:, own if groups > 1 else slice(None)]
            pulled.append(features.vjp(inputs, residual[..., None])[:, 0].double())
        fit, misfits = expansion.log_likelihood.item(), torch.zeros(groups, dtype=torch.float64)
        if expansion.quadratic:
            white = white_residual(expansion)
            fit = site_constant(expansion, white)
            misfits = white.reshape(-1, groups).square().sum(0) if groups > 1 else white.square().sum()[None]
        return _WeightSide(
            torch.stack(matrices),
            torch.stack(pulled),
            expansion.anchor.double(),
            model.prior.precision.double().diagonal(),
            misfits,
            _layer_of_weight(layout, layers),
            expansion.num_sites // groups,
            expansion.quadratic,
            fit,
        )

    def value(self, c: Float[Tensor, " L"], s: Float[Tensor, " K"]) -> Float[Tensor, ""]:
        prior = c[self.layer] * self.precision
        noise = s.square().reciprocal()
        matrix = torch.tensordot(noise, self.matrices, 1) + prior.diag()
        factor = cholesky(matrix, "The precision of the weights", _KNOB)
        half_log_det = factor.diagonal().log().sum() - 0.5 * prior.log().sum()
        value = self.fit - 0.5 * (prior * self.weights.square()).sum() - half_log_det
        if not self.quadratic:
            return value
        gradient = noise @ self.pulled + prior * self.weights
        white = torch.linalg.solve_triangular(factor, gradient[:, None], upper=False)
        fit = -0.5 * (self.misfits * noise).sum() - self.sites * s.log().sum()
        return value + fit + 0.5 * white.square().sum()


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
