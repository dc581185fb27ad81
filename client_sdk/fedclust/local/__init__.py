"""A whole session in one process: ``simulate``, and estimators in scikit-learn's manner."""
