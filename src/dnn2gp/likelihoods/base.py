"""The interface of a likelihood: everything the package needs to know about p(y|f)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dnn2gp.support.errors import FileFormatError, InputError, NotPositiveDefiniteError

_REGISTRY: dict[str, type[Likelihood]] = {}


class Likelihood(ABC):
    """p(y|f) for N independent examples with K network outputs each, written with the paper's loss ℓ as

        log p(y|f) = −ℓ(y, f) − log Z(f, y),     r = ∇_f ℓ,     Λ = ∇²_ff ℓ = S Sᵀ,     h(f) = E[y|f].

    A subclass that sets `name` is registered under it and can be loaded again by `likelihood_from_state`.
    """

    name: ClassVar[str]
    flattens: ClassVar[bool] = True
    """Whether targets have one value per output, so that targets of several axes are flattened as outputs are."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            _register(cls)

    @abstractmethod
    def check_targets(self, targets: object, num_examples: int, num_outputs: int, dtype: torch.dtype) -> Tensor:
        """The targets in this likelihood's canonical form, or an `InputError` that says what to change."""

    def targets_for(
        self, targets: object, num_examples: int, output_shape: tuple[int, ...], dtype: torch.dtype
    ) -> Tensor:
        """`check_targets` for a network whose output for one example has this shape.

        Targets of several axes must have the axes of the outputs: N × 3 × 2 targets of N × 2 × 3 outputs would flatten
        to as many columns, but to others.
        """
        shape = tuple(targets.shape[1:]) if isinstance(targets, Tensor) else ()
        given, wanted = (tuple(size for size in own if size > 1) for own in (shape, output_shape))
        if self.flattens and len(given) > 1 and len(wanted) > 1 and given != wanted:
            raise InputError(
                f"targets: expected the shape of the network's outputs, {('N', *output_shape)}; got {('N', *shape)}. "
                "Permute the axes of the targets, or flatten them to N × K in the order of the outputs."
            )
        return self.check_targets(targets, num_examples, math.prod(output_shape), dtype)

    def check_outputs(self, shape: tuple[int, ...]) -> None:
        """Reject a network if its output shape for one example is not supported; by default, every shape is."""
        return None

    def doubt(self, outputs: Float[Tensor, "N K"]) -> str | None:
        """Why the outputs of a network do not look like the f of this likelihood; None where nothing is suspicious."""
        return None

    @abstractmethod
    def loss(self, f: Float[Tensor, "N K"], y: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """ℓ(y_n, f_n), without the normaliser."""

    @abstractmethod
    def log_normaliser(self, f: Float[Tensor, "N K"], y: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """log Z(f_n, y_n) = −log p(y_n|f_n) − ℓ(y_n, f_n)."""

    @abstractmethod
    def mean(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """The inverse link h(f) = E[y|f]."""

    @abstractmethod
    def mean_jacobian(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """D = ∂h/∂f."""

    @abstractmethod
    def residual(self, f: Float[Tensor, "N K"], y: Shaped[Tensor, "N ..."]) -> Float[Tensor, "N K"]:
        """r = ∇_f ℓ(y, f)."""

    @abstractmethod
    def noise_precision_root(
        self, f: Float[Tensor, "N K"], y: Shaped[Tensor, "N ..."] | None = None
    ) -> Float[Tensor, "N K R"]:
        """S with S Sᵀ = Λ; R ≤ K columns, so that a singular Λ needs no inverse and no jitter."""

    @abstractmethod
    def covariance(self, f: Float[Tensor, "N K"]) -> Float[Tensor, "N K K"]:
        """Cov(y|f), the aleatoric part of Appendix B."""

    @abstractmethod
    def sample(
        self, f: Float[Tensor, "N K"], num_samples: int, generator: torch.Generator | None
    ) -> Shaped[Tensor, "S N ..."]:
        """Draws of y ~ p(y|f) in canonical form. Without a generator, a fresh seed is used, never the global RNG."""

    def state(self) -> dict[str, Tensor]:
        """The parameters as named, detached tensors for saving; empty unless a subclass has some."""
        return {}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Likelihood:
        """The likelihood with this `state`."""
        check_state_keys(cls.name, state, set())
        return cls()

    def take(self, index: slice | Shaped[Tensor, " M"]) -> Likelihood:
        """The likelihood of these examples only; itself, unless it has per-example parameters."""
        return self

    def detached(self) -> Likelihood:
        """The likelihood with detached parameters; itself, if none of them carries a gradient."""
        return self

    is_open: bool = False
    """Whether a parameter is left open, for `convert` to tune by the evidence (the noise of a GaussianLikelihood())."""

    @property
    def per_example(self) -> bool:
        """Whether it has separate parameters for each example, and therefore none for other inputs."""
        return False

    def noise_precision(
        self, f: Float[Tensor, "N K"], y: Shaped[Tensor, "N ..."] | None = None
    ) -> Float[Tensor, "N K K"]:
        """Λ = ∇²_ff ℓ = S Sᵀ."""
        root = self.noise_precision_root(f, y)
        return root @ root.mT

    def noise_precision_matmul(
        self, f: Float[Tensor, "N K"], vectors: Float[Tensor, "N K"], y: Shaped[Tensor, "N ..."] | None = None
    ) -> Float[Tensor, "N K"]:
        """Λ u, one vector u per example."""
        root = self.noise_precision_root(f, y)
        return (root @ (root.mT @ vectors.unsqueeze(-1))).squeeze(-1)

    @final
    def log_prob(self, f: Float[Tensor, "N K"], y: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """log p(y|f) = −ℓ(y, f) − log Z(f, y)."""
        return -self.loss(f, y) - self.log_normaliser(f, y)

    @final
    def inverse_map(
        self, transformed: Float[Tensor, "N K"], f: Float[Tensor, "N K"], linear: Float[Tensor, "N K"]
    ) -> Float[Tensor, "N K"]:
        """Appendix B, the map from a transformed output ỹ back to y, with `linear` = J w*:

        y = h(f) + (∂h/∂f) (ỹ − J w*).
        """
        step = self.mean_jacobian(f) @ (transformed - linear).unsqueeze(-1)
        return self.mean(f) + step.squeeze(-1)


class ClassificationLikelihood(Likelihood):
    """A likelihood whose mean h(f) is a probability: sigmoid or softmax."""

    @abstractmethod
    def probit(self, f_mean: Float[Tensor, "N K"], f_covariance: Float[Tensor, "N K K"]) -> Float[Tensor, "N K"]:
        """MacKay's probit approximation of E[h(f)] for f ~ N(m, C)."""


def probit_scale(variance: Float[Tensor, "N *K"]) -> Float[Tensor, "N *K"]:
    """√(1 + π v / 8), by which MacKay's approximation divides a logit of variance v."""
    scale = 1 + (math.pi / 8) * variance
    bad = ~(scale > 0)
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        raise NotPositiveDefiniteError(
            f"f_covariance: expected variances ≥ 0 on its diagonal; got {variance[index].item():.6g} for "
            f"example {index[0]}, output {index[-1]}. Compute the covariance in float64, or check where it comes from."
        )
    return scale.sqrt()


def likelihood_from_state(name: str, state: dict[str, Tensor]) -> Likelihood:
    """The likelihood registered as `name`, with the parameters in `state`: the inverse of (`name`, `state()`)."""
    if name not in _REGISTRY:
        known = ", ".join(repr(key) for key in sorted(_REGISTRY))
        raise InputError(f"likelihood: expected one of {known}; got {name!r}. Import the module that defines it first.")
    return _REGISTRY[name].from_state(state)


def is_registered(name: str) -> bool:
    """Whether a likelihood of this name is defined in the package or in a module that was imported."""
    return name in _REGISTRY


def check_state_keys(name: str, state: dict[str, Tensor], expected: set[str]) -> None:
    """Raise a `FileFormatError` unless `state` holds exactly the expected tensors."""
    if set(state) != expected:
        raise FileFormatError(
            f"state: expected exactly {sorted(expected)} for the {name!r} likelihood; got {sorted(state)}. "
            "The file is damaged or was written by another version: save the likelihood again."
        )


def _register(cls: type[Likelihood]) -> None:
    """Register a class under its name; it may be defined again (a notebook cell), but not by a different class."""
    known = _REGISTRY.get(cls.name)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(
            f"name: {cls.name!r} belongs to {known.__module__}.{known.__qualname__}. "
            f"Give {cls.__qualname__} another name."
        )
    _REGISTRY[cls.name] = cls
