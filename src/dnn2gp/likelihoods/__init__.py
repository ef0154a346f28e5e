"""Likelihoods: the loss ℓ(y, f), its derivatives r and Λ, and the link h(f) = E[y|f]. One file per likelihood.

May import `network` and `support`. Start with `base.py`, which says what a likelihood must answer, then `gaussian.py`.
"""

from dnn2gp.likelihoods.base import ClassificationLikelihood, Likelihood, is_registered, likelihood_from_state
from dnn2gp.likelihoods.bernoulli import BernoulliLikelihood
from dnn2gp.likelihoods.categorical import CategoricalLikelihood
from dnn2gp.likelihoods.custom import CustomLikelihood
from dnn2gp.likelihoods.gaussian import GaussianLikelihood
from dnn2gp.likelihoods.poisson import PoissonLikelihood

__all__ = [
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "ClassificationLikelihood",
    "CustomLikelihood",
    "GaussianLikelihood",
    "Likelihood",
    "PoissonLikelihood",
    "is_registered",
    "likelihood_from_state",
]
