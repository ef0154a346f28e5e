"""scikit-learn estimators: small networks that are tuned by the evidence and predict as Gaussian processes.

    GPNetRegressor().fit(X, y).predict(X, return_std=True)
    GPNetClassifier().fit(X, y).predict_proba(X)

The prior precision δ, the noise σ and the width are chosen on the training data alone: nothing is held out to tune
them. Start with `regressor.py`.
"""

from dnn2gp.support.optional import needs_extra

with needs_extra("sklearn", "dnn2gp.estimators"):
    from dnn2gp.estimators.classifier import GPNetClassifier
    from dnn2gp.estimators.regressor import GPNetRegressor, Uncertainty

__all__ = ["GPNetClassifier", "GPNetRegressor", "Uncertainty"]
