"""The pivot, Eq. (5): the loss at an anchor w as features φ, residual v and noise precision D.

    ∇ℓᵢ(w) = φᵢ vᵢ ,      ∇²ℓᵢ(w) ≈ φᵢ Dᵢ φᵢᵀ

Everything after this file sees the network only through (φ, v, D).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, pi

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from dnn2gp.features import FeatureMap, GradientFeatures, NetworkFeatures, StackedFeatures
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.network.inputs import Inputs, num_examples, same_form, take
from dnn2gp.network.views import joined
from dnn2gp.support.errors import InputError, NotFiniteError
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.processes import Team
from dnn2gp.support.randomness import normal_rows, own_generator
from dnn2gp.weights.columns import SampledColumns


@dataclass(frozen=True, eq=False)
class Expansion:
    """(φ, v, D) for N examples at the anchor, with D = S Sᵀ known by its root.

    If several processes share the examples (`team`), inputs, residual, root and targets are those of this process;
    N, M, the log-likelihood, the constant of the sites and the gradient are those of all of them.
    """

    features: FeatureMap
    inputs: Inputs
    residual: Float[Tensor, "N Q"]
    root: Float[Tensor, "N Q R"]
    anchor: Float[Tensor, " P"]
    log_likelihood: Float[Tensor, ""]
    quadratic: bool
    """Whether the loss is quadratic in f (Gaussian), so that the linear model's evidence is that of a regression."""
    targets: Shaped[Tensor, "N ..."] | None = None
    """y, with which the sites can be expanded at other outputs; None in files of earlier releases."""
    moved: Float[Tensor, " P"] | None = None
    """θ − w in float64, if the sites are those of the linearised network f_w + J(θ − w) at θ (`relinearised`)."""
    counts: tuple[int, ...] | None = None
    """The numbers of examples of all processes; None if these examples are not shared."""
    columns: SampledColumns | None = None
    """How the columns of S were drawn; None if S Sᵀ is Λ itself."""

    @staticmethod
    def gauss_newton(
        features: NetworkFeatures,
        inputs: Inputs,
        targets: Tensor,
        likelihood: Likelihood,
        columns: SampledColumns | None = None,
    ) -> Expansion:
        """Eq. (7), generalised Gauss-Newton: φ = Jᵀ, v = r, D = Λ, or an unbiased estimate of Λ from a few columns."""
        outputs = _outputs(features, inputs)
        counts = _counts(features.team, len(outputs))
        first = 0 if counts is None else sum(counts[: features.team.rank])
        return Expansion(
            features=features,
            inputs=inputs,
            residual=_finite(likelihood.residual(outputs, targets), "residual r = ∂ℓ/∂f", outputs),
            root=_root(likelihood, outputs, targets, columns, first),
            anchor=features.anchor,
            log_likelihood=features.team.sum(likelihood.log_prob(outputs.double(), _double(targets)).sum()),
            quadratic=isinstance(likelihood, GaussianLikelihood),
            targets=targets,
            counts=counts,
            columns=columns,
        )

    @staticmethod
    def empirical_fisher(
        features: NetworkFeatures, inputs: Inputs, targets: Tensor, likelihood: Likelihood
    ) -> Expansion:
        """Gradient features: φ = ∇ℓᵢ(w), v = 1, D = 1."""
        outputs = _outputs(features, inputs)
        residual = _finite(likelihood.residual(outputs, targets), "residual r = ∂ℓ/∂f", outputs)
        ones = residual.new_ones(len(residual), 1)
        return Expansion(
            features=GradientFeatures(features, inputs),
            inputs=GradientFeatures.pair(inputs, residual),
            residual=ones,
            root=ones.unsqueeze(-1),
            anchor=features.anchor,
            log_likelihood=features.team.sum(likelihood.log_prob(outputs.double(), _double(targets)).sum()),
            quadratic=False,
            counts=_counts(features.team, len(outputs)),
        )

    @staticmethod
    def stacked(expansions: Sequence[Expansion]) -> Expansion:
        """The same examples expanded at S weights, as one: features and residuals stacked, D block diagonal.

        Appendix A.2. The anchor is that of the first one; see `anchored`.
        """
        first = expansions[0]
        if len(expansions) == 1:
            return first
        maps = [each.features for each in expansions]
        if not all(isinstance(each, NetworkFeatures) for each in maps):
            raise InputError(
                "expansions: only those with the features of a network can be stacked. For others, use S = 1."
            )
        Q, R = first.root.shape[1:]
        root = first.root.new_zeros(len(first.root), len(maps) * Q, len(maps) * R)
        for position, each in enumerate(expansions):
            rows, columns = slice(position * Q, (position + 1) * Q), slice(position * R, (position + 1) * R)
            root[:, rows, columns] = each.root
        return replace(
            first,
            features=StackedFeatures(maps),  # pyright: ignore[reportArgumentType]
            residual=torch.cat([each.residual for each in expansions], 1),
            root=root,
            log_likelihood=torch.stack([each.log_likelihood for each in expansions]).sum(),
            quadratic=all(each.quadratic for each in expansions),
        )

    def anchored(self, anchor: Float[Tensor, " P"]) -> Expansion:
        """The same features, residual and D at another anchor: ỹ = J a − Λ⁻¹ r (Theorem 2: a = μ_t, J at samples)."""
        return replace(self, anchor=anchor)

    def relinearised(
        self, likelihood: Likelihood, outputs: Float[Tensor, "N K"], moved: Float[Tensor, " P"]
    ) -> Expansion:
        """The sites of the linearised network at θ = w + `moved`: r and Λ at the outputs f_w + J(θ − w), J still at w.

        The linear model of these sites is a second-order expansion of the loss of the linearised network,
        Σᵢ ℓ(yᵢ, f_w(xᵢ) + Jᵢ(θ − w)), about θ.
        """
        assert self.targets is not None
        dtype, targets = self.residual.dtype, self.targets
        residual = _finite(likelihood.residual(outputs, targets), "residual r = ∂ℓ/∂f", outputs)
        root = _root(likelihood, outputs, targets, self.columns, self.own_examples.start)
        return replace(
            self,
            residual=residual.to(dtype),
            root=root.to(dtype),
            anchor=(self.features.anchor.double() + moved).to(self.anchor.dtype),
            log_likelihood=self.team.sum(likelihood.log_prob(outputs.double(), _double(targets)).sum()),
            moved=moved,
        )

    def redrawn(self, likelihood: Likelihood, columns: SampledColumns) -> Expansion:
        """The same sites with other columns of Λ."""
        assert self.targets is not None
        outputs = self.features.outputs(self.inputs).double()
        if self.moved is not None:
            outputs = outputs + self.features.jvp(self.inputs, self.moved.to(self.residual.dtype)[:, None])[..., 0]
        root = _root(likelihood, outputs, self.targets, columns, self.own_examples.start)
        return replace(self, root=root.to(self.root.dtype), columns=columns)

    def weighted(self, weight: float) -> Expansion:
        """The loss times a number c > 0: residual c r, precision c D.

        The log-likelihood becomes that of the sites: log N(ỹ | J w, (cΛ)⁻¹) where the loss is quadratic, else c log p.
        """
        log_likelihood = weight * self.log_likelihood
        if self.quadratic:  # log p = −½ rᵀΛ⁻¹r + ½ log|Λ| − …: only the first term is multiplied, and |cΛ| = c^K |Λ|
            misfit, sites = self.misfit(), self.num_sites
            log_likelihood = self.log_likelihood + 0.5 * ((1 - weight) * misfit + sites * log(weight))
        return replace(
            self, residual=weight * self.residual, root=weight**0.5 * self.root, log_likelihood=log_likelihood
        )

    @property
    def team(self) -> Team:
        """The processes that share the examples."""
        return self.features.team

    @property
    def num_examples(self) -> int:
        """N."""
        return num_examples(self.inputs) if self.counts is None else sum(self.counts)

    @property
    def own_examples(self) -> slice:
        """Which of the N examples this process has: all of them, unless several processes share them."""
        start = 0 if self.counts is None else sum(self.counts[: self.team.rank])
        return slice(start, start + num_examples(self.inputs))

    @property
    def num_sites(self) -> int:
        """M = N·R, the number of scalar sites: the rows of SᵀJ."""
        return self.num_examples * self.root.shape[2]

    def spread(self, count: int) -> Int[Tensor, " n"]:
        """At most `count` examples, evenly spread over the data.

        If several processes share the data, the index has the examples of this process only, and at least one.
        """
        total, own, device = self.num_examples, self.own_examples, self.root.device
        index = torch.linspace(0, total - 1, min(count, total), device=device).round().long()
        index = index[(index >= own.start) & (index < own.stop)] - own.start
        return index if len(index) else torch.zeros(1, dtype=torch.long, device=device)

    def noise_precision(self) -> Float[Tensor, "N Q Q"]:
        """D = S Sᵀ."""
        return self.root @ self.root.mT

    def white_residual(self) -> Float[Tensor, " M"]:
        """S⁻¹ r = Sᵀ(f − y) in units of the noise, in float64, where the loss is quadratic (Gaussian)."""
        return torch.linalg.solve(self.root.double(), self.residual.double().unsqueeze(-1)).reshape(-1)

    def misfit(self) -> float:
        """‖S⁻¹r‖², where the loss is quadratic."""
        return self.team.total(self.white_residual().square().sum().item())

    def site_constant(self) -> float:
        """log |S| − (M/2) log 2π = log p(D|w) + ½ ‖S⁻¹r‖², where the loss is quadratic."""
        log_det = torch.linalg.slogdet(self.root.double()).logabsdet.sum().item()
        return self.team.total(log_det) - 0.5 * self.num_sites * log(2 * pi)

    def gradient(self) -> Float[Tensor, " P"]:
        """Σᵢ ∇ℓᵢ(w) = Σᵢ φᵢ vᵢ."""
        return self.features.vjp(self.inputs, self.residual.unsqueeze(-1))[:, 0]

    def sampled(self, num_columns: int, generator: torch.Generator | None = None) -> Expansion:
        """A cheap estimate: D = S Sᵀ by `num_columns` random columns S ε / √C, ε ~ N(0, I), so that E[D̂] = D.

        The GGN, its diagonal and its Kronecker factors then take C backward passes instead of R, and are unbiased.
        """
        num_columns = whole_number("num_columns", num_columns)
        R, generator = self.root.shape[2], own_generator(generator, self.root.device)
        noise = normal_rows(
            self.num_examples, self.own_examples, R * num_columns, generator, self.root.new_empty(0).double()
        )
        noise = noise.unflatten(1, (R, num_columns)).to(self.root.dtype)
        return replace(self, root=self.root @ noise / num_columns**0.5)

    def subset(self, index: Int[Tensor, " n"]) -> Expansion:
        """Some of the examples of this process; the log-likelihood stays that of all."""
        return replace(
            self,
            inputs=take(self.inputs, index),
            residual=self.residual[index],
            root=self.root[index],
            targets=None if self.targets is None else self.targets[index],
            counts=None,
        )

    def joined(self, other: Expansion) -> Expansion:
        """The expansion of both data sets, which must share features and anchor."""
        if other.features is not self.features or not same_form(self.inputs, other.inputs):
            raise InputError(
                "expansion: expected the same network, anchor and form of inputs. Only such expansions can be joined."
            )
        return replace(
            self,
            inputs=joined([self.inputs, other.inputs]),
            residual=torch.cat([self.residual, other.residual]),
            root=torch.cat([self.root, other.root]),
            log_likelihood=self.log_likelihood + other.log_likelihood,
            quadratic=self.quadratic and other.quadratic,
            targets=None
            if self.targets is None or other.targets is None
            else torch.cat([self.targets, other.targets.to(self.targets.dtype)]),
            counts=None
            if self.counts is None or other.counts is None
            else tuple(own + more for own, more in zip(self.counts, other.counts, strict=True)),
        )


def _counts(team: Team, own: int) -> tuple[int, ...] | None:
    return team.counts(own) if team.size > 1 else None


def _outputs(features: NetworkFeatures, inputs: Inputs) -> Float[Tensor, "N K"]:
    outputs = features.outputs(inputs)
    if not outputs.isfinite().all():
        row = int((~outputs.isfinite()).any(1).nonzero()[0])
        raise InputError(
            f"network: expected finite outputs; got NaN or infinity for example {row}. Check that example."
        )
    return outputs


def _root(
    likelihood: Likelihood,
    outputs: Float[Tensor, "N K"],
    targets: Shaped[Tensor, "N ..."],
    columns: SampledColumns | None,
    first: int,
) -> Float[Tensor, "N K R"]:
    """S of all columns, or of those that are drawn."""
    found = (
        likelihood.noise_precision_root(outputs, targets)
        if columns is None
        else columns.root(likelihood, outputs, first)
    )
    return _finite(found, "root S of Λ = ∂²ℓ/∂f²", outputs)


def _finite(values: Tensor, what: str, outputs: Float[Tensor, "N K"]) -> Tensor:
    """Derivatives of the loss, unless they overflow: a log rate of 95 in float32, or σ = 1e-19."""
    valid = values.isfinite().reshape(len(values), -1).all(1)
    if not valid.all():
        row = int((~valid).nonzero()[0])
        raise NotFiniteError(
            f"The {what} of example {row} is not finite in {values.dtype}; the network's outputs there are "
            f"{outputs[row].tolist()[:4]}. Check the scale of the outputs and the noise σ, or use float64."
        )
    return values


def _double(targets: Tensor) -> Tensor:
    return targets.double() if targets.is_floating_point() else targets
