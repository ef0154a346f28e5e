"""Data shared by several processes: the share of each one, what must be the same in all, and the GP of all the data."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import torch

from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.likelihoods import GaussianLikelihood, Likelihood
from dnn2gp.network import Network
from dnn2gp.network.data import Data
from dnn2gp.network.inputs import Inputs, OnDemand, example_of, leaves, map_inputs
from dnn2gp.network.views import Share, share_of
from dnn2gp.support.errors import InputError
from dnn2gp.support.memory import check_budget, default_budget
from dnn2gp.support.processes import ALONE, Processes, Team


def team_of(processes: object) -> Team:
    """The processes that a user passed as `processes=`; `ALONE` for None."""
    if processes is None or isinstance(processes, Processes):
        return processes or ALONE
    raise InputError(f"processes: expected Processes() or None; got {processes!r}.")


def own_share(team: Team, data: Data, likelihood: Likelihood) -> tuple[Data, Likelihood]:
    """The examples of this process and their noise, as a copy, so that the other examples can be freed."""
    if not (isinstance(team, Processes) and team.split):
        return data, likelihood
    own = team.share(data.num_examples)
    few = share_of(data.inputs, own)
    few = few if isinstance(few, OnDemand) else map_inputs(torch.clone, few)
    return Data(few, data.targets[own].clone()), likelihood.take(own)


def check_same(team: Team, function: Network, data: Data, likelihood: Likelihood) -> None:
    """Raise unless all processes have the same network and likelihood and, if these split the data, the same data."""
    if not isinstance(team, Processes):
        return
    same: dict[str, object] = {"network (weights and buffers)": {**function.state(), "weights": function.weights}}
    if team.split or not likelihood.per_example:
        same["likelihood"] = [likelihood.name, likelihood.state()]
    if team.split:
        inputs = data.inputs
        ends = (
            inputs.checksums
            if isinstance(inputs, OnDemand)
            else [leaf[:: max(1, len(leaf) - 1)] for leaf in leaves(inputs)]
        )
        same |= {"number of examples": data.num_examples, "targets": data.targets, "inputs": ends}
    else:
        same["form of the inputs"] = [(leaf.dtype, tuple(leaf.shape[1:])) for leaf in leaves(example_of(data.inputs))]
    team.agree(same)


def shared_budget(team: Team, memory_budget: int | float | None) -> int | float | None:
    """The memory budget of each process, the same in all; by default, processes on one machine divide the usual one."""
    if not isinstance(team, Processes):
        return memory_budget
    own = check_budget(memory_budget) or default_budget() // team.on_this_machine
    return int(team.smallest(own))


def whole(gp: GaussianProcess) -> GaussianProcess:
    """The same GP with the examples of all processes, as a single process would have it."""
    expansion = gp.model.expansion
    team, features = expansion.team, expansion.features.of_team(ALONE)
    gathered = replace(
        expansion,
        features=features,
        inputs=_all_inputs(team, expansion.inputs),
        residual=team.gathered(expansion.residual),
        root=team.gathered(expansion.root),
        targets=None if expansion.targets is None else team.gathered(expansion.targets),
        counts=None,
    )
    posterior = copy(gp.inference)
    posterior.model = replace(gp.model, expansion=gathered)
    likelihood = gp.likelihood
    if isinstance(likelihood, GaussianLikelihood) and likelihood.per_example:
        likelihood = GaussianLikelihood(team.gathered(likelihood.sigma))
    own = features if gp.features is expansion.features else gp.features.of_team(ALONE)
    return replace(gp, features=own, inference=posterior, likelihood=likelihood)


def _all_inputs(team: Team, inputs: Inputs) -> Inputs:
    """The examples of all processes, in order; those that are read on demand are not gathered."""
    if isinstance(inputs, Share):
        return inputs.inputs
    if isinstance(inputs, OnDemand):
        raise InputError(
            "save: expected every process to have been given all the training data, as they are read on demand; got a "
            "GP whose processes have only their own. Pass all the data to every process, with Processes()."
        )
    return map_inputs(team.gathered, inputs)
