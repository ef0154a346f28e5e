"""scikit-learn's check_estimator on the estimator NAME with SETTINGS: prints what failed and how many passed."""

import json
import sys
import warnings

from sklearn.utils.estimator_checks import check_estimator

import dnn2gp.estimators

warnings.simplefilter("ignore")
name, settings = sys.argv[1], json.loads(sys.argv[2])
results = check_estimator(getattr(dnn2gp.estimators, name)(**settings), on_skip=None, on_fail=None)
for each in results:
    if each["status"] not in ("passed", "skipped"):
        print(each["check_name"], repr(each["exception"]))
print(sum(each["status"] == "passed" for each in results), "passed")
