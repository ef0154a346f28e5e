"""The marginal likelihood: its terms, and as a function of the prior precision δ and the noise σ.

May import `inference` and the rooms below it. Start with `terms.py` (the evidence of one model), then `function.py`
(what can be maximised), `spectrum.py` (one δ and one σ) and `per_layer.py` (one δ per layer, one σ per output).
"""

from dnn2gp.evidence.terms import Evidence
from dnn2gp.evidence.tuning_result import TuningResult

__all__ = ["Evidence", "TuningResult"]
