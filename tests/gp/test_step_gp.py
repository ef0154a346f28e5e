"""The GP of a training step: what it answers, that it stays, and what it does not have."""

from __future__ import annotations

import copy

import pytest
import torch
from optimizing import fresh, normalised_1d

from dnn2gp import OGGN, VOGGN, VOGN, WeightSpace, diagnose, load, save
from dnn2gp.inference import LinearModel
from dnn2gp.optim import Recorder
from dnn2gp.support.errors import InputError

from problems import problem
from reference import brute_force


def test_a_gp_stays_as_it_was_when_training_goes_on(tmp_path):
    """Neither buffers nor frozen weights of a GP, a record or an `info` move with the network's."""
    optimizer, module, x, y = normalised_1d(VOGGN)
    state = optimizer.snapshot()
    info = optimizer.step(x, y)
    gp = optimizer.gaussian_process((x, y), generator=torch.Generator().manual_seed(0))
    expected, after = gp.predict(x).mean.clone(), optimizer.posterior()
    for _ in range(5):
        optimizer.step(x + 1, y)
    torch.testing.assert_close(gp.predict(x).mean, expected, rtol=1e-13, atol=1e-14)
    posterior = WeightSpace().infer(LinearModel.from_step(state, info)).gaussian()
    torch.testing.assert_close(posterior.mean, after.mean, rtol=1e-9, atol=1e-10)
    save(gp, tmp_path / "gp.safetensors")
    again = load(tmp_path / "gp.safetensors", copy.deepcopy(module))
    torch.testing.assert_close(again.predict(x).mean, expected, rtol=1e-12, atol=1e-13)
    with pytest.raises(InputError, match="before the step"):
        LinearModel.from_step(optimizer.snapshot(), info)
    optimizer.snapshot().precision.matrix.zero_()
    optimizer.step(x, y)  # a snapshot is a copy


def test_several_samples_through_batch_normalisation():
    """Jᵀu and J v of the stacked features against autograd, at samples of a diagonal q."""
    optimizer, module, x, y = normalised_1d(VOGN, num_samples=3)
    gp = optimizer.gaussian_process((x, y), generator=torch.Generator().manual_seed(0))
    module.eval()
    jacobians = [brute_force.jacobian(brute_force.with_weights(module, each.anchor), x) for each in gp.features.maps]
    J = torch.cat(jacobians, 1)
    u = torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    v = torch.randn(J.shape[2], 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(gp.features.vjp(x, u), torch.einsum("nkp,nks->ps", J, u), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(gp.features.jvp(x, v), J @ v, rtol=1e-10, atol=1e-11)
    # The kernel is that of the average of the maps.
    mean = torch.stack(jacobians).mean(0)
    V = torch.diag(1 / gp.prior.precision.diagonal())
    full = torch.einsum("nkp,pq,mlq->nkml", mean, V, mean)
    torch.testing.assert_close(gp.kernel.full(x), full, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(gp.kernel.trace(x), full.diagonal(dim1=1, dim2=3).sum(-1), rtol=1e-10, atol=1e-13)


def test_what_a_gp_of_a_step_does_not_have():
    optimizer, _, x, y = normalised_1d(OGGN)
    gp = optimizer.gaussian_process((x, y))
    for question, words in ((gp.evidence_gradient, "training step"), (lambda: gp.condition((x, y)), "training step")):
        with pytest.raises(InputError, match=words):
            question()
    with pytest.raises(InputError, match="training step"):
        diagnose(gp)


def test_gp_of_the_present_iteration():
    case = problem("categorical", examples=8, outputs=3)
    optimizer, module, x, y = fresh(VOGN, case, num_samples=2)
    optimizer.step(x, y)
    before = optimizer.generator.get_state()
    gp = optimizer.gaussian_process((x, y), generator=torch.Generator().manual_seed(0))
    assert gp.num_maps == 2
    assert gp.predict(case.x_test).mean.shape == (4, 3)
    # V_t⁻¹ = (1−β) Σ_t⁻¹ + β δ
    expected = 0.95 * optimizer.posterior().precision.diagonal() + 0.05 * case.delta
    torch.testing.assert_close(gp.prior.precision.diagonal(), expected, rtol=1e-12, atol=0)
    assert torch.equal(optimizer.generator.get_state(), before)
    assert torch.equal(optimizer.posterior().mean, brute_force.flat_weights(module))


def test_recorder_keeps_gps_on_a_few_examples():
    optimizer, _, x, y = fresh(VOGN)
    other, _, _, _ = fresh(VOGN)
    recorder = Recorder((x[:4], y[:4]), [1, 3])
    optimizer.register_step_post_hook(recorder)
    for _ in range(4):
        optimizer.step(x, y)
        other.step(x, y)
    assert [record.step for record in recorder.records] == [1, 3]
    assert recorder.records[0].gp.model.expansion.num_examples == 4
    assert torch.equal(optimizer.posterior().mean, other.posterior().mean)  # recording changes nothing
    with pytest.raises(InputError, match="steps"):
        Recorder((x, y), [0])


@pytest.mark.parametrize("num_samples", [1, 3])
def test_gp_of_a_step_in_a_file(num_samples, tmp_path):
    case = problem("categorical", examples=8, outputs=3)
    optimizer, module, x, y = fresh(VOGN, case, num_samples=num_samples)
    optimizer.step(x, y)
    gp = optimizer.gaussian_process((x, y), generator=torch.Generator().manual_seed(0))
    save(gp, tmp_path / "gp.safetensors")
    again = load(tmp_path / "gp.safetensors", copy.deepcopy(module))
    for own, other in ((gp.predict(case.x_test), again.predict(case.x_test)),):
        torch.testing.assert_close(other.mean, own.mean, rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(other.epistemic, own.epistemic, rtol=1e-12, atol=1e-14)
    assert again.evidence().value == pytest.approx(gp.evidence().value, rel=1e-12)


def test_conditioning_a_gp_of_a_step_is_refused():
    optimizer, _, x, y = fresh(VOGN)
    gp = optimizer.gaussian_process((x, y))
    with pytest.raises(InputError, match="training step"):
        gp.condition((x, y))
