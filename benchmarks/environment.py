"""The machine and the versions that results belong to."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

_PACKAGES = (
    "dnn2gp",
    "torch",
    "numpy",
    "laplace-torch",
    "backpack-for-pytorch",
    "curvlinops-for-pytorch",
    "jax",
    "jaxlib",
    "neural-tangents",
)


def environment(engine: str, quick: bool) -> dict[str, object]:
    """Results with the same environment belong to one report."""
    memory = psutil.virtual_memory().total / 1e9
    return {
        "machine": f"{_processor()}, {os.cpu_count()} logical CPUs, {memory:.0f} GB, {platform.system()}",
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "engine": engine,
        "quick": quick,
    }


def commit() -> str:
    """The commit of this source, with + where files differ from it; empty outside of a git repository."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
