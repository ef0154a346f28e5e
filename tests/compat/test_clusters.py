"""`tune.grid` on a Dask and on a Ray cluster of this machine, in an environment that has them (`make test-compat`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import joblib
import pytest

from dnn2gp import tune

pytestmark = pytest.mark.filterwarnings("ignore")
SETTINGS = {"scale": [0.5, 2.0, 3.0], "shift": [-1, 1]}


def fits() -> tuple[tune.Fit, tune.Fit]:
    """One with a closed form, which names its process, and one that fails. Workers cannot import a test, but
    functions inside functions are sent as they are."""

    def fit(scale: float, shift: int, repeat: int) -> dict[str, float]:
        return {"evidence": -((scale - 2.0) ** 2) + 0.1 * shift + 0.01 * repeat, "process": float(os.getpid())}

    def failing(scale: float, shift: int, repeat: int) -> float:
        if scale == 2.0:
            raise ArithmeticError("this network does not train")
        return scale

    return fit, failing


@pytest.fixture(scope="module")
def dask_cluster():
    distributed = pytest.importorskip("distributed", reason="Dask is in the environment of the benchmarks only")
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster):
        yield "dask"


@pytest.fixture(scope="module")
def ray_cluster():
    ray = pytest.importorskip("ray", reason="Ray is in the environment of the benchmarks only")
    from ray.util.joblib import register_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    register_ray()
    yield "ray"
    ray.shutdown()


@pytest.fixture(params=["dask", "ray"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_cluster")


def test_a_cluster_finds_what_one_process_finds(backend: str, tmp_path: Path) -> None:
    fit, _ = fits()
    alone = tune.grid(fit, SETTINGS, repeats=2, num_jobs=1)
    with joblib.parallel_config(backend=backend):
        found = tune.grid(fit, SETTINGS, repeats=2, folder=tmp_path)
    assert [(trial.settings, trial.repeat, trial.evidence) for trial in found.trials] == [
        (trial.settings, trial.repeat, trial.evidence) for trial in alone.trials
    ]
    assert found.best == alone.best == {"scale": 2.0, "shift": 1}
    assert os.getpid() not in {trial.values["process"] for trial in found.trials}
    assert len(list((tmp_path / "jobs").iterdir())) == 12


def test_a_cluster_goes_on_where_it_was_killed(backend: str, tmp_path: Path) -> None:
    fit, _ = fits()
    with joblib.parallel_config(backend=backend):
        first = tune.grid(fit, SETTINGS, folder=tmp_path)
        files = sorted((tmp_path / "jobs").iterdir())
        kept = files[0].read_text().replace(str(json.loads(files[0].read_text())["values"]["evidence"]), "7.5")
        files[0].write_text(kept)  # a result that no process would compute again
        for file in files[1:]:
            file.unlink()
        second = tune.grid(fit, SETTINGS, folder=tmp_path, resume=True)
    changed = [
        one.settings for one, other in zip(first.trials, second.trials, strict=True) if one.evidence != other.evidence
    ]
    assert len(changed) == 1
    assert max(trial.evidence for trial in second.trials) == 7.5


def test_an_error_of_a_worker_reaches_the_user(backend: str) -> None:
    _, failing = fits()
    with joblib.parallel_config(backend=backend), pytest.raises(ArithmeticError, match="does not train"):
        tune.grid(failing, SETTINGS)
