"""`dnn2gp tune`: a network for a user's own table, tuned by the evidence, as a GP with error bars, in one command."""

from dnn2gp.support.optional import needs_extra

with needs_extra("cli", "dnn2gp tune"):
    from dnn2gp.apps.table_tuning.config import TableTuningConfig
    from dnn2gp.apps.table_tuning.job import TableTuningResult, run
    from dnn2gp.apps.table_tuning.model import TableModel, load_table_model

__all__ = ["TableModel", "TableTuningConfig", "TableTuningResult", "load_table_model", "run"]
