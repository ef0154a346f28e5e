"""`dnn2gp tune`: fit a network to a table, tune it by the evidence, and predict with error bars as a GP.

Start with `job.py`, which runs everything in order.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("cli", "dnn2gp tune"):
    from dnn2gp.apps.table_tuning.config import TableTuningConfig
    from dnn2gp.apps.table_tuning.job import TableTuningResult, run
    from dnn2gp.apps.table_tuning.model import TableModel, load_table_model

__all__ = ["TableModel", "TableTuningConfig", "TableTuningResult", "load_table_model", "run"]
