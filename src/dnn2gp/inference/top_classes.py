"""Many classes: the covariance of the logits of the m most probable ones, and one more logit for all the others.

With T the m most probable classes at an input, R the others, and f of mean μ,

    g = log Σ_{j∈R} e^{f_j}  ≈  log Σ_{j∈R} e^{μ_j} + Σ_{j∈R} w_j (f_j − μ_j) ,      w_j = e^{μ_j} / Σ_{i∈R} e^{μ_i} .

The m + 1 logits (f_T, g) are then Gaussian, with covariance UᵀJ Σ̃ JᵀU for the K × (m + 1) matrix U = (e_T, w): products
with few cotangents per input rather than K. The mean of g is larger than that of its linear part, because the logits of
R vary on their own, too; this is `split.excess` of their mean variance, which eight more cotangents estimate.
Softmax of the m + 1 logits gives the probabilities of T and that of R as one class, in which classes have the shares w.
The probabilities sum to 1, and a constant that is added to all logits changes nothing. With m = K − 1, this is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dnn2gp.features import FeatureMap
from dnn2gp.inference.base import Posterior
from dnn2gp.inference.predictive import Latent, SiteCovariance
from dnn2gp.inference.split import NUM_PROBES, functionals, split_of
from dnn2gp.network.inputs import Inputs, differentiable, in_parts, num_examples
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import chunks
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.progress import track
from dnn2gp.weights.columns import MANY_CLASSES
from dnn2gp.weights.expansion import Expansion


@final
@dataclass(frozen=True)
class TopClasses:
    """gp.predict(x, classes=TopClasses(20)): the covariance of the 20 most probable classes of each input only."""

    num_classes: int = 20
    """m."""

    def __post_init__(self) -> None:
        whole_number("num_classes", self.num_classes)

    @staticmethod
    def checked(value: object) -> TopClasses:
        """`value`, if it is such a choice; otherwise an `InputError`."""
        if isinstance(value, TopClasses):
            return value
        raise InputError(f"classes: expected TopClasses(), e.g. TopClasses(20), or None; got {value!r}.")

    def latent(self, posterior: Posterior, features: FeatureMap, inputs: Inputs) -> Latent:
        """(f_T, g) at each input; all K logits, if there are no more than m."""
        if self.num_classes >= features.num_outputs:
            return posterior.latent(features, inputs)
        outputs, shift = posterior.means(features, inputs)
        classes = most_probable(outputs + shift, self.num_classes)
        whole, error = _covariance(posterior, features, inputs, outputs + shift, classes, None)
        covariance, split = split_of(whole, classes)
        return Latent(outputs, shift, covariance, error, split)


def training_latent(posterior: Posterior, sites: Expansion) -> Latent:
    """f at some training examples, for leave-one-out: of the most probable classes, if columns of many are sampled.

    The label of each example is among its classes.
    """
    features, inputs, count = sites.features, sites.inputs, TopClasses().num_classes
    if not has_many_classes(sites):
        return posterior.latent(features, inputs)
    assert sites.targets is not None
    outputs, shift = posterior.means(features, inputs)
    classes = most_probable(outputs + shift, count, sites.targets)
    whole, error = _covariance(posterior, features, inputs, outputs + shift, classes, site_rows(sites))
    covariance, split = split_of(whole, classes)
    return Latent(outputs, shift, covariance, error, split, SiteCovariance(whole, outputs + shift))


def new_latent(posterior: Posterior, features: FeatureMap, inputs: Inputs) -> Latent:
    """f at inputs that are not training examples, in the same form."""
    if not has_many_classes(posterior.model.expansion):
        return posterior.latent(features, inputs)
    return TopClasses().latent(posterior, features, inputs)


def top_error(posterior: Posterior, features: FeatureMap, inputs: Inputs) -> Float[Tensor, " N"]:
    """The relative standard deviation of the variances of the classes that the network finds most probable."""
    outputs = features.outputs(inputs)
    return _covariance(posterior, features, inputs, outputs, most_probable(outputs, TopClasses().num_classes), None)[1]


def has_many_classes(sites: Expansion) -> bool:
    """Whether only the most probable classes are computed where the user has not asked for a prediction."""
    return sites.columns is not None and sites.features.num_outputs > MANY_CLASSES


def site_rows(sites: Expansion) -> Float[Tensor, "N K R"]:
    """(r, S): what leaving out an example needs to know of its f."""
    return torch.cat([sites.residual.unsqueeze(2), sites.root], 2)


def most_probable(
    mean: Float[Tensor, "N K"], count: int, labels: Int[Tensor, " N"] | None = None
) -> Int[Tensor, "N m"]:
    """The classes with the largest logits, in descending order; a label that is not one of them replaces the last."""
    classes = mean.detach().topk(count, 1).indices
    if labels is not None:
        missing = (classes != labels[:, None]).all(1)
        classes[:, -1] = torch.where(missing, labels, classes[:, -1])
    return classes


def _covariance(
    posterior: Posterior,
    features: FeatureMap,
    inputs: Inputs,
    mean: Float[Tensor, "N K"],
    classes: Int[Tensor, "N m"],
    more: Float[Tensor, "N K R"] | None,
) -> tuple[Float[Tensor, "N q q"], Float[Tensor, " N"]]:
    """Cov(Uᵀf), or with `more` columns, Cov of (Uᵀf, Rᵀf); and its error, chunk by chunk.

    Factors have no gradient with respect to their cotangents. So for inputs that require one, all classes are computed.
    """
    if differentiable(inputs):
        whole, U = posterior.latent(features, inputs), functionals(mean, classes)
        return U.mT.to(whole.covariance.dtype) @ whole.covariance @ U.to(whole.covariance.dtype), whole.error
    num_rows = classes.shape[1] + 1 + NUM_PROBES + (0 if more is None else more.shape[2])
    places = list(chunks(num_examples(inputs), posterior.chunk(features, inputs, num_rows)))
    found = []
    for part, own in track(in_parts(inputs, places), "predictions", len(places)):
        cotangents = functionals(mean[part], classes[part]).to(features.anchor.dtype)
        if more is not None:
            cotangents = torch.cat([cotangents, more[part].to(cotangents.dtype)], 2)
        found.append(posterior.estimated(features.factors(own, cotangents)))
    covariance, error = zip(*found, strict=True)
    return torch.cat(covariance), torch.cat(error)
