"""Training with VON, VOGGN, VOGN and their deterministic counterparts: torch optimizers around one pure update.

May import `gp` and the rooms below it. The update itself is `weights/online_newton.py`. Start with `methods.py`, then
read `schedule.py` (the rates of each step), `optimizer.py`, `recorder.py` (the GP of each step) and `checkpoints.py`.
"""

from dnn2gp.optim.checkpoints import load_checkpoint, save_checkpoint
from dnn2gp.optim.methods import OGGN, OGN, ON, VOGGN, VOGN, VON
from dnn2gp.optim.recorder import Recorder
from dnn2gp.optim.schedule import Cosine, OpenEnded, Schedule
from dnn2gp.optim.variational_evidence import VariationalEvidence

__all__ = [
    "OGGN",
    "OGN",
    "ON",
    "VOGGN",
    "VOGN",
    "VON",
    "Cosine",
    "OpenEnded",
    "Recorder",
    "Schedule",
    "VariationalEvidence",
    "load_checkpoint",
    "save_checkpoint",
]
