"""Results on disk: run folders, rows, per-image predictions.

In: paths. Out: plain records. Imports `errors` and `runtime`; knows no model.
"""
