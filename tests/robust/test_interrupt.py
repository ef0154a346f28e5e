"""Ctrl-C at every moment: the network as it was, old files whole, nothing left beside them, and a retry works."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import dnn2gp.gp.storage
import dnn2gp.support.files
import dnn2gp.support.tensor_file
from dnn2gp import FunctionSpace, WeightSpace, convert, load, save
from dnn2gp.network import Network
from dnn2gp.network.eval_mode import evaluation_mode, statistics_mode
from dnn2gp.support.errors import TrainModeWarning

from robust.support import DELTA, NOISE, regression, untouched

pytestmark = pytest.mark.filterwarnings("ignore::dnn2gp.support.errors.NotAMinimumWarning")


class Clock:
    """Counts ticks, and is Ctrl-C at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.ticks, self.stop = 0, stop

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks == self.stop:
            raise KeyboardInterrupt

    def __deepcopy__(self, memo: dict) -> Clock:
        """Copies of a network that holds it count together."""
        return self


class Interrupted(nn.Module):
    """A network in train mode that sets attributes, and is interrupted in the middle of forward."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
        self.clock = clock
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(())
        self.last = self.first(x).tanh()
        self.clock.tick()
        return self.second(self.last)


@pytest.mark.slow
@pytest.mark.parametrize("inference", [WeightSpace(), FunctionSpace()], ids=repr)
def test_interrupted_convert(inference) -> None:
    x, y = regression()
    count = Clock()
    expected = convert(Interrupted(count), (x, y), NOISE, DELTA, inference=inference).predict(x)
    assert count.ticks > 5
    for stop in range(1, count.ticks + 1):
        module = Interrupted(Clock(stop))
        with untouched(module), pytest.raises(KeyboardInterrupt):
            convert(module, (x, y), NOISE, DELTA, inference=inference, progress=True).predict(x)
        with untouched(module):
            again = convert(module, (x, y), NOISE, DELTA, inference=inference).predict(x)
        assert torch.equal(again.variance, expected.variance)


def test_interrupted_predict_leaves_the_gp_whole() -> None:
    x, y = regression()
    count = Clock()
    expected = convert(Interrupted(count), (x, y), NOISE, DELTA, inference=FunctionSpace())
    before = count.ticks
    prediction, evidence = expected.predict(x), expected.evidence()
    assert count.ticks > before
    for after in range(1, count.ticks - before + 1):
        clock = Clock()
        module = Interrupted(clock)
        gp = convert(module, (x, y), NOISE, DELTA, inference=FunctionSpace())
        clock.stop = clock.ticks + after
        with untouched(module), pytest.raises(KeyboardInterrupt):
            _ = gp.predict(x), gp.evidence()
        assert torch.equal(gp.predict(x).variance, prediction.variance)
        assert gp.evidence().value == evidence.value


class Rows(Dataset):
    def __init__(self, clock: Clock) -> None:
        self.x, self.y = regression()
        self.clock = clock

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.clock.tick()
        return self.x[index], self.y[index]


def test_interrupted_reading() -> None:
    module = Interrupted(Clock())
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    for stop in (1, 8, 18):
        loader = DataLoader(Rows(Clock(stop)), batch_size=5, generator=generator)
        with untouched(module), pytest.raises(KeyboardInterrupt):
            convert(module, loader, NOISE, DELTA)
        assert torch.equal(generator.get_state(), before)


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def _half_a_file(tensors: object, place: Path, metadata: object) -> None:
    Path(place).write_bytes(b"half a file")
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "double"),
    [
        (dnn2gp.gp.storage, "_tensors", _interrupt),
        (dnn2gp.support.tensor_file, "save_file", _interrupt),
        (dnn2gp.support.tensor_file, "save_file", _half_a_file),
        (dnn2gp.support.files, "_flush_to_disk", _interrupt),
        (dnn2gp.support.files.os, "replace", _interrupt),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_interrupted_save(tmp_path, monkeypatch, target, name: str, double, exists: bool) -> None:
    x, y = regression()
    module = Interrupted(Clock())
    gp = convert(module, (x, y), NOISE, DELTA)
    path = tmp_path / "gp.safetensors"
    if exists:
        save(gp, path)
    before = path.read_bytes() if exists else None
    with monkeypatch.context() as patch:
        patch.setattr(target, name, double)
        with untouched(module), pytest.raises(KeyboardInterrupt):
            save(gp, path)
    assert [file.name for file in tmp_path.iterdir()] == ([path.name] if exists else [])
    assert not exists or path.read_bytes() == before
    save(gp, path)
    assert torch.equal(load(path, Interrupted(Clock())).predict(x).variance, gp.predict(x).variance)


def test_interrupted_load(tmp_path) -> None:
    x, y = regression()
    path = tmp_path / "gp.safetensors"
    save(convert(Interrupted(Clock()), (x, y), NOISE, DELTA), path)
    before = path.read_bytes()
    for stop in (1, 3, 5):
        module = Interrupted(Clock(stop))
        with untouched(module), pytest.raises(KeyboardInterrupt):
            load(path, module)
    assert path.read_bytes() == before


# At every instruction of ours ---------------------------------------------------------------------------------------


class Alarm:
    """Ctrl-C, as the signal that it is, before the n-th instruction that is run in some files."""

    def __init__(self, stop: int | None, files: tuple[str, ...]) -> None:
        self.moments, self.stop, self.files = 0, stop, files

    def __enter__(self) -> Alarm:
        self._before = signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        signal.signal(signal.SIGINT, self._before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> object:
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        frame.f_trace_opcodes = True
        self.moments += 1
        if self.moments == self.stop:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return self._trace


class Uncopyable(Interrupted):
    """A module that is run itself, in eval mode meanwhile, and sets attributes in both."""

    def __deepcopy__(self, memo: dict) -> nn.Module:
        raise TypeError("no copies")


RESTORING = ("network/eval_mode.py", "support/interrupts.py", "network/private_module.py", "contextlib.py")


@pytest.mark.skipif(sys.gettrace() is not None, reason="needs the trace function for itself")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "stride"), [("evaluation", 2), ("statistics", 3), ("network", 83)])
def test_an_interrupt_at_any_moment_leaves_the_network_as_it_was(kind: str, stride: int) -> None:
    x, _ = regression()

    def work(module: nn.Module) -> None:
        if kind == "evaluation":
            with evaluation_mode(module):
                module(x)
        elif kind == "statistics":
            with statistics_mode(module):
                module(x)
        else:
            Network(module, x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainModeWarning)
        with Alarm(None, RESTORING) as count:
            work(Uncopyable(Clock()))
        assert count.moments > 200
        interrupted = 0
        for stop in range(1, count.moments + 1, stride):
            module = Uncopyable(Clock())
            handler = signal.getsignal(signal.SIGINT)
            state = torch.get_rng_state()
            try:
                with Alarm(stop, RESTORING):
                    try:
                        work(module)
                    finally:
                        inside = signal.getsignal(signal.SIGINT)
                    torch.set_rng_state(state)
            except KeyboardInterrupt:
                interrupted += 1
                torch.set_rng_state(state)
            assert inside is signal.default_int_handler, stop
            assert signal.getsignal(signal.SIGINT) is handler
            assert all(part.training for part in module.modules()), stop
            assert module.last is None, stop
            assert torch.backends.mha.get_fastpath_enabled(), stop
            assert torch.backends.cuda.flash_sdp_enabled(), stop
        assert interrupted > 30


class Freeing(Uncopyable):
    """Ctrl-C arrives while an object is freed, where Python ignores exceptions."""

    def forward(self, x: Tensor) -> Tensor:
        class Freed:
            def __del__(self) -> None:
                signal.raise_signal(signal.SIGINT)

        if not self.clock.ticks:
            freed = Freed()
            del freed
        return super().forward(x)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
def test_an_interrupt_that_is_ignored_does_not_go_on_in_train_mode() -> None:
    x, _ = regression()
    module = Freeing(Clock())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores SIGINT
    try:
        with pytest.raises(KeyboardInterrupt), evaluation_mode(module):
            module(x)
        assert module.training
        with evaluation_mode(module):  # once
            module(x)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_that_does_not_raise_does_not_end_eval_mode() -> None:
    module, noted = Uncopyable(Clock()), []
    before = signal.signal(signal.SIGINT, lambda *_: noted.append(1))
    try:
        with evaluation_mode(module):
            signal.raise_signal(signal.SIGINT)
            assert noted
            assert not module.training
    finally:
        signal.signal(signal.SIGINT, before)
    assert module.training
