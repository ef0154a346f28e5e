"""save and load: a converted GP in one file, with everything that was computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from inspect import signature
from os import PathLike
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnn2gp.features import FeatureMap, GradientFeatures, LayerwiseFeatures, NetworkFeatures, StackedFeatures
from dnn2gp.gp.file_format import SavedFile, form, write_file
from dnn2gp.gp.file_header import Header
from dnn2gp.gp.file_schema import BUILT_IN, CHECKED_EXAMPLES, FIRST_EXAMPLES
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.means import mean_of
from dnn2gp.gp.shared import whole
from dnn2gp.inference import LinearModel, Posterior
from dnn2gp.likelihoods import CustomLikelihood, Likelihood, likelihood_from_state
from dnn2gp.network import Network
from dnn2gp.network.checksums import checksums
from dnn2gp.network.data import read_data
from dnn2gp.network.inputs import Inputs, OnDemand, example_of, leaves, take
from dnn2gp.network.views import Absent
from dnn2gp.support.errors import EXPECTED, FileFormatError, InputError, NetworkError, NotPositiveDefiniteError
from dnn2gp.support.files import as_path
from dnn2gp.support.json_text import short
from dnn2gp.support.memory import check_budget, default_budget, holding
from dnn2gp.support.randomness import global_states_kept
from dnn2gp.support.tensor_file import damaged
from dnn2gp.weights.expansion import Expansion
from dnn2gp.weights.gaussian import Gaussian


def save(gp: object, path: str | PathLike[str]) -> None:
    """Write the GP to one file, completely or not at all: weights, buffers, data, prior, likelihood and posterior.

    If several processes share the examples, all of them must call this; process 0 writes the file, with all examples.
    If the training data are read on demand, the file has their targets and checksums and the first inputs (see `load`).
    """
    if not isinstance(gp, GaussianProcess):
        raise InputError(f"save: expected a GaussianProcess, as returned by convert; got {type(gp).__name__}.")
    if gp.team.size == 1:
        write_file(as_path(path), _header(gp), _tensors(gp))
        return
    with gp.team.together():
        gathered = whole(gp)
        if gp.team.rank == 0:
            write_file(as_path(path), _header(gathered), _tensors(gathered))


@torch.inference_mode(False)  # its tensors are used outside of it
def load(
    path: str | PathLike[str],
    network: nn.Module | Callable[[], nn.Module],
    likelihood: Likelihood | None = None,
    memory_budget: int | float | None = None,
    features: Callable[..., NetworkFeatures] = LayerwiseFeatures,
    data: object = None,
) -> GaussianProcess:
    """Read a GP. `network` is a module of the converted class, with any weights, or a function that builds one.

    A custom likelihood and an engine are code and not in the file: pass them again as `likelihood` and `features`.
    Training data that did not fit into memory are not in the file either: pass them again as `data` if they are needed,
    that is, for everything with a GP in function space, and for `leave_one_out`, `condition` and `diagnose` of any GP.
    """
    if not callable(features):
        raise InputError(f"features: expected LayerwiseFeatures or JacobianFeatures; got {features!r}.")
    file = SavedFile.read(as_path(path), check_budget(memory_budget) or default_budget())
    header = file.header
    with _reading(file, "likelihood"):
        likelihood = _likelihood(likelihood, header.likelihood, file.part("likelihood"))
    inputs, module = file.inputs(), _module(network)
    _check_trainable(file, module)
    function = Network(module, inputs, state=file.part("network"), trainable=header.trainable)
    file = file.to(function.device)
    inputs = function.check_inputs(_whole(inputs, file, data, check_budget(memory_budget) or default_budget()))
    with holding(file.bytes):
        return _restored(file, function, inputs, likelihood, features, memory_budget)


def _whole(first: Inputs, file: SavedFile, data: object, budget: int) -> Inputs:
    """All training inputs: from the file, or from `data` if the file has only the first ones."""
    sums = file.part("streamed").get("checksums")
    if sums is None:
        return first
    if data is None:
        return Absent(first, sums)
    found = read_data(data, budget).inputs
    own = checksums(found)
    if not torch.equal(own, sums.to(own.device)):
        raise InputError(
            f"data: expected the {len(sums)} training examples that {file.path} was saved with, in the same order; got "
            f"{len(own)} examples that are not the same. Pass the data that were passed to convert."
        )
    return found


def _restored(
    file: SavedFile,
    function: Network,
    inputs: Inputs,
    likelihood: Likelihood,
    features: Callable[..., NetworkFeatures],
    memory_budget: int | float | None,
) -> GaussianProcess:
    """The GP of a file, whose tensors are in memory."""
    header = file.header
    jacobian = features(function, inputs, memory_budget=memory_budget)
    of_step, step = header.features == "step", file.part("step")
    own = _at_samples(jacobian, step["samples"]) if of_step else jacobian
    _check_outputs(own.outputs(take(inputs, slice(0, CHECKED_EXAMPLES))), file.part("check")["outputs"])
    expansion = _expansion(header, file.part("expansion"), own, inputs)
    expansion = _moved(expansion, file.part("model").get("moved"))
    expansion = expansion.anchored(step["anchor"]) if of_step else expansion
    with _reading(file, "prior"):
        state = file.part("prior")
        prior = Gaussian(state["mean"], header.prior.restored(state))
    model = LinearModel(expansion, prior, of_step=of_step, centre=file.part("model").get("centre"))
    with _reading(file, "inference"):
        posterior = header.inference.restored(model, file.part("inference"))
    _check_meaning(file, posterior, likelihood)
    return GaussianProcess(own, posterior, likelihood, header.tuning, header.calibration)


def _check_meaning(file: SavedFile, posterior: Posterior, likelihood: Likelihood) -> None:
    """Whether mean, calibration and targets are what the header says and the likelihood takes."""
    header, expansion = file.header, posterior.model.expansion
    if header.mean is not None and mean_of(posterior) != header.mean:
        found = f"the tensors of {mean_of(posterior)!r}"
        raise damaged(file.path, "mean", f"model/moved and model/centre of {header.mean!r}", found)
    try:
        header.calibration.applied_to(likelihood)
    except InputError as error:
        raise damaged(file.path, "calibration", f"one for the likelihood {header.likelihood!r}", str(error)) from error
    if expansion.targets is None or header.likelihood not in BUILT_IN:
        return
    try:
        likelihood.check_targets(
            expansion.targets, expansion.num_examples, expansion.features.num_outputs, expansion.anchor.dtype
        )
    except InputError as error:
        expected = f"targets of the likelihood {header.likelihood!r}"
        raise damaged(file.path, "expansion/targets", expected, short(str(error))) from error


def _header(gp: GaussianProcess) -> dict[str, Any]:
    expansion = gp.model.expansion
    features = expansion.features
    gradient = isinstance(features, GradientFeatures)
    columns = {} if expansion.columns is None else {"columns": expansion.columns.state()}
    return {
        "dnn2gp": version("dnn2gp"),
        "likelihood": gp.likelihood.name,
        "trainable": list(gp.network.layout.names),
        "inputs": form(example_of(features.form if isinstance(features, GradientFeatures) else expansion.inputs)),
        "features": "gradient" if gradient else "step" if gp.model.of_step else "jacobian",
        "quadratic": expansion.quadratic,
        "prior": gp.prior.precision.structure.encoded(),
        "inference": gp.inference.method.encoded(),
        "tuning": None if gp.tuning is None else gp.tuning.state(),
        "mean": gp.centre.encoded(),
        "calibration": asdict(gp.calibration),
        **columns,
    }


def _tensors(gp: GaussianProcess) -> dict[str, Tensor]:
    expansion, prior = gp.model.expansion, gp.prior
    features, residual, examples = expansion.features, expansion.residual, expansion.inputs
    if isinstance(features, GradientFeatures):
        residual, examples = features.residual(examples), features.examples(examples)
    on_demand = isinstance(examples, OnDemand)
    xs = leaves(take(examples, slice(0, FIRST_EXAMPLES)) if on_demand else examples)
    parts: dict[str, dict[str, Tensor]] = {
        "network": gp.network.state(),
        "check": {"outputs": gp.features.outputs(take(examples, slice(0, CHECKED_EXAMPLES)))},
        "inputs": {str(position): leaf for position, leaf in enumerate(xs)},
        "streamed": {"checksums": examples.checksums} if on_demand else {},
        "expansion": {"residual": residual, "root": expansion.root, "log_likelihood": expansion.log_likelihood},
        "prior": {"mean": prior.mean, **prior.precision.state()},
        "likelihood": {} if isinstance(gp.likelihood, CustomLikelihood) else gp.likelihood.state(),
        "inference": gp.inference.state(),
    }
    if expansion.targets is not None and not gp.model.of_step:
        parts["expansion"]["targets"] = expansion.targets
    mean = {"moved": expansion.moved, "centre": gp.model.centre}
    parts["model"] = {name: tensor for name, tensor in mean.items() if tensor is not None}
    if gp.model.of_step:
        maps = list(gp.features.maps) if isinstance(gp.features, StackedFeatures) else [gp.features]
        parts["step"] = {"anchor": expansion.anchor, "samples": torch.stack([each.anchor for each in maps])}
    return {f"{part}/{name}": tensor for part, members in parts.items() for name, tensor in members.items()}


def _at_samples(jacobian: NetworkFeatures, samples: Float[Tensor, "S P"]) -> NetworkFeatures | StackedFeatures:
    maps = [jacobian.at(weights) for weights in samples]
    return maps[0] if len(maps) == 1 else StackedFeatures(maps)


def _module(network: object) -> object:
    """The module, or what a class or function without arguments builds."""
    if isinstance(network, nn.Module) or not callable(network):
        return network
    try:
        signature(network).bind()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"network: expected a module, or a function without arguments that builds one; got {network!r} ({error}). "
            "Use e.g. load(path, lambda: MyNetwork(width=10))."
        ) from error
    with global_states_kept():  # a new module draws its first weights
        return network()


@contextmanager
def _reading(file: SavedFile, part: str) -> Iterator[None]:
    """Name the file and the part where a structure, inference or likelihood does not accept its tensors."""
    try:
        yield
    except Exception as error:
        if isinstance(error, EXPECTED) and not isinstance(error, NotPositiveDefiniteError):
            raise
        raise FileFormatError(
            f"{file.path}: {part}: its tensors cannot be used ({type(error).__name__}: {short(str(error))}). The file "
            "is damaged, or its classes are those of another release: save the GP again."
        ) from error


def _check_trainable(file: SavedFile, module: object) -> None:
    """Check that the weights w are parameters of the network rather than buffers."""
    buffers = {name for name, _ in module.named_buffers()} if isinstance(module, nn.Module) else set()
    for name in file.header.trainable:
        if name in buffers:
            raise FileFormatError(
                f"{file.path}: trainable: expected parameters of the network; got the buffer {name!r}. The file is "
                "damaged: save the GP again."
            )


def _check_outputs(found: Tensor, saved: Tensor) -> None:
    """Reject a network that accepts the saved weights but computes different outputs."""
    if found.shape != saved.shape or not torch.allclose(found, saved, rtol=1e-3, atol=1e-3 * saved.abs().max().item()):
        raise NetworkError(
            "network: expected the outputs that were saved; got different ones, although the weights fit. Look for "
            "a different activation, dropout or pooling, or for different arguments of the class."
        )


def _likelihood(given: Likelihood | None, name: str, state: dict[str, Tensor]) -> Likelihood:
    if given is not None:
        if not isinstance(given, Likelihood):
            raise InputError(f"likelihood: expected a dnn2gp likelihood (an instance); got {given!r}.")
        if given.name != name:
            raise InputError(
                f"likelihood: expected a {name!r} likelihood, with which the GP was saved; got a {given.name!r} one."
            )
        _check_parameters(given, state)
        return given.detached()
    if name == CustomLikelihood.name:
        raise InputError(
            "likelihood: the GP was saved with a custom likelihood, which is code and not in the file. Pass it as "
            "load(..., likelihood=...)."
        )
    return likelihood_from_state(name, state)


def _check_parameters(given: Likelihood, saved: dict[str, Tensor]) -> None:
    """A given likelihood must have the parameters of the saved one, with which the posterior was computed."""
    if isinstance(given, CustomLikelihood):
        return
    own = {name: tensor.to(saved[name]) for name, tensor in given.state().items() if name in saved}
    wrong = [name for name, tensor in saved.items() if name not in own or not torch.equal(own[name], tensor)]
    if wrong:
        raise InputError(
            f"likelihood: expected the {', '.join(wrong)} with which the GP was saved; got another. Leave likelihood= "
            "out, and pass the noise of new inputs to predict(inputs, likelihood=...)."
        )


def _expansion(
    header: Header, state: dict[str, Tensor], jacobian: NetworkFeatures | StackedFeatures, inputs: Inputs
) -> Expansion:
    residual, root, log_likelihood = (state[name] for name in ("residual", "root", "log_likelihood"))
    features: FeatureMap = jacobian
    if header.features == "gradient":
        assert isinstance(jacobian, NetworkFeatures)
        features = GradientFeatures(jacobian, inputs)
        inputs, residual = GradientFeatures.pair(inputs, residual), residual.new_ones(len(residual), 1)
    targets = state.get("targets")
    return Expansion(
        features,
        inputs,
        residual,
        root,
        jacobian.anchor,
        log_likelihood,
        header.quadratic,
        targets,
        columns=header.columns,
    )


def _moved(expansion: Expansion, moved: Float[Tensor, " P"] | None) -> Expansion:
    """The sites at the mode of the linearised network, if they were saved there."""
    if moved is None:
        return expansion
    anchor = (expansion.anchor.double() + moved).to(expansion.anchor.dtype)
    return replace(expansion, anchor=anchor, moved=moved)
