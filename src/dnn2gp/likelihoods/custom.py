"""A likelihood defined by a loss function alone; its derivatives come from automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NoReturn, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, hessian, jacrev, vmap

from dnn2gp.likelihoods.base import Likelihood
from dnn2gp.likelihoods.targets import require, require_dtype, require_targets
from dnn2gp.support.errors import InputError, NotPositiveDefiniteError
from dnn2gp.support.randomness import own_generator

RowLoss = Callable[[Tensor, Tensor], Tensor]
RowMap = Callable[[Tensor], Tensor]
Sampler = Callable[[Tensor, int, torch.Generator], Tensor]


@final
class CustomLikelihood(Likelihood):
    """p(y|f) ∝ exp(−ℓ(y, f)) for a loss ℓ that is twice differentiable and convex in f:

        r = ∇_f ℓ,   Λ = ∇²_ff ℓ = U diag(λ) Uᵀ,   S = U diag(√λ).

    All functions but `sample` are written for ONE example and in torch operations that `torch.func.vmap` can batch:

    loss            (f (K,), y (K',)) -> scalar. Parameters that differ between examples can be passed as columns of y.
    mean            f (K,) -> h(f) (K,). Default: the identity.
    log_normaliser  (f (K,), y (K',)) -> scalar log Z. Default: 0, so that the loss is −log p(y|f) itself.
    covariance      f (K,) -> Cov(y|f) (K, K). Default: D Λ⁻¹ Dᵀ with D = ∂h/∂f and Λ at y = h(f), which is exact for
                    an exponential family with mean h(f), and a local approximation otherwise.
    sample          (f (N, K), num_samples, generator) -> (num_samples, N, ...), drawn from this generator.

    Λ may depend on y. Without targets it is evaluated at y = h(f); if y has further columns that the loss needs, pass
    `covariance`, because the default cannot be computed.
    """

    name: ClassVar[str] = "custom"
    flattens: ClassVar[bool] = False

    def __init__(
        self,
        loss: RowLoss,
        *,
        mean: RowMap | None = None,
        log_normaliser: RowLoss | None = None,
        covariance: RowMap | None = None,
        sample: Sampler | None = None,
    ) -> None:
        self._loss = loss
        self._mean = mean
        self._log_normaliser = log_normaliser
        self._covariance = covariance
        self._sample = sample

    def check_targets(
        self, targets: object, num_examples: int, num_outputs: int, dtype: torch.dtype
    ) -> Float[Tensor, "N T"]:
        """Targets without NaN, flattened to (N, K'); integers become the network's dtype, other floats are rejected."""
        given = require_targets(targets, num_examples)
        if given.is_floating_point() or given.is_complex():
            require_dtype(given, dtype)
        columns = given.flatten(1) if given.ndim > 1 else given.unsqueeze(1)
        require(~columns.isnan(), columns, "targets without NaN", "Remove or impute such examples.")
        return columns.to(dtype)

    def loss(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N T"]) -> Float[Tensor, " N"]:
        """ℓ(y, f), as given."""
        return vmap(self._row_loss)(f, y)

    def log_normaliser(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N T"]) -> Float[Tensor, " N"]:
        """log Z(f, y), as given; 0 by default."""
        return f.new_zeros(f.shape[0]) if self._log_normaliser is None else vmap(self._log_normaliser)(f, y)

    def mean(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """h(f), as given; f by default."""
        return vmap(self._row_mean)(f)

    def mean_jacobian(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """∂h/∂f by automatic differentiation."""
        return vmap(jacrev(self._row_mean))(f)

    def residual(self, f: Float[Tensor, "N K"], y: Float[Tensor, "N T"]) -> Float[Tensor, "N K"]:
        """r = ∇_f ℓ by automatic differentiation."""
        return vmap(grad(self._row_loss))(f, y)

    def noise_precision_root(
        self, f: Float[Tensor, "N K"], y: Float[Tensor, "N T"] | None = None
    ) -> Float[Tensor, "N K K"]:
        """S = U diag(√λ) from Λ = U diag(λ) Uᵀ by automatic differentiation, at y = h(f) if y is None.

        An eigenvalue that is negative within rounding, λ ≥ −tol · max|λ| of its example (tol = 1e-10 in float64,
        1e-5 otherwise), is set to 0. A more negative one is an error: the loss is not convex there.
        """
        precision = vmap(hessian(self._row_loss))(f, self.mean(f) if y is None else y)
        _check_finite(precision)
        values, vectors = torch.linalg.eigh(0.5 * (precision + precision.mT))
        _check_convex(values)
        return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)

    def covariance(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """Cov(y|f), as given; else D Λ⁻¹ Dᵀ = XᵀX with X = L⁻¹ Dᵀ and the Cholesky factor Λ = L Lᵀ."""
        if self._covariance is not None:
            return vmap(self._covariance)(f)
        lower = _cholesky(self.noise_precision(f))
        half = torch.linalg.solve_triangular(lower, self.mean_jacobian(f).mT, upper=False)
        return half.mT @ half

    def sample(
        self, f: Float[Tensor, "N K"], num_samples: int, generator: torch.Generator | None
    ) -> Float[Tensor, "S N T"]:
        """y ~ p(y|f) by the given sampler."""
        if self._sample is None:
            raise InputError(
                "sample: this custom likelihood has only a loss, which does not say how to draw y. Pass "
                "CustomLikelihood(..., sample=lambda f, num_samples, generator: ...), which returns a tensor of shape "
                "(num_samples, N, ...)."
            )
        draws = self._sample(f, num_samples, own_generator(generator, f.device))
        if draws.shape[:2] != (num_samples, f.shape[0]):
            raise InputError(
                f"sample: expected a tensor of shape (num_samples, N, ...) = ({num_samples}, {f.shape[0]}, ...); "
                f"got {tuple(draws.shape)}. Draw for all examples at once, with the samples along the first dimension."
            )
        return draws.reshape(num_samples, f.shape[0], -1)

    def state(self) -> dict[str, Tensor]:
        """Nothing: functions are not saved."""
        return {}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> NoReturn:
        """Always an `InputError`: functions are not saved."""
        raise InputError(
            "likelihood: the file was saved with a custom likelihood, whose functions cannot be stored. Build the same "
            "CustomLikelihood and pass it to load: load(..., likelihood=CustomLikelihood(...))."
        )

    def _row_loss(self, f: Float[Tensor, " K"], y: Float[Tensor, " T"]) -> Float[Tensor, ""]:
        value = self._loss(f, y)
        if value.shape != ():
            raise InputError(
                f"loss: expected a function that returns a scalar for one example; got shape {tuple(value.shape)} "
                f"for f of shape {tuple(f.shape)} and y of shape {tuple(y.shape)}. "
                "Sum over the outputs: .sum()."
            )
        return value

    def _row_mean(self, f: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        value = f.clone() if self._mean is None else self._mean(f)
        if value.shape != f.shape:
            raise InputError(
                f"mean: expected a function that returns shape {tuple(f.shape)} for one example, the shape of f; "
                f"got {tuple(value.shape)}. Return one mean per network output."
            )
        return value


def _check_finite(precision: Float[Tensor, "N K K"]) -> None:
    """Raise an error unless Λ is finite, because its eigenvalues would mean nothing."""
    bad = ~precision.isfinite().flatten(1).all(-1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise NotPositiveDefiniteError(
            f"loss: the Hessian Λ of the custom loss is not finite for example {row}: {precision[row].tolist()}. "
            "Write the loss in a stable form (logsigmoid, logsumexp, log1p), or use float64."
        )


def _check_convex(values: Float[Tensor, "N K"]) -> None:
    """The eigenvalues of Λ must be ≥ 0 up to rounding."""
    largest = values.abs().amax(-1)
    smallest = values.amin(-1)
    bad = smallest < -_rounding(values.dtype) * largest
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise NotPositiveDefiniteError(
            f"loss: the Hessian Λ of the custom loss has eigenvalue {smallest[row].item():.6g} for example {row} "
            f"(largest magnitude {largest[row].item():.6g}); {int(bad.sum())} of {len(bad)} examples are affected. "
            "The loss must be convex in f: use a convex loss, parametrise f differently, or use float64 if the "
            "eigenvalue is only rounding error."
        )


def _cholesky(precision: Float[Tensor, "N K K"]) -> Float[Tensor, "N K K"]:
    """L with L Lᵀ = Λ; Λ counts as singular where a pivot L_kk² is within rounding of 0, relative to Λ_kk."""
    lower, info = torch.linalg.cholesky_ex(precision)
    pivots = lower.diagonal(dim1=-2, dim2=-1).square() / precision.diagonal(dim1=-2, dim2=-1)
    smallest = pivots.amin(-1)
    bad = (info != 0) | ~(smallest > _rounding(precision.dtype))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise NotPositiveDefiniteError(
            f"covariance: the default D Λ⁻¹ Dᵀ of a custom likelihood needs an invertible Λ, but it is singular for "
            f"example {row}: its Cholesky factorisation fails or leaves a relative pivot below "
            f"{_rounding(precision.dtype):.0e}; {int(bad.sum())} of {len(bad)} examples are affected. Pass "
            "CustomLikelihood(..., covariance=lambda f: ...) with Cov(y|f) for one example, shape (K, K)."
        )
    return lower


def _rounding(dtype: torch.dtype) -> float:
    """The size, relative to the largest, below which an eigenvalue or pivot counts as rounding error."""
    return 1e-10 if dtype == torch.float64 else 1e-5
