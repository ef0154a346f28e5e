"""Step (C): a network as a Gaussian process, and what users do with it.

May import `evidence` and the rooms below it. Start with `convert.py` (A, B and C in one call), then
`gaussian_process.py` (predictions, kernels, samples, evidence), `automatic.py` (which mean, and how wide),
`diagnose.py` and `storage.py`.
"""

from dnn2gp.gp.by_evidence import ByEvidence
from dnn2gp.gp.convert import convert, convert_step
from dnn2gp.gp.diagnose import Diagnosis, diagnose
from dnn2gp.gp.gaussian_process import GaussianProcess
from dnn2gp.gp.leave_one_out import LeaveOneOut
from dnn2gp.gp.network_samples import sample_network
from dnn2gp.gp.storage import load, save
from dnn2gp.support.processes import Processes

__all__ = [
    "ByEvidence",
    "Diagnosis",
    "GaussianProcess",
    "LeaveOneOut",
    "Processes",
    "convert",
    "convert_step",
    "diagnose",
    "load",
    "sample_network",
    "save",
]
