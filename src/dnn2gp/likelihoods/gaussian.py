"""Gaussian noise: one σ in total, one per output, or one per example."""

from __future__ import annotations

import math
from numbers import Real
from typing import ClassVar, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dnn2gp.likelihoods.base import Likelihood, check_state_keys
from dnn2gp.likelihoods.targets import require_columns, require_dtype, require_finite, require_targets
from dnn2gp.network.inputs import check_dense
from dnn2gp.support.errors import InputError
from dnn2gp.support.numbers import as_float
from dnn2gp.support.randomness import own_generator


@final
class GaussianLikelihood(Likelihood):
    """p(y|f) = Π_k N(y_k | f_k, σ_k²), the squared loss of Appendix B:

        ℓ = ½ Σ_k (y_k − f_k)² / σ_k²,   log Z = Σ_k log σ_k + (K/2) log 2π,   r = (f − y)/σ²,   Λ = diag(σ⁻²).

    `sigma` is a number or 0-d tensor (one σ for all), a 1-D tensor (K,) (one σ per output), or a 2-D tensor (N, 1)
    or (N, K) (one σ per example). A tensor is kept as it is, gradient included, and converted to f's dtype at use.

    Without `sigma`, the noise is left open for `convert` to tune by the evidence; until then nothing can be computed.
    """

    name: ClassVar[str] = "gaussian"

    def __init__(self, sigma: object = None) -> None:
        self.is_open = sigma is None
        if sigma is None:
            self.sigma: Tensor = torch.tensor(torch.nan, dtype=torch.float64, device="cpu")
            return
        if not isinstance(sigma, Real | Tensor) or isinstance(sigma, bool):
            raise InputError(
                f"sigma: expected a number or a tensor; got {type(sigma).__name__}. Put several values into a tensor."
            )
        given = sigma if isinstance(sigma, Tensor) else torch.tensor(as_float(sigma), dtype=torch.float64, device="cpu")
        check_dense(given, "sigma")
        self.sigma = given.clone()
        _check_sigma(self.sigma)

    def __repr__(self) -> str:
        """With σ, or its shape."""
        if self.is_open:
            return "GaussianLikelihood()"
        small = self.sigma.numel() <= 10
        return f"GaussianLikelihood({self.sigma.tolist() if small else f'sigma of shape {tuple(self.sigma.shape)}'})"

    def check_targets(
        self, targets: object, num_examples: int, num_outputs: int, dtype: torch.dtype
    ) -> Float[Tensor, "N K"]:
        """Targets of the network's dtype, finite, as (N, K)."""
        given = require_targets(targets, num_examples)
        require_dtype(given, dtype)
        columns = require_columns(given, num_outputs)
        require_finite(columns)
        if not self.is_open:
            self._sigma_like(columns)
        return columns

    def loss(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
        """ℓ = ½ Σ_k ((y_k − f_k)/σ_k)²."""
        return 0.5 * ((y - f) / self._sigma_like(f)).square().sum(-1)

    def log_normaliser(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
        """log Z = Σ_k log σ_k + (K/2) log 2π."""
        return self._sigma_like(f).log().sum(-1) + 0.5 * f.shape[-1] * math.log(2 * math.pi)

    def mean(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """h(f) = f."""
        return f

    def mean_jacobian(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """∂h/∂f = I."""
        return torch.diag_embed(torch.ones_like(f))

    def residual(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """r = σ⁻² (f − y), divided twice so that σ² cannot underflow."""
        sigma = self._sigma_like(f)
        return (f - y) / sigma / sigma

    def noise_precision_root(
        self, f: Float[Tensor, "N K"], y: Float[Tensor, "N K"] | None = None
    ) -> Float[Tensor, "N K K"]:
        """S = diag(σ⁻¹)."""
        return torch.diag_embed(self._sigma_like(f).reciprocal())

    def covariance(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """Cov(y|f) = diag(σ²)."""
        return torch.diag_embed(self._sigma_like(f).square())

    def sample(
        self, f: Float[Tensor, "N K"], num_samples: int, generator: torch.Generator | None
    ) -> Float[Tensor, "S N K"]:
        """y = f + σ ε with ε ~ N(0, I)."""
        noise = torch.randn(
            (num_samples, *f.shape), generator=own_generator(generator, f.device), dtype=f.dtype, device=f.device
        )
        return f + self._sigma_like(f) * noise

    @property
    def per_example(self) -> bool:
        """Whether σ is N × 1 or N × K."""
        return self.sigma.ndim == 2

    def scaled(self, factor: float | Float[Tensor, ""]) -> GaussianLikelihood:
        """Noise with standard deviation `factor` · σ; the likelihood itself for a factor of 1 or an open σ."""
        same = not isinstance(factor, Tensor) and factor == 1  # a tensor may carry a gradient
        return self if same or self.is_open else GaussianLikelihood(factor * self.sigma)

    def detached(self) -> GaussianLikelihood:
        """The same σ, outside of any graph."""
        return GaussianLikelihood(self.sigma.detach()) if self.sigma.requires_grad else self

    def take(self, index: slice | Shaped[Tensor, " M"]) -> GaussianLikelihood:
        """The rows of a per-example σ; the likelihood itself for a shared σ."""
        return GaussianLikelihood(self.sigma[index]) if self.sigma.ndim == 2 else self

    def state(self) -> dict[str, Tensor]:
        """σ, as it was given."""
        return {"sigma": self.sigma.detach().clone(memory_format=torch.contiguous_format)}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> GaussianLikelihood:
        """The likelihood with this σ."""
        check_state_keys(cls.name, state, {"sigma"})
        return cls(state["sigma"])

    def _sigma_like(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """σ as (N, K) in f's dtype and on its device, if it fits f."""
        if self.is_open:
            raise InputError(
                "sigma: this GaussianLikelihood() has no noise σ yet. Pass one, GaussianLikelihood(sigma=0.1), or let "
                'convert(..., prior_precision="evidence") tune it; gp.likelihood then holds it.'
            )
        _check_fit(self.sigma, *f.shape)
        sigma = self.sigma.to(device=f.device, dtype=f.dtype)
        if sigma.dtype != self.sigma.dtype:
            _check_sigma(sigma)
        return sigma.expand(f.shape)


def _check_sigma(sigma: Tensor) -> None:
    """σ must be a real floating-point tensor of at most two dimensions, finite and positive."""
    if not sigma.is_floating_point() or sigma.ndim > 2:
        raise InputError(
            "sigma: expected a number or a floating-point tensor of shape (), (K,), (N, 1) or (N, K); got shape "
            f"{tuple(sigma.shape)} and dtype {sigma.dtype}. Reshape it, or use sigma.to(torch.float32)."
        )
    bad = ~(sigma.isfinite() & (sigma > 0))
    if bool(bad.any()):
        first = tuple(bad.nonzero()[0].tolist())
        raise InputError(
            f"sigma: expected a finite sigma > 0; got {sigma[first].item()} at index {first} "
            f"(shape {tuple(sigma.shape)}, dtype {sigma.dtype}). sigma is the standard deviation of the noise, in the "
            "units of the targets and the dtype of the network: rescale the targets, or parametrise sigma as "
            "exp(log_sigma)."
        )


def _check_fit(sigma: Tensor, num_examples: int, num_outputs: int) -> None:
    """One σ per output needs K entries; one σ per example needs N rows of 1 or K entries."""
    if sigma.ndim == 1 and sigma.shape[0] != num_outputs:
        raise InputError(
            f"sigma: expected a 1-D tensor with one entry for each of the {num_outputs} network outputs; got "
            f"{sigma.shape[0]} entries. For one σ per example, pass shape (N, 1): use sigma.unsqueeze(-1)."
        )
    if sigma.ndim == 2 and sigma.shape[0] != num_examples:
        raise InputError(
            f"sigma: the likelihood has one σ for each of {sigma.shape[0]} examples, but was applied to "
            f"{num_examples}. Pass likelihood=GaussianLikelihood(sigma_for_these_points) along with them."
        )
    if sigma.ndim == 2 and sigma.shape[1] not in (1, num_outputs):
        raise InputError(
            f"sigma: expected shape ({num_examples}, 1) or ({num_examples}, {num_outputs}) for one σ per example; got "
            f"{tuple(sigma.shape)}. Pass one column, or one per network output."
        )
