"""convert(network, data, likelihood): steps A, B and C in one call; convert_step for a step."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dnn2gp.evidence.tuning_result import EVIDENCE
from dnn2gp.features import LayerwiseFeatures, NetworkFeatures, StackedFeatures
from dnn2gp.gp.by_evidence import Tuned, tune_model
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.inference import Inference, WeightSpace, choose_space
from dnn2gp.inference.linear_model import LinearModel
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network import Network
from dnn2gp.network.data import read_data
from dnn2gp.support.errors import InputError, NotAMinimumWarning, warn_user
from dnn2gp.support.progress import show_progress
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.online_newton import Sites, State
from dnn2gp.weights.priors import PriorPrecision, expand_precision
from dnn2gp.weights.structures import Dense, Structure
from dnn2gp.weights.subset import Subset, subset_names

# Above this share of its two parts (data and prior), the gradient of the loss is not that of a minimum.
_MINIMUM = 0.05
# A Gauss-Newton step that moves no output by more than this many posterior standard deviations does not matter.
_NOTICEABLE = 0.5
_EXAMPLES: dict[type, str] = {
    Inference: "WeightSpace or FunctionSpace",
}


def convert(
    network: nn.Module,
    data: object,
    likelihood: Likelihood,
    prior_precision: PriorPrecision | str = EVIDENCE,
    *,
    subset: Subset | None = None,
    structure: Structure = Dense(),
    inference: type[Inference] | None = None,
    features: Callable[..., NetworkFeatures] = LayerwiseFeatures,
    expansion: Callable[..., Expansion] = Expansion.gauss_newton,
    memory_budget: int | float | None = None,
    progress: bool = False,
) -> GaussianProcess:
    """Turn a trained network into the Gaussian process of Eq. (9).

    network          any nn.Module; its weights with requires_grad are those that get a posterior
    data             the training set: (inputs, targets), a Dataset, or a DataLoader that does not shuffle
    likelihood       the loss it was trained with, e.g. CategoricalLikelihood(); GaussianLikelihood() leaves the noise
                     σ open, to be tuned by the evidence too
    prior_precision  δ of the L2 penalty ½ δ wᵀw on the *summed* loss: a number, one a layer, or one a weight
                     (see precision_from_weight_decay for networks trained on the mean loss); "evidence", the default,
                     takes the one δ of the largest evidence at these weights, and `gp.tuning` keeps the curve
    subset           the layers that get a posterior, the others fixed: "last layer", names of modules, or modules
    structure        Dense() is exact; BlockDiagonal(), Kronecker() and Diagonal() are cheaper and far from exact
    inference        WeightSpace or FunctionSpace; by default the smaller of the two, which agree
    features         the engine for Jacobian products: LayerwiseFeatures, or JacobianFeatures (torch.func), which agree
    expansion        Expansion.gauss_newton, or Expansion.empirical_fisher for gradient features
    memory_budget    bytes; by default half of the free memory
    progress         show bars
    """
    if not isinstance(likelihood, Likelihood):
        raise InputError(
            "likelihood: expected an instance of a dnn2gp likelihood, e.g. GaussianLikelihood(sigma=0.1) or "
            f"CategoricalLikelihood(); got {likelihood!r}."
        )
    likelihood = likelihood.detached()
    structure = Structure.checked("structure", structure)
    _check_class("inference", inference or WeightSpace, Inference)
    if not callable(features):
        raise InputError(f"features: expected an engine such as LayerwiseFeatures; got {features!r}.")
    with show_progress(progress):
        training = read_data(data)
        function = Network(network, training.inputs)
        if subset is not None:
            checked = function.check_inputs(training.inputs)
            function = function.restricted(subset_names(function, subset, checked, network))
        inputs = function.check_inputs(training.inputs)
        likelihood.check_outputs(function.output_shape)
        targets = likelihood.check_targets(
            training.targets, training.num_examples, function.num_outputs, function.dtype
        ).to(function.device)
        jacobian = features(function, inputs, memory_budget=memory_budget)

        def expand(likelihood: Likelihood) -> Expansion:
            return expansion(jacobian, inputs, targets, likelihood)  # Eq. (5)

        tuned = tune_model(expand, likelihood, prior_precision, targets, function.layout, structure)
        if tuned is not None:
            likelihood, prior_precision = tuned.likelihood, tuned.prior_precision
        assert not isinstance(prior_precision, str)
        prior = Gaussian.prior(expand_precision(prior_precision, function.layout, function.weights))
        model = LinearModel.from_laplace(expand(likelihood), prior)  # (A), (B): Theorem 1
        posterior = _infer(model, structure, inference)  # (C)
        _warn_unless_minimum(posterior, network, tuned)
    return GaussianProcess(jacobian, posterior, likelihood, None if tuned is None else tuned.result)


def convert_step(
    state: State,
    info: Sites,
    beta: float | None = None,
    *,
    inference: type[Inference] | None = None,
) -> GaussianProcess:
    """The Gaussian process of Eq. (14), that a step of an online-Newton method solves from q_t (Theorem 2).

    state      q_t, before the step
    info       what `OnlineNewton.update` or an optimizer's `step` returned; or `look`, on examples of one's choice
    beta       β_t of the linear model, by default that of the step
    inference  WeightSpace or FunctionSpace; by default the smaller of the two, which agree
    """
    _check_class("inference", inference or WeightSpace, Inference)
    model = LinearModel.from_step(state, info, beta)  # (A), (B): Theorem 2
    posterior = _infer(model, Dense(), inference)  # (C)
    features = model.expansion.features
    assert isinstance(features, NetworkFeatures | StackedFeatures)
    return GaussianProcess(features, posterior, info.method.likelihood)


def _infer(model: LinearModel, structure: Structure, inference: type[Inference] | None) -> Inference:
    if structure != Dense():
        if inference not in (None, WeightSpace):
            raise InputError(
                f"structure={structure!r} approximates the weight posterior: use inference=WeightSpace with it."
            )
        return WeightSpace(model, structure)
    return (inference or choose_space(model))(model)


def _check_class(what: str, value: object, base: type) -> None:
    if not (isinstance(value, type) and issubclass(value, base)):
        raise InputError(f"{what}: expected a class such as {_EXAMPLES[base]}; got {value!r}.")


def _warn_unless_minimum(inference: Inference, network: nn.Module, tuned: Tuned | None) -> None:
    """Warn where the gradient is that of no minimum, and the step it asks for could move an output noticeably."""
    relative, bound = inference.model.relative_gradient(), inference.step_bound()
    if relative <= _MINIMUM or (bound <= _NOTICEABLE and inference.exact):
        return
    step = "The GP's mean is one Gauss-Newton step away from the network"
    if not inference.exact:
        step = "The minimum is about one Gauss-Newton step away, which a posterior that is not exact does not take"
    normalised = any(isinstance(part, _NormBase) for part in network.modules())
    mode = " in eval mode (here the statistics of its BatchNorm are fixed)," if normalised else ""
    if tuned is not None:
        step = f"The evidence asks for another prior than the training had ({tuned.words}). {step}"
    warn_user(
        f"The weights are not a minimum of the loss with this prior: the gradient is {relative:.0%} of its parts "
        f"(data and prior). {step}; it may move an output by up to {bound:.2g} posterior standard deviations. Train on"
        f"{mode} with all data at once (e.g. L-BFGS), or {_remedy(tuned)}; diagnose(gp) tells more.",
        NotAMinimumWarning,
    )


def _remedy(tuned: Tuned | None) -> str:
    if tuned is None:
        return "give the prior precision of the training (see precision_from_weight_decay)"
    return "let tune.gradient retrain the network and tune in turns until both settle"
