"""Long computations that survive a kill: each step's result is kept in a folder and read when the work is done again.

A deterministic computation goes through the same steps in the same order whenever it is repeated. Inside
`resumable(...)`, `remembered(name, compute)` writes the tensors that the n-th step returns to a file of this number and
name, with a hash of everything that the work depends on and of the steps before. When the computation is repeated with
the same folder, a step with the same hash reads them instead of computing them. Steps may contain steps; the files of
the inner ones are removed once the outer one is complete. Outside of `resumable`, `remembered` only calls `compute`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from dnn2gp.support.errors import FileFormatError, OtherWorkError
from dnn2gp.support.files import prepare_folder, read_regular, write_text
from dnn2gp.support.folders import claimed, differing
from dnn2gp.support.processes import ALONE, Team
from dnn2gp.support.tensor_file import TensorFile, damaged, write_tensors

Tensors = dict[str, Tensor]
_KEY, _PATH = "dnn2gp_step", "path"
_PURPOSE, _SUFFIX, _INNER = "checkpoint.json", ".safetensors", "+"
_TEXT = "text"


@contextmanager
def resumable(
    folder: Path | None, work: Callable[[], Mapping[str, str]], budget: int, team: Team = ALONE
) -> Iterator[None]:
    """A context whose steps are kept in `folder` until it ends without an error; without a folder, it does nothing.

    Args:
        folder: A new or empty folder, or one with steps of the same work. If several processes share the work, each
            has a folder of its own in it.
        work: A function that returns everything that the steps depend on, by names for messages.
        budget: The bytes that the tensors of one file may take.
        team: The processes that go through the same steps.

    Raises:
        OtherWorkError: If the folder has steps of other work, or other files.
        InputError: If the folder cannot be written to, or another process works in it.
    """
    if folder is None or _active.get() is not None:
        yield
        return
    own = folder if team.size == 1 else folder / f"process-{team.rank}"
    prepare_folder(own)
    with claimed(own, "checkpoint"):
        steps = _Steps(own, _kept_purpose(own, work()), budget, team)
        token = _active.set(steps)
        try:
            yield
        finally:
            _active.reset(token)
        steps.remove()


def remembered(name: str, compute: Callable[[], Tensors]) -> Tensors:
    """What `compute` returns, or what it returned when this step was completed before, then as tensors of the CPU."""
    steps = _active.get()
    return compute() if steps is None else steps.remembered(name, compute)


def remembered_text(name: str, compute: Callable[[], str]) -> str:
    """The same for a text."""

    def encoded() -> Tensors:
        return {_TEXT: torch.tensor(list(compute().encode()), dtype=torch.uint8)}

    return bytes(remembered(name, encoded)[_TEXT].tolist()).decode()


@final
class _Steps:
    """The steps of one computation, and where it is: inside which step, how many are before, and a hash of them."""

    def __init__(self, folder: Path, work: str, budget: int, team: Team) -> None:
        """`work` is a hash of what the steps depend on."""
        self._folder, self._budget, self._team = folder, budget, team
        self._outer, self._number, self._path = "", 0, work

    def remembered(self, name: str, compute: Callable[[], Tensors]) -> Tensors:
        """Read the next step, or compute and write it."""
        own = f"{self._outer}{self._number:04d}-{name}"
        self._number += 1
        self._path = sha256(f"{self._path} {own}".encode()).hexdigest()
        path = self._folder / f"{own}{_SUFFIX}"
        found = self._read(path)
        if not self._everywhere(found is not None) or found is None:
            found = self._computed(own, compute)
            write_tensors(path, _KEY, {_PATH: self._path}, found)
        for inner in self._folder.glob(f"{own}{_INNER}*{_SUFFIX}"):
            inner.unlink(missing_ok=True)
        return found

    def remove(self) -> None:
        """Remove the files of all steps, and what a killed process had half written."""
        for path in [*self._folder.glob(f"*{_SUFFIX}"), *self._folder.glob(f".*{_SUFFIX}")]:
            path.unlink(missing_ok=True)
        (self._folder / _PURPOSE).unlink(missing_ok=True)

    def _computed(self, own: str, compute: Callable[[], Tensors]) -> Tensors:
        """The result, in the layout that it has in a file, so that what follows is the same bit for bit."""
        before = self._outer, self._number, self._path
        self._outer, self._number = f"{own}{_INNER}", 0
        try:
            return {name: tensor.detach().contiguous() for name, tensor in compute().items()}
        finally:
            self._outer, self._number, self._path = before

    def _everywhere(self, done: bool) -> bool:
        """Whether all processes have completed a step: otherwise, they take it together."""
        return self._team.smallest(float(done)) == 1

    def _read(self, path: Path) -> Tensors | None:
        """The result of a step, if it was completed after the same steps as now."""
        if not path.exists():
            return None
        try:
            with TensorFile.open(path, _KEY, self._budget) as file:
                if not file.has_checksums:
                    raise damaged(path, _KEY, "checksums", "none")
                same = file.header.get(_PATH) == self._path
                return {name: file.read(name) for name in file.entries} if same else None
        except FileFormatError as error:
            raise FileFormatError(
                f"checkpoint: a step cannot be read ({error}) Delete this file to compute the step again."
            ) from error


_active: ContextVar[_Steps | None] = ContextVar("dnn2gp_steps", default=None)


def _kept_purpose(folder: Path, work: Mapping[str, str]) -> str:
    """Write down what the steps depend on, or check that it is the same as before; returns its hash."""
    described, text = folder / _PURPOSE, json.dumps(work, indent=1)
    if described.exists():
        before = read_regular(described).decode("utf-8", "replace")
        if before != text:
            raise OtherWorkError(
                f"checkpoint: {folder} holds an unfinished computation with other arguments (different: "
                f"{differing(before, text)}; see {described}). Repeat the call that began it, or choose another folder."
            )
    else:
        foreign = [path.name for path in sorted(folder.iterdir()) if not path.name.startswith(".dnn2gp")]
        if foreign:
            raise OtherWorkError(
                f"checkpoint: expected a new or empty folder, or one with an unfinished computation; got {folder}, "
                f"which holds {foreign[0]}. Choose another folder."
            )
        write_text(described, text)
    return sha256(text.encode()).hexdigest()
