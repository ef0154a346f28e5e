"""Independent binary outputs with logits f."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from dnn2gp.likelihoods.base import ClassificationLikelihood, probit_scale
from dnn2gp.likelihoods.targets import require, require_columns, require_real, require_targets
from dnn2gp.support.randomness import own_generator


@final
class BernoulliLikelihood(ClassificationLikelihood):
    """p(y|f) = Π_k p_k^{y_k} (1 − p_k)^{1 − y_k} with p = σ(f), the logistic loss of Appendix B, for K ≥ 1 logits:

        ℓ = −Σ_k [y_k log σ(f_k) + (1 − y_k) log σ(−f_k)],   Z = 1,   r = p − y,   Λ = diag(p(1 − p)).

    Soft labels in (0, 1) are allowed; −ℓ is then the cross-entropy and no longer the log of a normalised density.
    1 − p is always σ(−f), never a difference of rounded numbers.
    """

    name: ClassVar[str] = "bernoulli"

    def doubt(self, outputs: Float[Tensor, "N K"]) -> str | None:
        """Outputs of a sigmoid lie between 0 and 1, and come near at least one of the two."""
        if outputs.min() < 0 or outputs.max() > 1 or (outputs.min() > 0.1 and outputs.max() < 0.9):
            return None
        return (
            "network: the outputs look like probabilities (they lie between 0 and 1), but BernoulliLikelihood expects "
            "logits and applies the sigmoid itself. Remove the sigmoid at the end of the network."
        )

    def check_targets(
        self, targets: object, num_examples: int, num_outputs: int, dtype: torch.dtype
    ) -> Float[Tensor, "N K"]:
        """Bool, integer or floating-point targets in [0, 1], as (N, K) of the network's dtype."""
        given = require_targets(targets, num_examples)
        require_real(given, dtype)
        columns = require_columns(given, num_outputs)
        require(
            (columns >= 0) & (columns <= 1),
            columns,
            "Bernoulli targets in [0, 1]",
            "Code the classes as 0 and 1 (from -1 and 1: (y + 1) / 2), drop examples without a label, or use "
            "CategoricalLikelihood for more than two exclusive classes.",
        )
        return columns.to(dtype)

    def loss(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
        """ℓ = −Σ_k [y_k log σ(f_k) + (1 − y_k) log σ(−f_k)]."""
        return -(y * logsigmoid(f) + (1 - y) * logsigmoid(-f)).sum(-1)

    def log_normaliser(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
        """log Z = 0."""
        return f.new_zeros(f.shape[0])

    def mean(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """h(f) = p = σ(f)."""
        return torch.sigmoid(f)

    def mean_jacobian(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """∂h/∂f = diag(p(1 − p)) = Λ: the link is canonical."""
        return self.noise_precision(f)

    def residual(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """r = p − y = (1 − y) σ(f) − y σ(−f), which does not cancel where p rounds to y."""
        return (1 - y) * torch.sigmoid(f) - y * torch.sigmoid(-f)

    def noise_precision_root(
        self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"] | None = None
    ) -> Float[Tensor, "N K K"]:
        """S = diag(√(σ(f) σ(−f))) = diag(e^{−|f|/2} σ(|f|)), right to a few units in the last place for every f."""
        size = f.abs()
        return torch.diag_embed(torch.exp(-0.5 * size) * torch.sigmoid(size))

    def covariance(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """Cov(y|f) = diag(p(1 − p)) = Λ."""
        return self.noise_precision(f)

    def probit(self, f_mean: Float[Tensor, "N K"], f_covariance: Float[Tensor, "N K K"]) -> Float[Tensor, "N K"]:
        """E[σ(f_k)] ≈ σ(m_k / √(1 + π C_kk / 8)), MacKay's approximation."""
        return self.mean(f_mean / probit_scale(f_covariance.diagonal(dim1=-2, dim2=-1)))

    def sample(
        self, f: Float[Tensor, "N K"], num_samples: int, generator: torch.Generator | None
    ) -> Float[Tensor, "S N K"]:
        """y_k ~ Bernoulli(σ(f_k))."""
        probabilities = torch.sigmoid(f).expand(num_samples, *f.shape)
        return torch.bernoulli(probabilities, generator=own_generator(generator, f.device))
