"""Estimators for scikit-learn: networks that choose δ, σ and their width by the evidence and predict as GPs.

    GPNetRegressor().fit(X, y).predict(X, return_std=True)
    GPNetClassifier().fit(X, y).predict_proba(X)

δ, σ and the width come from the training data alone: nothing is held out to tune them.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("sklearn", "dnn2gp.estimators"):
    from dnn2gp.estimators.classifier import GPNetClassifier
    from dnn2gp.estimators.regressor import GPNetRegressor, Uncertainty

__all__ = ["GPNetClassifier", "GPNetRegressor", "Uncertainty"]
