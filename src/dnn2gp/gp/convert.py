"""convert(network, data, likelihood): steps A, B and C in one call; convert_step does the same for a training step."""

from __future__ import annotations

import json
from collections.abc import Callable
from os import PathLike
from typing import final

import torch
from torch import Tensor, nn

from dnn2gp.features import LayerwiseFeatures, NetworkFeatures, StackedFeatures
from dnn2gp.gp.automatic import Predictor, automatic, warn_if_strong
from dnn2gp.gp.by_evidence import ByEvidence, tune_model
from dnn2gp.gp.calibrated import by_validation, calibration_for
from dnn2gp.gp.cautious import warn_if_cautious
from dnn2gp.gp.checkpoint import checkpoint_bytes, checkpointed
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.means import with_mean
from dnn2gp.gp.moved import warn_if_moved
from dnn2gp.gp.shared import check_same, own_share, shared_budget, team_of
from dnn2gp.inference import (
    Decomposition,
    Inference,
    LinearisedMode,
    LinearModel,
    Mean,
    NetworkOutput,
    Posterior,
    choose,
)
from dnn2gp.inference.calibration import NONE
from dnn2gp.inference.choice import exact_words
from dnn2gp.inference.iterative.posterior import IterativePosterior
from dnn2gp.likelihoods import Likelihood
from dnn2gp.network import Network
from dnn2gp.network.anomalies import anomalies_explained
from dnn2gp.network.data import Data, read_data
from dnn2gp.network.inputs import Inputs, OnDemand, example_of, leaves, num_examples
from dnn2gp.support.allocator import within
from dnn2gp.support.errors import (
    ApproximationWarning,
    InputError,
    NotAMinimumWarning,
    NotConvergedError,
    ProbabilitiesWarning,
    warn_user,
)
from dnn2gp.support.memory import SMALL, check_budget, default_budget, holding, require
from dnn2gp.support.processes import Processes, Team
from dnn2gp.support.progress import show_progress
from dnn2gp.support.resumable import remembered_text
from dnn2gp.weights.columns import SampledColumns, many_classes_words
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian
from dnn2gp.weights.online_newton import Sites, State
from dnn2gp.weights.priors import PriorPrecision, expand_precision
from dnn2gp.weights.structures import Structure
from dnn2gp.weights.subset import Subset, subset_names


@torch.inference_mode(False)  # its tensors are used outside of it
def convert(
    network: nn.Module,
    data: object,
    likelihood: Likelihood,
    prior_precision: PriorPrecision | ByEvidence | str | None = None,
    *,
    mean: Mean | None = None,
    validation: object = None,
    subset: Subset | None = None,
    structure: Structure | None = None,
    inference: Inference | None = None,
    features: type[NetworkFeatures] = LayerwiseFeatures,
    expansion: Callable[..., Expansion] = Expansion.gauss_newton,
    columns: SampledColumns | None = None,
    memory_budget: int | float | None = None,
    progress: bool = False,
    processes: Processes | None = None,
    checkpoint: str | PathLike[str] | None = None,
) -> GaussianProcess:
    """Turn a trained network into the Gaussian process of Eq. (9).

    network          any nn.Module; its weights with requires_grad are the ones that get a posterior
    data             the training set: (inputs, targets), a Dataset, or a DataLoader that does not shuffle; examples of
                     a Dataset that would take more than an eighth of the memory budget are read on demand
    likelihood       the loss it was trained with, e.g. CategoricalLikelihood(); GaussianLikelihood() leaves the noise
                     σ open, so that it is tuned by the evidence too
    prior_precision  δ of the L2 penalty ½ δ wᵀw on the *summed* loss: one number, one per layer, or one per weight
                     (see precision_from_weight_decay for networks trained on the mean loss); by default, the single
                     δ with the largest evidence at these weights (`gp.tuning` keeps the curve; see ByEvidence)
    mean             what predictions are centred at: NetworkOutput(), LinearisedMode() or GaussNewtonStep(), each with
                     the exact posterior covariance. By default, the mean and the calibration of a classifier are chosen
                     by leave-one-out or on the validation set, and a regression has its exact mean
    validation       data that the network was not trained on, in the same form as `data`: it chooses the mean and the
                     calibration, or only the calibration if you pass a mean
    subset           the layers that get a posterior; all others stay fixed: "last layer", names of modules, or modules
    structure        Dense(), the default, is exact; BlockDiagonal(), Kronecker() and Diagonal() are cheaper and far
                     from exact. structure=Kronecker() is short for inference=WeightSpace(Kronecker())
    inference        WeightSpace() or FunctionSpace(), which are exact and agree, or Iterative(), which is not exact and
                     reports its error; by default an exact one if it fits into memory and takes at most minutes
    features         the engine for Jacobian products: LayerwiseFeatures, or JacobianFeatures (torch.func), which agree
    expansion        Expansion.gauss_newton, or Expansion.empirical_fisher for gradient features
    columns          SampledColumns(16): estimate the curvature of many classes from so many random columns per example
    memory_budget    in bytes; by default half of the free memory
    progress         whether to show progress bars
    processes        Processes(): the processes that share the examples, e.g. those that torchrun has started. All of
                     them must call convert with the same arguments, and all get the same GP
    checkpoint       a new or empty folder for the steps of a long conversion: if it is killed, the same call goes on
                     where it stopped. On success, the folder is emptied
    """
    team = team_of(processes)
    with team.together(), show_progress(progress and team.rank == 0), anomalies_explained():
        likelihood = _checked_likelihood(likelihood).detached()
        chosen = _Chosen(
            None if inference is None else Inference.checked("inference", inference),
            None if structure is None else Structure.checked("structure", structure),
        )
        _check_callables(features, expansion)
        mean = None if mean is None else Mean.checked("mean", mean)
        _check_columns(columns, likelihood, expansion)
        arguments: dict[str, object] = {
            "prior_precision": prior_precision,
            "mean": mean,
            "validation": validation is not None,
            "structure": structure,
            "inference": inference,
            "features": features,
            "expansion": expansion,
            "columns": columns,
        }
        team.agree({"arguments of convert": [*arguments.values(), subset, checkpoint is None]})
        budget = shared_budget(team, memory_budget)
        training = read_data(data, check_budget(budget) or default_budget())
        function, likelihood, inputs, targets = _prepared(network, training, likelihood, subset, team)
        jacobian = features(function, inputs, memory_budget=budget).of_team(team)

        def expand(likelihood: Likelihood) -> Expansion:
            if columns is not None:
                return Expansion.gauss_newton(jacobian, inputs, targets, likelihood, columns)
            return expansion(jacobian, inputs, targets, likelihood)  # Eq. (5)

        taken = _data_bytes(jacobian, inputs, targets, likelihood, columns) + checkpoint_bytes(
            checkpoint, jacobian, inputs
        )
        kept = checkpointed(checkpoint, jacobian, inputs, targets, likelihood, arguments)
        with holding(taken), within(jacobian.budget()), kept:
            outputs = function.check_company(inputs, jacobian.outputs, jacobian.rounding_scale)
            _look_at_outputs(outputs, likelihood)
            tuned = tune_model(expand, likelihood, prior_precision, targets, function.layout, chosen, team)
            if tuned is not None:
                likelihood, prior_precision = tuned.likelihood, tuned.prior_precision
            assert not isinstance(prior_precision, str | ByEvidence | None)
            prior = Gaussian.prior(expand_precision(prior_precision, function.layout, function.weights))
            model = LinearModel.from_laplace(expand(likelihood), prior)  # (A), (B): Theorem 1
            if mean is None and validation is not None and model.expansion.targets is None:
                mean = NetworkOutput()  # gradient features have no mode
            known = None if tuned is None else tuned.decomposition
            found = _centred(model, chosen(model), likelihood, mean, validation, known)  # (C)
            _say_if_approximate(chosen, found.posterior, likelihood)
            with holding(found.posterior.bytes):
                warn_if_moved(found.posterior, likelihood, network, None if tuned is None else tuned.words)
                if tuned is None and found.strong_prior is not None:
                    warn_if_strong(found.strong_prior)
                if mean is not None and validation is None:
                    warn_if_cautious(found.posterior, likelihood)
                _ = found.posterior.mean  # so that predictions need no sums over the training data
        team.agree({"results (is validation= the same?)": [found.calibration, found.posterior.mean]})
        result = None if tuned is None else tuned.result
        gp = GaussianProcess(jacobian, found.posterior, likelihood, result, found.calibration)
        return gp if mean is None or validation is None else gp.calibrated(validation)


@final
class _Chosen:
    """The inference of all models of a conversion, chosen for the first of them."""

    def __init__(self, inference: Inference | None, structure: Structure | None) -> None:
        self._given = inference, structure
        self.automatic = inference is None and structure is None
        self._found: Inference | None = None

    def __call__(self, model: LinearModel) -> Inference:
        if self._found is None and self.automatic:  # it depends on the memory that is free
            text = remembered_text("choice", lambda: json.dumps(choose(model).encoded()))
            self._found = Inference.decoded(json.loads(text))
        self._found = choose(model, *self._given) if self._found is None else self._found
        return self._found


def _say_if_approximate(chosen: _Chosen, posterior: Posterior, likelihood: Likelihood) -> None:
    """Warn the user if the exact posterior was too expensive and an approximation was used instead."""
    if chosen.automatic and isinstance(posterior, IterativePosterior):
        report, method = posterior.report(), posterior.method
        warn_user(
            f"The exact posterior would take {exact_words(posterior.model)}. Instead, {method!r} was used: its "
            f"predictive variances have a relative standard deviation of {report.covariance_error:.1%} "
            f"(gp.inference.report()). {_faster(posterior, likelihood)}Pass an inference= or structure= to decide "
            "yourself.",
            ApproximationWarning,
        )


def _faster(posterior: Posterior, likelihood: Likelihood) -> str:
    """That columns can be sampled, if that would save much."""
    expansion = posterior.model.expansion
    words = many_classes_words(likelihood, expansion.residual.shape[1]) if expansion.columns is None else ""
    return f"For less work, sample the curvature{words}. " if words else ""


def _centred(
    model: LinearModel,
    method: Inference,
    likelihood: Likelihood,
    mean: Mean | None,
    validation: object,
    known: Decomposition | None,
) -> Predictor:
    """The posterior around the given mean, or around the one that predicts best."""
    if mean is not None:
        return Predictor(with_mean(method, model, mean, likelihood, known), NONE)
    if validation is None:
        return automatic(model, method, likelihood, known)
    features = model.expansion.features
    assert isinstance(features, NetworkFeatures)
    try:
        mode = with_mean(method, model, LinearisedMode(), likelihood, known)
    except NotConvergedError as error:
        warn_user(f"{error} The GP predicts around the network.", NotAMinimumWarning)
        around = with_mean(method, model, NetworkOutput(), likelihood, known)
        return Predictor(around, calibration_for(around, likelihood, features, validation))
    with holding(mode.bytes):
        return by_validation(mode, likelihood, validation, features.network)


@torch.inference_mode(False)  # its tensors are used outside of it
def convert_step(
    state: State, info: Sites, beta: float | None = None, *, inference: Inference | None = None
) -> GaussianProcess:
    """The Gaussian process of Eq. (14), which a step of an online-Newton method from q_t solves (Theorem 2).

    state      q_t, before the step
    info       the result of `OnlineNewton.update` or of an optimizer's `step`; or of `look`, on examples of your choice
    beta       β_t of the linear model, by default that of the step
    inference  WeightSpace() or FunctionSpace(), which agree; by default the one with the smaller matrix
    """
    given = None if inference is None else Inference.checked("inference", inference)
    if isinstance(info, Sites) and info.method.team.size > 1:
        raise InputError(
            "info: this step was taken by several processes, each with a share of its examples. Pass the data to "
            "optimizer.gaussian_process(data) instead."
        )
    model = LinearModel.from_step(state, info, beta)  # (A), (B): Theorem 2
    posterior = choose(model, given).infer(model)  # (C)
    features = model.expansion.features
    assert isinstance(features, NetworkFeatures | StackedFeatures)
    return GaussianProcess(features, posterior, info.method.likelihood)


def _checked_likelihood(likelihood: object) -> Likelihood:
    if not isinstance(likelihood, Likelihood):
        raise InputError(
            "likelihood: expected an instance of a dnn2gp likelihood, e.g. GaussianLikelihood(sigma=0.1) or "
            f"CategoricalLikelihood(); got {_described(likelihood)}. The arguments are "
            "convert(network, (inputs, targets), likelihood)."
        )
    return likelihood


def _check_callables(features: object, expansion: object) -> None:
    if not (isinstance(features, type) and issubclass(features, NetworkFeatures)):
        raise InputError(f"features: expected LayerwiseFeatures or JacobianFeatures; got {_described(features)}.")
    if not callable(expansion):
        raise InputError(
            "expansion: expected Expansion.gauss_newton or Expansion.empirical_fisher (of dnn2gp.weights); got "
            f"{_described(expansion)}."
        )


def _check_columns(columns: object, likelihood: Likelihood, expansion: object) -> None:
    if columns is None:
        return
    if not isinstance(columns, SampledColumns):
        raise InputError(f"columns: expected SampledColumns() or None; got {_described(columns)}.")
    columns.check(likelihood)
    if expansion is not Expansion.gauss_newton:
        raise InputError(
            "columns: expected expansion=Expansion.gauss_newton, whose curvature has a column per class; got another "
            "expansion. Leave one of the two arguments out."
        )


def _look_at_outputs(outputs: Tensor, likelihood: Likelihood) -> None:
    doubt = likelihood.doubt(outputs)
    if doubt is not None:
        warn_user(doubt, ProbabilitiesWarning)


def _described(value: object) -> str:
    """A short name for what was passed instead of a choice, without its data."""
    if isinstance(value, type):
        remedy = f" (write {value.__name__}())" if issubclass(value, Likelihood) else ""
        return f"the class {value.__name__}{remedy}"
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    return f"{type(value).__name__}{shape}"


def _prepared(
    network: nn.Module, training: Data, likelihood: Likelihood, subset: Subset | None, team: Team
) -> tuple[Network, Likelihood, Inputs, Tensor]:
    """The network as a function of the weights that get a posterior, and the data in the form that it takes.

    If several processes share the data, the inputs and targets are those of this process.
    """
    function = Network(network, training.inputs)
    if subset is not None:
        checked = function.check_inputs(training.inputs)
        function = function.restricted(subset_names(function, subset, checked, network))
    inputs = function.check_inputs(training.inputs)
    likelihood.check_outputs(function.output_shape)
    targets = likelihood.targets_for(training.targets, training.num_examples, function.output_shape, function.dtype)
    found = Data(inputs, targets.to(function.device))
    check_same(team, function, found, likelihood)
    own, likelihood = own_share(team, found, likelihood)
    return function, likelihood, own.inputs, own.targets


def _data_bytes(
    features: NetworkFeatures,
    inputs: Inputs,
    targets: Tensor,
    likelihood: Likelihood,
    columns: SampledColumns | None,
) -> int:
    """The memory for the data, if it fits into the budget: a copy of it, and its outputs, residuals and roots S.

    For inputs that are read on demand, this counts two parts besides the one in use, and a checksum per example.
    """
    copies = targets.nbytes + sum(leaf.nbytes for leaf in leaves(example_of(inputs)))
    if isinstance(inputs, OnDemand):
        copies += (2 * inputs.most - 1) * (copies - targets.nbytes) + 8 * inputs.num_examples
    K = features.num_outputs
    rank = K if columns is None else columns.rank(K)
    roots = num_examples(inputs) * K * (rank + 2) * features.anchor.element_size()
    words = many_classes_words(likelihood, K) if columns is None else ""
    what = "A part of the inputs, and all targets" if isinstance(inputs, OnDemand) else "A copy of the data"
    if copies + 4 * roots > SMALL:  # four while they are computed
        require(
            copies + 4 * roots,
            features.budget(),
            f"{what} ({num_examples(inputs)} examples) with the noise precision of its outputs",
            f"Use fewer examples, or sample the curvature{words}." if words else "Use fewer examples.",
        )
    return copies + roots
