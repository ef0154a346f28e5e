"""Counts with log rates f."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.likelihoods.base import Likelihood
from dnn2gp.likelihoods.targets import require, require_columns, require_finite, require_real, require_targets
from dnn2gp.support.errors import NotFiniteError
from dnn2gp.support.randomness import own_generator

# The largest log rate whose counts are below 2⁶³, the integers in which torch draws them.
_LARGEST = 43.0


@final
class PoissonLikelihood(Likelihood):
    """p(y|f) = Π_k Poisson(y_k | e^{f_k}), the log link:

    ℓ = Σ_k [e^{f_k} − y_k f_k],   log Z = Σ_k log y_k!,   r = e^f − y,   Λ = diag(e^f).
    """

    name: ClassVar[str] = "poisson"

    def check_targets(
        self, targets: object, num_examples: int, num_outputs: int, dtype: torch.dtype
    ) -> Float[Tensor, "N K"]:
        """Counts 0, 1, 2, … of any real dtype, as (N, K) of the network's dtype."""
        given = require_targets(targets, num_examples)
        require_real(given, dtype)
        columns = require_columns(given, num_outputs)
        require_finite(columns)
        whole = columns.frac() == 0 if columns.is_floating_point() else torch.ones_like(columns, dtype=torch.bool)
        require(
            whole & (columns >= 0),
            columns,
            "Poisson targets that are counts 0, 1, 2, ...",
            "Pass raw counts, neither standardised nor averaged, or use GaussianLikelihood for real-valued targets.",
        )
        counts = columns.to(dtype)
        require_finite(counts)
        return counts

    def loss(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
        """ℓ = Σ_k [e^{f_k} − y_k f_k]."""
        return (f.exp() - y * f).sum(-1)

    def log_normaliser(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
        """log Z = Σ_k log Γ(y_k + 1)."""
        return torch.lgamma(y + 1).sum(-1)

    def mean(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """h(f) = e^f."""
        return f.exp()

    def mean_jacobian(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """∂h/∂f = diag(e^f)."""
        return torch.diag_embed(f.exp())

    def residual(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """r = e^f − y."""
        return f.exp() - y

    def noise_precision_root(
        self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"] | None = None
    ) -> Float[Tensor, "N K K"]:
        """S = diag(e^{f/2})."""
        return torch.diag_embed(torch.exp(0.5 * f))

    def covariance(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """Cov(y|f) = diag(e^f)."""
        return torch.diag_embed(f.exp())

    def sample(
        self, f: Float[Tensor, "N K"], num_samples: int, generator: torch.Generator | None
    ) -> Float[Tensor, "S N K"]:
        """y_k ~ Poisson(e^{f_k}), for rates whose counts an integer of torch can hold."""
        if f.numel() > 0 and not bool((f < _LARGEST).all()):
            raise NotFiniteError(
                f"Counts of a rate e^f with f = {f.max().item():.3g} cannot be drawn: the largest is e^{_LARGEST:g}. "
                "Check the scale of the inputs, or use the mean of the prediction."
            )
        rates = f.exp().expand(num_samples, *f.shape)
        return torch.poisson(rates, generator=own_generator(generator, f.device))
