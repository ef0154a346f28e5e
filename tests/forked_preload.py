"""Loaded once by the process that `forked` forks. Nothing here may start a thread or compute a gradient."""

import importlib
import os

os.environ["OMP_NUM_THREADS"] = "1"

import checked_calls
import torch

torch.set_num_threads(1)
checked_calls.install("dnn2gp")
for name in (
    "torch._dynamo",
    "torch._decomp.decompositions_for_jvp",  # what the first forward-mode pass would compile
    "matplotlib.pyplot",
    "sklearn.datasets",
    "sklearn.pipeline",
    "optuna",
    "dnn2gp.apps.cli",
    "dnn2gp.apps.demo",
    "dnn2gp.estimators",
    "dnn2gp.paper.reproduce",
    "dnn2gp.tune",
):
    importlib.import_module(name)
