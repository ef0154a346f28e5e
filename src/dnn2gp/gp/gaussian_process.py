"""Step C: the network as a Gaussian process, with predictions, samples, its kernel and its evidence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final, overload

import torch
from jaxtyping import Float
from torch import Tensor

from dnn2gp.evidence.function import EvidenceFunction
from dnn2gp.evidence.per_layer import LayerEvidence
from dnn2gp.evidence.spectrum import Spectrum
from dnn2gp.evidence.terms import Evidence, EvidenceGradient, evidence, evidence_gradient
from dnn2gp.evidence.tuning_result import TuningResult
from dnn2gp.features import AveragedFeatures, NetworkFeatures, StackedFeatures
from dnn2gp.gp.calibrated import calibration_for
from dnn2gp.gp.function_samples import FunctionSamples
from dnn2gp.gp.leave_one_out import LeaveOneOut, leave_one_out, own_noise
from dnn2gp.gp.means import mean_of
from dnn2gp.gp.outliers import exceeded_by, novelties, scores
from dnn2gp.gp.sampling_error import sampling_error
from dnn2gp.inference import (
    AveragedPredictive,
    Cost,
    Kernel,
    Latent,
    LinearModel,
    Mean,
    NetworkOutput,
    Posterior,
    Predictive,
    TopClasses,
    TopPredictive,
    costs,
    linearised_mode,
)
from dnn2gp.inference.calibration import NONE, Calibration
from dnn2gp.inference.predictive import finite
from dnn2gp.likelihoods import CategoricalLikelihood, Likelihood
from dnn2gp.network import Network
from dnn2gp.network.anomalies import anomalies_explained
from dnn2gp.network.data import read_data
from dnn2gp.network.inputs import Inputs
from dnn2gp.support.allocator import within
from dnn2gp.support.errors import InputError, MemoryBudgetError
from dnn2gp.support.memory import require
from dnn2gp.support.numbers import whole_number
from dnn2gp.support.processes import Team
from dnn2gp.weights.columns import many_classes_words
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian


@final
@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """f ~ GP(J(x)m, J(x) V J(x')ᵀ) conditioned on the transformed data: the network as a GP.

    Eq. (9) with the prior (m, V) = (0, δ⁻¹I) of Theorem 1; Eq. (14) with a general one. Where the features are those of
    S samples (`StackedFeatures`), every answer about f or y is the average over the S maps, as in Appendix B.3.
    """

    features: NetworkFeatures | StackedFeatures
    inference: Posterior
    """The posterior over the weights, as the chosen inference (`gp.inference.method`) computed it."""
    likelihood: Likelihood
    tuning: TuningResult | None = None
    """How δ (and σ) were chosen by the evidence, with the curves; None if they were given."""
    calibration: Calibration = NONE
    """The scale a of the covariance and the temperature τ (or factor of the noise): 1 for the exact GP."""

    def __repr__(self) -> str:
        """One line with the sizes, the likelihood and the posterior."""
        expansion = self.model.expansion
        sizes = (
            f"{expansion.num_examples} examples, {self.network.num_outputs} outputs, {self.network.num_weights} weights"
        )
        parts = [sizes, type(self.likelihood).__name__, self.inference.description, f"mean: {self.centre.name}"]
        if not self.calibration.is_identity:
            parts.append(str(self.calibration))
        return f"GaussianProcess({'; '.join(parts)})"

    @property
    def network(self) -> Network:
        """f_w(x), the network as a function of its weights."""
        return self.features.network

    @property
    def model(self) -> LinearModel:
        """The linear model of step B."""
        return self.inference.model

    @property
    def team(self) -> Team:
        """The processes that share the training examples.

        Methods that need the training examples must be called in all processes: `evidence`, `leave_one_out`,
        `calibrated`, `save`, `diagnose` and so on. Predictions can be made in a single one.
        """
        return self.features.team

    @property
    def centre(self) -> Mean:
        """Which function predictions are centred at."""
        return mean_of(self.inference)

    @property
    def prior(self) -> Gaussian:
        """N(m, V) over the weights."""
        return self.model.prior

    @property
    def kernel(self) -> Kernel:
        """The prior kernel κ(x, x') = J(x) V J(x')ᵀ, with J the average of the S maps if there are several."""
        features = self.features
        averaged = AveragedFeatures(features.maps) if isinstance(features, StackedFeatures) else features
        return Kernel(averaged, self.prior.precision)

    @cached_property
    def sampling_error(self) -> float:
        """The relative error of a predictive variance from drawing columns, root mean square; 0 without `columns=`.

        It is estimated with a second draw, from training inputs, and takes three times as long as the posterior. With
        more than 64 classes, it is that of the most probable ones. For `Iterative`, it includes the error of samples.
        """
        with self.team.together(), within(self.features.budget()):
            return sampling_error(self.inference, self.likelihood)

    @cached_property
    def posterior(self) -> Gaussian:
        """N(μ, Σ̃) over the weights, with the precision as a matrix; in function space, P × P and computed here."""
        return self.inference.gaussian()

    def prior_mean(self, inputs: Inputs) -> Float[Tensor, "N *shape"]:
        """J(x) m."""
        return self._linear(inputs, self.prior.mean)

    def mean(self, inputs: Inputs) -> Float[Tensor, "N *shape"]:
        """E[f(x) | D̃] = J(x) μ: the posterior mean over transformed outputs, which the paper plots."""
        return self._linear(inputs, self.inference.mean)

    def covariance(self, inputs: Inputs, other: Inputs | None = None) -> Float[Tensor, "N K M K"]:
        """Cov(f(x), f(x') | D̃) = a J(x) Σ̃ J(x')ᵀ / τ², jointly over all inputs; a = τ = 1 for the exact GP."""
        inputs = self._checked(inputs)
        other = None if other is None else self._checked(other)
        with within(self.features.budget()):
            found = self.inference.covariance(self.features, inputs, other).to(self.features.anchor.dtype)
        if self.num_maps > 1:
            K = self.network.num_outputs
            found = found.unflatten(3, (-1, K)).mean(3).unflatten(1, (-1, K)).mean(1)
        calibration = self.calibration
        found = found if calibration.is_identity else found * (calibration.scale / calibration.temperature**2)
        return finite(found, "covariance of f")

    @property
    def num_maps(self) -> int:
        """S, the number of samples of q_t whose features are stacked; 1 for Laplace, OGGN, or a single sample."""
        return self.features.num_outputs // self.network.num_outputs

    @overload
    def predict(self, inputs: Inputs, likelihood: Likelihood | None = None) -> Predictive: ...

    @overload
    def predict(
        self, inputs: Inputs, likelihood: Likelihood | None = None, *, classes: TopClasses
    ) -> Predictive | TopPredictive: ...

    def predict(
        self, inputs: Inputs, likelihood: Likelihood | None = None, *, classes: TopClasses | None = None
    ) -> Predictive | TopPredictive:
        """The predictive distribution of y, Appendix B. `likelihood` gives the noise at these inputs if it differs.

        Inputs that require a gradient get one: every field of the result can be differentiated with respect to them.
        With many classes, `classes=TopClasses(20)` computes the covariance of the 20 most probable ones only.
        """
        if classes is not None:
            return self._of_top(inputs, TopClasses.checked(classes))
        likelihood = None if likelihood is None else self._own_kind(likelihood)
        with anomalies_explained():
            latent = self._latent(self._checked(inputs)).finite()
        kind = Predictive if self.num_maps == 1 else AveragedPredictive
        return kind(
            likelihood=(likelihood or self.likelihood).detached(),
            output_shape=self.network.output_shape,
            outputs=latent.outputs,
            shift=latent.shift,
            latent_covariance=latent.covariance,
            latent_covariance_error=latent.error,
            noise_known=likelihood is not None or not self.likelihood.per_example,
            calibration=self.calibration,
        )

    def _latent(self, inputs: Inputs) -> Latent:
        """f at each input, with a hint if there are too many classes."""
        try:
            return self.inference.latent(self.features, inputs)
        except MemoryBudgetError as error:
            if not many_classes_words(self.likelihood, self.network.num_outputs):
                raise
            raise MemoryBudgetError(
                f"{error} Or compute the covariance of the most probable classes only: classes=TopClasses(20)."
            ) from error

    def _of_top(self, inputs: Inputs, classes: TopClasses) -> TopPredictive | Predictive:
        """The prediction with the covariance of some classes; the usual one, if that is all classes."""
        if not isinstance(self.likelihood, CategoricalLikelihood) or self.num_maps > 1:
            raise InputError(
                "classes: expected the GP of one network with a CategoricalLikelihood; got another one. Leave classes= "
                "out."
            )
        if classes.num_classes >= self.network.num_outputs:
            return self.predict(inputs)
        with anomalies_explained():
            latent = classes.latent(self.inference, self.features, self._checked(inputs)).finite()
        assert latent.split is not None
        return TopPredictive(
            likelihood=self.likelihood,
            output_shape=self.network.output_shape,
            outputs=latent.outputs,
            shift=latent.shift,
            latent_covariance=latent.covariance,
            split=latent.split,
            latent_covariance_error=latent.error,
            calibration=self.calibration,
        )

    def novelty(self, inputs: Inputs) -> Float[Tensor, "N *shape"]:
        """The share, from 0 to 1, of the prior variance of f at each input that the training data have left.

        One number per output; for exclusive classes, one per input. See `dnn2gp.inference.novelty`.
        """
        prior = self._prior_covariance(self._checked(inputs))
        found = novelties(self.predict(inputs), self.likelihood, prior).to(self.features.anchor.dtype)
        return found.reshape(len(found), *self.network.output_shape) if found.ndim > 1 else found

    def outlier_score(self, inputs: Inputs) -> Float[Tensor, "N *shape"]:
        """How likely an input is an outlier, for classification: its novelty times `Predictive.entropy`, in nats.

        It is large where the class is uncertain and the training data say little. Neither alone is enough: ambiguous
        examples of known classes have a large entropy, and some familiar ones have a large novelty.
        """
        return scores(self.predict(inputs), self.likelihood, self._prior_covariance(self._checked(inputs)))

    def outlier_threshold(self, familiar: Inputs | None = None, false_alarms: float = 0.05) -> float:
        """The outlier score above which to call an input unfamiliar, chosen by its share of false alarms.

        Args:
            familiar: Inputs like the training data that the network was not trained on, at least 1 / false_alarms of
                them. By default, the training examples are used, each predicted from all the others. The network was
                trained on these, so the share of other familiar inputs that exceed the threshold is somewhat larger.
            false_alarms: The share of the familiar inputs whose score exceeds the threshold, between 0 and 1.
        """
        if familiar is not None:
            return exceeded_by(false_alarms, self.outlier_score(familiar), enough=True)
        with self.team.together():
            prediction, inputs = self.leave_one_out().prediction, self.model.expansion.inputs
            if isinstance(prediction, TopPredictive):
                raise InputError(
                    "familiar: expected inputs like the training data that the network was not trained on, because "
                    "with SampledColumns, leave-one-out has the covariance of the most probable classes only; got None."
                )
            prior = self.team.gathered(self._prior_covariance(inputs))
        return exceeded_by(false_alarms, scores(prediction, self.likelihood, prior))

    def _prior_covariance(self, inputs: Inputs) -> Float[Tensor, "N K K"]:
        """J V₀ Jᵀ at each input, in float64."""
        if self.num_maps > 1:
            raise InputError(
                "novelty: expected the features of one network; got those of several samples of its weights."
            )
        return self.features.covariance(inputs, self.prior.precision.double()).double()

    def leave_one_out(self) -> LeaveOneOut:
        """The prediction of each training example by the GP of all others, in closed form.

        Exact for a Gaussian likelihood. For others it is exact to first order, at a minimum of the loss or at the mode
        of the linearised network: `convert` with `LinearisedMode()`, or with `NetworkOutput(sites_at_mode=True)`.
        """
        with self.team.together():
            return leave_one_out(self.inference, self.likelihood, self.calibration)

    @torch.inference_mode(False)
    def calibrated(self, validation: object = None) -> GaussianProcess:
        """The same GP with the calibration that predicts best: a and τ for classification, a and σ for regression.

        Args:
            validation: Data that the network was not trained on, which decides if given; temperature scaling is the
                special case a = 0. Without it, leave-one-out decides, which cannot see what the features of the
                network have memorised of the training data.
        """
        with self.team.together():
            found = calibration_for(self.inference, self.likelihood, self.features, validation)
        return replace(self, calibration=found)

    def sample_functions(self, num_samples: int, generator: torch.Generator | None = None) -> FunctionSamples:
        """Functions drawn from the posterior, which can be evaluated anywhere and as often as needed."""
        num_samples = whole_number("num_samples", num_samples)
        size = 3 * 8 * num_samples * self.network.num_weights
        require(size, self.features.budget(), f"Drawing {num_samples} functions", "Draw fewer at a time.")
        weights = self.inference.sample_weights(num_samples, generator)
        mean, scale = self.inference.mean, self.calibration.scale
        weights = weights if scale == 1 else mean + scale**0.5 * (weights - mean)
        anchor = self.model.expansion.anchor if self.model.centre is None else self.features.anchor
        return FunctionSamples(self.features, weights, anchor, self.calibration.temperature)

    @torch.inference_mode(False)
    def condition(self, data: object, likelihood: Likelihood | None = None) -> GaussianProcess:
        """The GP given more data, without retraining: p(f | D̃, D̃') with D̃' expanded at the same weights."""
        if self.team.size > 1:
            raise InputError(
                "condition: expected a GP whose examples are all in this process; got one whose examples are shared by "
                "several processes. Save it, and condition the GP that load returns, or convert all the data together."
            )
        if not self.inference.solves:
            raise InputError(
                f"condition: expected an exact posterior; got a {self.inference.description}, whose mean new targets "
                "would not move. Convert with structure=Dense()."
            )
        if self.model.expansion.features is not self.features:
            raise InputError("condition: expected a GP with Gauss-Newton features; got one with gradient features.")
        if self.model.of_step:
            raise InputError(
                "condition: expected the GP of a trained network; got that of a training step, in which each "
                "example counts β N / M times. Convert the network, and condition that GP."
            )
        if isinstance(self.centre, NetworkOutput) and not self.centre.sites_at_mode:
            raise InputError(
                "condition: expected a GP whose mean moves with new targets; got one with mean=NetworkOutput(). "
                "Convert with mean=LinearisedMode(), or with NetworkOutput(sites_at_mode=True)."
            )
        extra = read_data(data, self.features.budget())
        inputs = self.network.check_inputs(extra.inputs)
        likelihood = self._own_kind(likelihood).detached()
        network = self.network
        targets = likelihood.targets_for(extra.targets, extra.num_examples, network.output_shape, network.dtype)
        assert isinstance(self.features, NetworkFeatures)
        columns = self.model.expansion.columns
        expansion = Expansion.gauss_newton(self.features, inputs, targets.to(network.device), likelihood, columns)
        return replace(self, inference=self._conditioned(expansion, likelihood), tuning=None)

    def _conditioned(self, expansion: Expansion, likelihood: Likelihood) -> Posterior:
        """The posterior given more data; at the mode of the linearised network, if the sites are there."""
        model = self.model
        moved, centre = model.expansion.moved, model.centre
        if moved is None or centre is None:
            return self.inference.conditioned(expansion)
        pushed = self.features.jvp(expansion.inputs, moved.to(self.features.anchor.dtype)[:, None])[..., 0]
        outputs = (self.features.outputs(expansion.inputs) + pushed).double()
        joined = self.inference.rough_given(expansion.relinearised(likelihood, outputs, moved))
        found = linearised_mode(joined, own_noise(joined.model.expansion, likelihood))
        assert found.expansion.moved is not None
        mode = found.expansion.moved
        exactly = torch.equal(centre, moved)  # a sum would be rounded, and no longer be recognised as the mode
        return joined.method.infer(replace(found, centre=mode if exactly else centre + mode - moved))

    def _own_kind(self, likelihood: Likelihood | None) -> Likelihood:
        """The likelihood of other data: that of the GP, or another one of its kind (a different noise)."""
        if likelihood is not None and type(likelihood) is not type(self.likelihood):
            raise InputError(
                f"likelihood: expected a {type(self.likelihood).__name__}, as this GP has; got "
                f"{type(likelihood).__name__}. The outputs of one network mean the same for all data."
            )
        return likelihood or self.likelihood

    def costs(self) -> tuple[Cost, ...]:
        """The cost and the accuracy of each inference for this data and network, the smallest matrix first.

        They are followed by the cheaper structures of weight space, whose accuracy is known only where it was measured.
        """
        return costs(self.model)

    def evidence(self) -> Evidence:
        """The log marginal likelihood of the data, by its terms.

        It is evaluated where the sites of this GP are: by default, at the mode of the linearised network for a
        classifier. `tuning` has the evidences that chose δ, which for a classifier are those at the network's weights
        unless `ByEvidence(at=LinearisedMode())` was asked for.
        """
        with self.team.together():
            return evidence(self.inference)

    def evidence_gradient(self) -> EvidenceGradient:
        """The gradients of the log evidence with respect to δ and σ."""
        if self.model.of_step:
            raise InputError(
                "evidence_gradient: expected the GP of a trained network; got that of a training step, whose prior "
                "(m_t, V_t) is derived from q_t and δ. Convert the network, and use the gradient of that GP's "
                "evidence."
            )
        with self.team.together():
            return evidence_gradient(self.inference, self.likelihood, self.network.layout)

    @torch.inference_mode(False)
    def evidence_function(
        self, *, per_layer: bool = False, per_output: bool = False, at_weights: bool = False
    ) -> EvidenceFunction:
        """The log evidence for multiples of δ and σ at these features: differentiable, and fast to evaluate.

        A single δ and σ need one eigendecomposition (`Spectrum`); one δ per layer or one σ per output
        (`LayerEvidence`) need one factorisation per evaluation. `.maximise()` finds the largest value. `at_weights`:
        for a regression too, the Laplace evidence with the weights where they are, which is the one to maximise if the
        network is retrained afterwards; by default the weights of the linear model move with δ, as those of the GP do.
        """
        method = self.inference.method
        with self.team.together():
            if not per_layer and not per_output:
                return Spectrum.of(self.model, method, at_weights=at_weights)
            settings = {"per_layer": per_layer, "per_output": per_output, "at_weights": at_weights}
            return LayerEvidence(self.model, method, self.network.layout, **settings)

    def _linear(self, inputs: Inputs, weights: Float[Tensor, " P"]) -> Tensor:
        inputs = self._checked(inputs)
        values = self.features.jvp(inputs, weights[:, None])[..., 0]
        values = values.unflatten(1, (-1, self.network.num_outputs)).mean(1)
        return finite(values, "mean of f").reshape(len(values), *self.network.output_shape)

    def _checked(self, inputs: Inputs) -> Inputs:
        return self.features.checked_new(inputs)
