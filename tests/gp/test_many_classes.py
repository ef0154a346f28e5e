"""Classifiers whose curvature is sampled: against dense matrices of brute-force Jacobians, and with K = 100 classes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dnn2gp import (
    CategoricalLikelihood,
    Dense,
    Diagonal,
    FunctionSpace,
    GaussianLikelihood,
    Iterative,
    Kronecker,
    LinearisedMode,
    NetworkOutput,
    SampledColumns,
    TopClasses,
    TopPredictive,
    WeightSpace,
    convert,
    diagnose,
    load,
    save,
)
from dnn2gp.support.errors import ApproximationWarning, FileFormatError, InputError, MemoryBudgetError
from dnn2gp.support.tensor_file import TensorFile, write_tensors
from dnn2gp.weights import BlockDiagonal, Expansion

from reference import brute_force

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.CautiousWarning")
N, K, DELTA = 8, 9, 0.7
MODE = NetworkOutput(sites_at_mode=True)


def network(outputs=K, width=3, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def data(outputs=K, count=N, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return x, torch.randint(outputs, (count,), generator=generator)


FOUR = SampledColumns(4)


def converted(columns: SampledColumns | None = FOUR, outputs=K, **options):
    options = {"mean": NetworkOutput(), **options}
    return convert(network(outputs), data(outputs), CategoricalLikelihood(), DELTA, columns=columns, **options)


def dense_covariance(gp):
    """(δ I + Σᵢ Jᵢᵀ Sᵢ Sᵢᵀ Jᵢ)⁻¹ with J by autograd."""
    J = brute_force.jacobian(network(), data()[0])
    rows = gp.model.expansion.root.mT @ J
    return torch.linalg.inv(rows.flatten(0, 1).T @ rows.flatten(0, 1) + DELTA * torch.eye(J.shape[2]))


@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace(), Iterative(rank=45, samples=2)])
def test_predictive_covariance_is_that_of_the_columns(inference):
    gp = converted(inference=inference)
    assert gp.model.expansion.root.shape == (N, K, 4)
    x = data(seed=5)[0]
    J = brute_force.jacobian(network(), x)
    expected = J @ dense_covariance(gp) @ J.mT
    torch.testing.assert_close(gp.predict(x).latent_covariance, expected, rtol=1e-6, atol=1e-8)


def test_structures_are_those_of_the_columns():
    covariance = dense_covariance(converted())
    diagonal = converted(structure=Diagonal()).posterior.precision.dense().diagonal()
    torch.testing.assert_close(diagonal, torch.linalg.inv(covariance).diagonal())
    blocks = converted(structure=BlockDiagonal()).posterior.precision.dense()
    torch.testing.assert_close(blocks[:9, :9], torch.linalg.inv(covariance)[:9, :9])
    one = brute_force.jacobian(network(), data()[0][:1])
    single = convert(
        network(),
        tuple(each[:1] for each in data()),
        CategoricalLikelihood(),
        DELTA,
        mean=NetworkOutput(),
        structure=Kronecker(),
        columns=SampledColumns(1),
    )
    row = (single.model.expansion.root.mT @ one)[0]  # of one row, Kronecker factors are exact within a layer
    own = row.T @ row + DELTA * torch.eye(row.shape[1])
    torch.testing.assert_close(single.posterior.precision.dense()[:9, :9], own[:9, :9])


def test_enough_columns_change_nothing():
    x = data(seed=5)[0]
    plain, all_columns = converted(None), converted(SampledColumns(K))
    assert torch.equal(plain.predict(x).latent_covariance, all_columns.predict(x).latent_covariance)


def test_mode_does_not_depend_on_the_columns():
    x = data(seed=5)[0]
    plain, sampled = (converted(columns, mean=LinearisedMode()) for columns in (None, SampledColumns(2)))
    torch.testing.assert_close(sampled.predict(x).latent_mean, plain.predict(x).latent_mean, rtol=1e-6, atol=1e-8)
    assert sampled.model.expansion.root.shape[2] == 2


def test_mean_over_seeds_is_the_curvature_of_the_weights():
    J, f = brute_force.jacobian(network(), data()[0]), brute_force.outputs(network(), data()[0])
    precision = brute_force.residual_and_precision(brute_force.categorical, f, data()[1])[1]
    expected = torch.einsum("nkp,nkl,nlq->pq", J, precision, J)
    roots = [SampledColumns(3, seed).root(CategoricalLikelihood(), f) for seed in range(200)]
    rows = torch.stack([(root.mT @ J).flatten(0, 1) for root in roots])
    found = rows.mT @ rows
    error = found.std(0) / len(found) ** 0.5
    assert (found.mean(0) - expected).norm() < 2 * error.norm() < 0.1 * expected.norm()


def test_leaving_out_an_example_removes_its_own_columns():
    gp = converted(mean=MODE)
    J, r = brute_force.jacobian(network(), data()[0]), gp.model.expansion.residual
    found, root = gp.leave_one_out(), gp.model.expansion.root
    for i in range(N):
        rows = (root.mT @ J)[[n for n in range(N) if n != i]].flatten(0, 1)
        without = torch.linalg.inv(rows.T @ rows + DELTA * torch.eye(J.shape[2]))
        expected = J[i] @ without @ J[i].T
        torch.testing.assert_close(found.latent_covariance[i], expected)
        torch.testing.assert_close(found.latent_mean[i], gp.predict(data()[0]).latent_mean[i] + expected @ r[i])


def test_condition_samples_the_new_examples_too():
    new = data(count=5, seed=7)
    gp = converted(mean=LinearisedMode())
    found = gp.condition(new)
    assert found.model.expansion.root.shape == (N + 5, K, 4)
    both = tuple(torch.cat(each) for each in zip(data(), new, strict=True))
    together = convert(
        network(), both, CategoricalLikelihood(), DELTA, mean=LinearisedMode(), columns=SampledColumns(4)
    )
    x = data(seed=5)[0]
    for name in ("latent_mean", "latent_covariance"):
        expected = getattr(together.predict(x), name)
        torch.testing.assert_close(getattr(found.predict(x), name), expected, rtol=1e-5, atol=1e-7)


def test_file_has_the_columns(tmp_path):
    gp, x = converted(SampledColumns(4, seed=3), mean=LinearisedMode()), data(seed=5)[0]
    save(gp, tmp_path / "gp")
    found = load(tmp_path / "gp", network)
    assert found.model.expansion.columns == SampledColumns(4, seed=3)
    assert torch.equal(found.predict(x).latent_covariance, gp.predict(x).latent_covariance)
    new = data(count=5, seed=7)
    close = torch.testing.assert_close
    close(found.condition(new).predict(x).latent_covariance, gp.condition(new).predict(x).latent_covariance)


@pytest.mark.parametrize("value", [{"num_columns": 0, "seed": 0}, {"num_columns": 4}, 4])
def test_damaged_columns_are_refused(tmp_path, value):
    save(converted(), tmp_path / "gp")
    with TensorFile.open(tmp_path / "gp", "dnn2gp", 10**9) as file:
        header, tensors = dict(file.header), {name: file.read(name) for name in file.entries}
    header.pop("checksums", None)
    write_tensors(tmp_path / "other", "dnn2gp", {**header, "columns": value}, tensors)
    with pytest.raises(FileFormatError, match="columns"):
        load(tmp_path / "other", network)


def test_what_makes_no_sense_is_refused():
    x = data()[0]
    with pytest.raises(InputError, match="columns"):
        convert(network(), (x, x @ torch.ones(2, K).double()), GaussianLikelihood(0.1), 1.0, columns=SampledColumns())
    with pytest.raises(InputError, match="expansion"):
        converted(expansion=Expansion.empirical_fisher)


def test_messages_of_large_problems_name_the_columns(monkeypatch):
    x, y = data(100, 2000)
    with pytest.raises(MemoryBudgetError, match="SampledColumns"):
        convert(network(100), (x, y), CategoricalLikelihood(), 1.0, memory_budget=2e8)
    monkeypatch.setattr("dnn2gp.inference.choice.MOST_OPERATIONS", 1.0)  # exact inference is too expensive
    with pytest.warns(ApproximationWarning, match="SampledColumns"):
        convert(network(100), (x[:20], y[:20]), CategoricalLikelihood(), 1.0, mean=NetworkOutput())


def test_leaving_out_an_example_with_the_most_probable_classes(monkeypatch):
    """The same as with all classes, for the covariance of the most probable ones and the movement of the mean."""
    outputs = 30
    options = {"outputs": outputs, "mean": MODE, "columns": SampledColumns(4)}
    whole = converted(**options).leave_one_out()
    monkeypatch.setattr("dnn2gp.inference.top_classes.MANY_CLASSES", outputs - 1)
    found = converted(**options).leave_one_out()
    top = found.prediction
    assert isinstance(top, TopPredictive)
    assert top.classes.shape == (N, 20)
    assert bool((top.classes == data(outputs)[1][:, None]).any(1).all())
    for n in range(N):
        own = top.classes[n]
        torch.testing.assert_close(found.latent_mean[n, own], whole.latent_mean[n, own])
        expected = whole.latent_covariance[n][own][:, own]
        torch.testing.assert_close(found.latent_covariance[n, :-1, :-1], expected)
    torch.testing.assert_close(found.log_prob, whole.log_prob, rtol=0, atol=0.1)


@pytest.mark.parametrize("inference", [Iterative(rank=600, samples=64), FunctionSpace()])
def test_inferences_agree_on_the_most_probable_classes(hundred, inference):
    """Iterative inference with all directions; its variances are bounded by those before the data."""
    options = {"mean": MODE, "columns": SampledColumns(16)}
    gps = [
        convert(network(100), data(100, 40), CategoricalLikelihood(), 1.0, inference=each, **options)
        for each in (WeightSpace(), inference)
    ]
    first, second = (gp.leave_one_out() for gp in gps)
    torch.testing.assert_close(first.latent_mean, second.latent_mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(first.latent_covariance, second.latent_covariance, rtol=1e-3, atol=1e-3)


def traces(gp, x):
    """tr J Σ̃ Jᵀ at each input."""
    return gp.predict(x).latent_covariance.diagonal(dim1=1, dim2=2).sum(1)


@pytest.mark.parametrize("structure", [Dense(), Kronecker()])
def test_stated_error_is_that_over_seeds(structure):
    """With few columns, variances are too large on average; the stated error has both parts."""
    x = data()[0]
    exact = traces(converted(None, structure=structure), x)
    gps = [converted(SampledColumns(4, seed), structure=structure) for seed in range(8)]
    gaps = torch.stack([traces(gp, x) for gp in gps]) / exact - 1
    stated = torch.tensor([gp.sampling_error for gp in gps], dtype=torch.float64)
    assert 0.6 < stated.square().mean().sqrt() / gaps.square().mean().sqrt() < 1.6
    assert stated.max() < 3 * stated.min()


def test_error_decreases_with_the_columns_and_is_zero_with_all():
    errors = [converted(SampledColumns(count)).sampling_error for count in (1, 3, 6, K - 1)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0
    assert errors[-1] == 0 == converted(None).sampling_error


def test_error_at_the_mode_survives_a_file(tmp_path):
    gp = converted(mean=LinearisedMode())
    save(gp, tmp_path / "gp")
    assert load(tmp_path / "gp", network).sampling_error == pytest.approx(gp.sampling_error)
    assert 0 < gp.sampling_error < 0.5


@pytest.fixture(scope="module")
def hundred():
    """The default GP of a classifier with 100 classes, 16 columns of which are sampled."""
    return convert(network(100), data(100, 40), CategoricalLikelihood(), columns=SampledColumns(16))


def test_default_gp_of_a_hundred_classes(hundred):
    p = hundred.predict(data(seed=5)[0]).probabilities
    assert p.shape == (N, 100)
    torch.testing.assert_close(p.sum(1), torch.ones(N, dtype=torch.float64))
    assert hundred.model.expansion.root.shape[2] == 16


def test_diagnosis_and_leave_one_out_of_a_hundred_classes(hundred):
    found = diagnose(hundred)
    assert found.left_out is not None
    assert found.left_out.nll > 0
    assert isinstance(hundred.leave_one_out().prediction, TopPredictive)
    assert hundred.leave_one_out().nll > 0


def test_validation_calibrates_a_hundred_classes(hundred):
    found = hundred.calibrated(data(100, 30, seed=8))
    assert found.calibration != hundred.calibration
    assert found.predict(data(seed=5)[0], classes=TopClasses(10)).probabilities.shape == (N, 100)


def test_too_many_classes_for_the_memory_name_the_remedy(hundred, monkeypatch):
    monkeypatch.setattr(hundred.features, "memory_budget", 10**5)
    with pytest.raises(MemoryBudgetError, match="TopClasses"):
        hundred.predict(data(seed=5)[0])


def test_error_of_a_hundred_classes(hundred):
    assert 0 < hundred.sampling_error < 0.1


def test_outlier_scores_of_a_hundred_classes(hundred):
    x = data(seed=5)[0]
    assert hundred.outlier_score(x).shape == (N,)
    assert hundred.outlier_threshold(x, 0.2) > 0
    with pytest.raises(InputError, match="familiar"):
        hundred.outlier_threshold()


@pytest.mark.parametrize("structure", [Diagonal(), BlockDiagonal(), Kronecker()])
def test_structures_of_a_hundred_classes(structure):
    gp = convert(network(100), data(100, 40), CategoricalLikelihood(), columns=SampledColumns(16), structure=structure)
    assert gp.predict(data(seed=5)[0], classes=TopClasses(10)).probabilities.shape == (N, 100)
    assert str(diagnose(gp))


def test_saved_gp_of_a_hundred_classes(hundred, tmp_path):
    save(hundred, tmp_path / "gp")
    found, x = load(tmp_path / "gp", lambda: network(100)), data(seed=5)[0]
    assert torch.equal(found.predict(x).probabilities, hundred.predict(x).probabilities)
    assert found.leave_one_out().nll == hundred.leave_one_out().nll
