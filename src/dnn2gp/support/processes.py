"""Several processes that share the examples: sums over all examples are sums over the shares of all processes.

Every process holds the features of its own examples. To compute a sum over examples, Σᵢ φᵢ uᵢ or Σᵢ φᵢ Λᵢ φᵢᵀ, each
process sums over its own ones, and one all-reduce adds up the results. It returns the same number, bit for bit, in all
processes, so everything that follows from such sums is the same in all of them, too.

An exchange begins with a short header. By it, processes notice that one of them has failed, or that they are not at the
same place, before they wait for one another in vain.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from re import sub
from time import perf_counter
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from dnn2gp.support.errors import InputError, ProcessError
from dnn2gp.support.numbers import positive_number

# What a header announces.
_DONE, _FAILED, _SUM, _LARGEST, _GATHER = range(5)
_WORDS = ("the end of a computation", "an error", "a sum", "a maximum", "a collection")


class Team(ABC):
    """The processes that share the examples of a data set; `ALONE` where there is only this one."""

    rank: int
    """The number of this process, from 0."""
    size: int
    """How many processes there are."""

    @abstractmethod
    def sum(self, own: Tensor, of: Tensor | None = None) -> Tensor:
        """Σ of the tensors of all processes, written into `own`.

        `of` is the tensor by which each process has multiplied its share; it must be the same in all of them.
        """

    @abstractmethod
    def largest(self, own: int | float) -> float:
        """The largest number of all processes."""

    @abstractmethod
    def gathered(self, own: Tensor) -> Tensor:
        """The rows of all processes, those of process 0 first; processes may have different numbers of rows."""

    @abstractmethod
    def agree(self, values: Mapping[str, object]) -> None:
        """Raise `ProcessError` unless these values, given by name, are the same in all processes."""

    @abstractmethod
    def together(self) -> Any:
        """A context for work that all processes do at the same time: if it fails in one, it fails in all of them."""

    @abstractmethod
    def total(self, own: int | float) -> float:
        """Σ of the numbers of all processes, in float64."""

    def smallest(self, own: int | float) -> float:
        """The smallest number of all processes."""
        return -self.largest(-own)

    def counts(self, own: int) -> tuple[int, ...]:
        """The numbers of examples of all processes."""
        return tuple(self.gathered(torch.tensor([own])).tolist())

    def share(self, count: int) -> slice:
        """The examples of this process out of `count`: consecutive, without padding, and in no other share."""
        if count < self.size:
            raise InputError(
                f"data: expected at least one example per process; got {count} for {self.size} processes. Start fewer "
                "processes, or use more examples."
            )
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)


@final
class Alone(Team):
    """One process, which holds all examples and sends nothing."""

    rank, size = 0, 1

    def sum(self, own: Tensor, of: Tensor | None = None) -> Tensor:
        return own

    def largest(self, own: int | float) -> float:
        return float(own)

    def total(self, own: int | float) -> float:
        return float(own)

    def gathered(self, own: Tensor) -> Tensor:
        return own

    def agree(self, values: Mapping[str, object]) -> None:
        """Nothing to compare."""

    @contextmanager
    def together(self) -> Iterator[None]:
        yield


ALONE = Alone()


@dataclass
class Traffic:
    """What a process has exchanged with the others."""

    sums: int = 0
    """Sums of tensors over all examples: one per pass over the data."""
    exchanges: int = 0
    """Exchanges of every kind."""
    bytes: int = 0
    """Bytes that this process has sent; an all-reduce in a ring sends 2 (n − 1) / n times the tensor."""
    seconds: float = 0.0
    """Time spent on exchanges, including waiting for slower processes."""
    depth: int = 0
    """How deeply `Processes.together` is nested."""


@final
@dataclass(frozen=True)
class Processes(Team):
    """The processes of a torch.distributed group, e.g. those that `torchrun` has started.

    Call `torch.distributed.init_process_group("gloo")` first, or "nccl" for GPUs. All processes run the same program
    with the same arguments. They should have the same kind of processor and the same number of threads: results that
    must be the same in all of them must not differ in rounding.
    """

    group: Any = None
    """A process group; by default, all processes."""
    split: bool = True
    """Whether every process passes all the data and takes its share; otherwise, what a process passes is its share."""
    timeout: int | float = 600
    """The most seconds that a process waits for the slowest one. With gloo, a process that ends is noticed at once."""
    traffic: Traffic = field(default_factory=Traffic, compare=False, repr=False)
    """What this process has sent so far."""

    def __post_init__(self) -> None:
        positive_number("timeout", self.timeout)
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "processes: expected a process group of torch.distributed; there is none. Start the program with "
                '`torchrun --nproc-per-node=2 program.py`, and call torch.distributed.init_process_group("gloo") in '
                "it before Processes()."
            )
        if dist.get_rank(self.group) < 0:
            raise InputError("group: expected a group that this process belongs to; got one without it.")

    @property
    def rank(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of this process in its group."""
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How many processes the group has."""
        return dist.get_world_size(self.group)

    @property
    def on_this_machine(self) -> int:
        """How many processes run on this machine, according to torchrun."""
        return min(self.size, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

    def sum(self, own: Tensor, of: Tensor | None = None) -> Tensor:
        self._meet(_SUM, own.numel(), 0.0 if of is None else torch.sum(of, dtype=torch.float64).item())
        sent = own.detach().to(self._device).contiguous()
        self._run(lambda: dist.all_reduce(sent, group=self.group, async_op=True), self._ring(sent))
        self.traffic.sums += 1
        return own if sent.data_ptr() == own.data_ptr() else own.copy_(sent)

    def largest(self, own: int | float) -> float:
        return self._meet(_LARGEST, 1, 0.0, float(own)).max().item()

    def total(self, own: int | float) -> float:
        return self._meet(_SUM, 1, 0.0, float(own)).sum().item()

    def gathered(self, own: Tensor) -> Tensor:
        lengths = self._meet(_GATHER, own.shape[1:].numel(), 0.0, float(len(own))).long().tolist()
        padded = own.new_zeros(max(lengths), *own.shape[1:], device=self._device)
        padded[: len(own)] = own.detach()
        found = [torch.empty_like(padded) for _ in lengths]
        self._run(lambda: dist.all_gather(found, padded, group=self.group, async_op=True), self._spread(padded))
        return torch.cat([each[:length] for each, length in zip(found, lengths, strict=True)]).to(own.device)

    def agree(self, values: Mapping[str, object]) -> None:
        found = self.gathered(torch.tensor([[_digest(value) for value in values.values()]]))
        different = [name for name, column in zip(values, found.T, strict=True) if bool((column != column[0]).any())]
        if different:
            raise ProcessError(
                f"{self._me}: the processes do not have the same {', '.join(different)}. All of them must run the same "
                "program with the same arguments: fix the seeds with which networks are initialised and data are "
                "shuffled, or load the same file. If each process passes only its own examples, use "
                "Processes(split=False)."
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """If one process fails, the others raise `ProcessError` in their next exchange, or when this context ends.

        The group can be used again afterwards.
        """
        self.traffic.depth += 1
        failed = False
        try:
            yield
        except Exception as error:
            failed = not isinstance(error, ProcessError)
            raise
        finally:
            self.traffic.depth -= 1
            if failed and self.traffic.depth == 0:
                self._announce()
        if self.traffic.depth == 0:
            self._meet(_DONE, 0, 0.0)

    def _announce(self) -> None:
        """Tell the other processes that this one has failed, if they can still be reached."""
        try:
            self._headers(_FAILED, 0, 0.0, 0.0)
        except ProcessError:
            return  # the error of this process is the one to report

    def _meet(self, kind: int, size: int, of: float, value: float = 0.0) -> Tensor:
        """The `value` of every process, after a check that all of them are at the same place."""
        found = self._headers(kind, size, of, value)
        failed = (found[:, 0] == _FAILED).nonzero().flatten().tolist()
        if failed:
            raise ProcessError(
                f"{self._me}: process {', '.join(map(str, failed))} has failed; its own output says why."
            )
        same = found[:, :3].nan_to_num(nan=0.5)
        if bool((same != same[0]).any()):
            here = [f"process {rank}: {_WORDS[int(row[0])]} of {int(row[1])} numbers" for rank, row in enumerate(found)]
            raise ProcessError(
                f"{self._me}: the processes have come to different results or to different places ({'; '.join(here)}). "
                "Call the same functions with the same arguments in all of them, on the same kind of processor with "
                "the same number of threads (OMP_NUM_THREADS)."
            )
        return found[:, 3]

    def _headers(self, kind: int, size: int, of: float, value: float) -> Tensor:
        own = torch.tensor([kind, size, of, value], dtype=torch.float64, device=self._device)
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._run(lambda: dist.all_gather(found, own, group=self.group, async_op=True), self._spread(own))
        return torch.stack(found).cpu()

    def _run(self, start: Callable[[], Any], sent: int) -> None:
        """One exchange, with a time limit; `ProcessError` if it fails."""
        begin = perf_counter()
        try:
            start().wait(timedelta(seconds=self.timeout))
            if self._device.type == "cuda":
                torch.cuda.synchronize()
        except RuntimeError as error:
            raise ProcessError(
                f"{self._me}: another process has ended, cannot be reached, or did not arrive within {self.timeout:g} "
                f"seconds ({str(error).splitlines()[0]}). Look at the output of the others, and start all of them "
                "again. If one of them is only slower, increase Processes(timeout=...)."
            ) from error
        self.traffic.exchanges += 1
        self.traffic.bytes += sent
        self.traffic.seconds += perf_counter() - begin

    @property
    def _me(self) -> str:
        return f"process {self.rank} of {self.size}"

    @property
    def _device(self) -> torch.device:
        """The device from which tensors are sent."""
        nccl = dist.get_backend(self.group) == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def _ring(self, tensor: Tensor) -> int:
        return 2 * (self.size - 1) * tensor.nbytes // self.size

    def _spread(self, tensor: Tensor) -> int:
        return (self.size - 1) * tensor.nbytes


def _digest(value: object) -> int:
    """63 bits that almost surely differ for different values."""
    if isinstance(value, Mapping):
        value = {str(name): _digest(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        value = [_digest(each) for each in value]
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        content = repr((plain.dtype, tuple(plain.shape))).encode() + plain.flatten().view(torch.uint8).numpy().tobytes()
    else:
        content = sub(r" at 0x\w+", "", repr(value)).encode()  # addresses differ
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1
