"""Evaluation: `evaluate` measures a classifier on test sets.

In: a model, data and settings. Out: rows and per-image predictions. May import the rooms up to
`storage`; not `training`, so that models trained elsewhere are evaluated in the same way.
"""
