"""Processes that belong together: whether one is alive, and workers that end when the process they work for is gone."""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass

import psutil

# Seconds between two looks at the process that a worker works for.
_PAUSE = 1.0


@dataclass(frozen=True)
class ProcessId:
    """One process of one machine. The time of its start tells it from a later process with the same number."""

    host: str
    number: int
    started: float

    @staticmethod
    def own() -> ProcessId:
        """The process that calls this."""
        return ProcessId(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    @property
    def gone(self) -> bool:
        """Whether it ran on this machine and has ended. A process that was killed but not waited for has ended."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.number)
            return process.status() == psutil.STATUS_ZOMBIE or abs(process.create_time() - self.started) >= 1
        except (psutil.NoSuchProcess, ValueError):
            return True
        except psutil.AccessDenied:  # another user's
            return False


_watched: set[ProcessId] = set()


def end_with(owner: ProcessId) -> None:
    """Let this process end within seconds once `owner` is gone: called at the start of each job, in the worker.

    A process that is killed by `kill -9` cannot stop its workers, which would keep their memory for minutes. Nothing
    happens in the owner itself, nor on another machine, where the scheduler of the cluster looks after its workers.
    (The kernel's own signal, PR_SET_PDEATHSIG, is sent when the *thread* that started the worker ends: too early.)
    """
    if owner.number == os.getpid() or owner.host != socket.gethostname() or owner in _watched:
        return
    _watched.add(owner)
    threading.Thread(target=_watch, args=(owner,), name=f"watching {owner.number}", daemon=True).start()


def _watch(owner: ProcessId) -> None:
    while not owner.gone:
        time.sleep(_PAUSE)
    os._exit(1)  # nobody waits for the results, and a clean exit could wait for the owner's queues
