"""K ≥ 2 exclusive classes with logits f: the softmax cross-entropy."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.likelihoods.base import ClassificationLikelihood, probit_scale
from dnn2gp.likelihoods.targets import describe, require, require_targets
from dnn2gp.support.errors import InputError
from dnn2gp.support.randomness import own_generator


@final
class CategoricalLikelihood(ClassificationLikelihood):
    """p(y|f) = p_y with p = softmax(f), for labels y in 0..K−1 (as a vector, y is the one-hot e_y):

        ℓ = −log p_y,   Z = 1,   r = p − e_y,   Λ = diag(p) − p pᵀ.

    Λ has rank K − 1. With the unit vector v = √p, Λ = diag(v) (I − v vᵀ) diag(v) = S Sᵀ, where S = diag(v) H and
    the K − 1 columns of H are an orthonormal basis of the complement of v. No difference of nearly equal numbers is
    taken anywhere, so S, Λ, r and ℓ keep their relative accuracy where max p rounds to 1.
    """

    name: ClassVar[str] = "categorical"
    flattens: ClassVar[bool] = False

    def check_outputs(self, shape: tuple[int, ...]) -> None:
        """Accept only one logit per class."""
        if len(shape) > 1:
            raise InputError(
                f"network: expected outputs of shape (N, K), one logit per class; got {('N', *shape)}. "
                "CategoricalLikelihood does not support one label per token or pixel: reduce the outputs to one "
                "distribution per example."
            )

    def doubt(self, outputs: Float[Tensor, "N K"]) -> str | None:
        """Outputs of a softmax are positive and sum to 1."""
        if outputs.shape[1] < 2 or outputs.min() < 0 or not torch.allclose(outputs.sum(1), outputs.new_ones(())):
            return None
        return (
            "network: the outputs look like probabilities (they are positive and sum to 1), but CategoricalLikelihood "
            "expects logits and applies softmax itself. Remove the softmax at the end of the network."
        )

    def check_targets(
        self, targets: object, num_examples: int, num_outputs: int, dtype: torch.dtype
    ) -> Int[Tensor, " N"]:
        """Integer labels 0..K−1, as (N,) int64."""
        _check_classes(num_outputs)
        given = require_targets(targets, num_examples)
        _check_labels_form(given)
        require(
            (given >= 0) & (given < num_outputs),
            given,
            f"labels 0..{num_outputs - 1} (the network has {num_outputs} outputs)",
            "Recode the labels, drop examples without one, or give the network an output for every class.",
        )
        return given.to(torch.int64)

    def loss(self, f: Float[Tensor, "N K"], y: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """ℓ = −log p_y = (f_m − f_y) + log(1 + Σ_{j≠m} e^{f_j − f_m}) with m = argmax f."""
        _check_classes(f.shape[-1])
        top = f.argmax(-1, keepdim=True)
        f_top = f.gather(-1, top)
        others = torch.exp(f - f_top).scatter(-1, top, 0.0).sum(-1)
        return (f_top - f.gather(-1, y.unsqueeze(-1))).squeeze(-1) + torch.log1p(others)

    def log_normaliser(self, f: Float[Tensor, "N K"], y: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """log Z = 0."""
        return f.new_zeros(f.shape[0])

    def mean(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """h(f) = p = softmax(f)."""
        return _root_probabilities(f).square()

    def mean_jacobian(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """∂h/∂f = diag(p) − p pᵀ = S Sᵀ = Λ: the link is canonical."""
        return self.noise_precision(f)

    def residual(self, f: Float[Tensor, "N K"], y: Int[Tensor, " N"]) -> Float[Tensor, "N K"]:
        """r_j = p_j for j ≠ y, and r_y = p_y − 1 = −Σ_{j≠y} p_j, which does not cancel where p_y rounds to 1."""
        label = y.unsqueeze(-1)
        others = self.mean(f).scatter(-1, label, 0.0)
        return others.scatter(-1, label, -others.sum(-1, keepdim=True))

    def noise_precision_root(
        self, f: Float[Tensor, "N K"], y: Int[Tensor, " N"] | None = None
    ) -> Float[Tensor, "N K K-1"]:
        """S = diag(v) H. H is the Householder reflection that swaps e_m and −v, m = argmax v, without its column m:

        H = I − u uᵀ/(1 + v_m) with u = v + e_m, so H_ij = δ_ij − c_i v_j (j ≠ m), c_m = 1, c_i = v_i/(1 + v_m).
        """
        v = _root_probabilities(f)
        top = f.argmax(-1, keepdim=True)
        columns = torch.arange(f.shape[-1] - 1, device=f.device)
        columns = columns + (columns >= top)  # N K-1: all classes but m
        identity = torch.zeros(*f.shape, f.shape[-1] - 1, dtype=f.dtype, device=f.device)
        identity = identity.scatter(-2, columns.unsqueeze(-2), 1.0)
        c = (v / (1 + v.gather(-1, top))).scatter(-1, top, 1.0)
        basis = identity - c.unsqueeze(-1) * v.gather(-1, columns).unsqueeze(-2)
        return v.unsqueeze(-1) * basis

    def noise_precision_matmul(
        self, f: Float[Tensor, "N K"], vectors: Float[Tensor, "N K"], y: Int[Tensor, " N"] | None = None
    ) -> Float[Tensor, "N K"]:
        """Λ u = p ∘ (u − u_m − pᵀ(u − u_m)) with m = argmax p: no K × K matrix, and no cancellation where p_m ≈ 1."""
        p = self.mean(f)
        gaps = vectors - vectors.gather(-1, f.argmax(-1, keepdim=True))
        return p * (gaps - (p * gaps).sum(-1, keepdim=True))

    def covariance(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """Cov(e_y|f) = diag(p) − p pᵀ = S Sᵀ = Λ."""
        return self.noise_precision(f)

    def probit(self, f_mean: Float[Tensor, "N K"], f_covariance: Float[Tensor, "N K K"]) -> Float[Tensor, "N K"]:
        """E[softmax(f)_k] ∝ 1 / Σ_j exp(−(m_k − m_j) / √(1 + π v_kj / 8)), with v_kj = Var(f_k − f_j).

        MacKay's approximation for each pair of classes, normalised. Like softmax, it ignores a constant added to all
        logits, however uncertain (Λ leaves that direction to the prior). For two classes, it equals the approximation
        for the sigmoid of their difference.
        """
        variance = f_covariance.diagonal(dim1=-2, dim2=-1)
        apart = variance.unsqueeze(-1) + variance.unsqueeze(-2) - f_covariance - f_covariance.mT
        gaps = (f_mean.unsqueeze(-1) - f_mean.unsqueeze(-2)) / probit_scale(apart)
        return torch.softmax(-torch.logsumexp(-gaps, dim=-1), dim=-1)

    def sample(
        self, f: Float[Tensor, "N K"], num_samples: int, generator: torch.Generator | None
    ) -> Int[Tensor, "S N"]:
        """y ~ Categorical(softmax(f))."""
        generator = own_generator(generator, f.device)
        return torch.multinomial(self.mean(f), num_samples, replacement=True, generator=generator).mT.contiguous()


def _root_probabilities(f: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """v = √softmax(f) = e/‖e‖ with e_j = exp(½(f_j − f_m)), m = argmax f, to a few units in the last place.

    The rounding of f_j − f_m would cost a relative ½ε|f_j − f_m|; it is known exactly, so it is put back.
    """
    _check_classes(f.shape[-1])
    gap, rounding = _exact_difference(f, f.gather(-1, f.argmax(-1, keepdim=True)))
    e = torch.exp(0.5 * gap) * (1 + 0.5 * rounding)
    return e / torch.linalg.vector_norm(e, dim=-1, keepdim=True)


def _exact_difference(a: Float[Tensor, "N K"], b: Float[Tensor, "N 1"]) -> tuple[Tensor, Tensor]:
    """(d, t) with d = fl(a − b) and d + t = a − b exactly: Knuth's two-sum."""
    difference = a - b
    minus_b = difference - a
    return difference, (a - (difference - minus_b)) - (b + minus_b)


def _check_classes(num_outputs: int) -> None:
    """A softmax needs at least two logits."""
    if num_outputs < 2:
        raise InputError(
            f"network: expected at least 2 outputs, one logit per class; got {num_outputs}. "
            "Use BernoulliLikelihood for a single logit."
        )


def _check_labels_form(targets: Tensor) -> None:
    """Labels are integers, one per example: (N,)."""
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise InputError(
            f"targets: expected integer labels of shape (N,); got {describe(targets)}. Use targets.to(torch.int64) for "
            "labels stored in another dtype, or targets.argmax(dim=1) for one-hot rows."
        )
    if targets.ndim != 1:
        raise InputError(
            f"targets: expected integer labels of shape (N,), one per example; got {describe(targets)}. Use "
            "targets.squeeze(1) for shape (N, 1), or targets.argmax(dim=1) for one-hot rows."
        )
