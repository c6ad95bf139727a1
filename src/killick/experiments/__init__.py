"""Arms x seeds as jobs, each a run folder; on this machine or on a Ray cluster.

In: a recipe, arms and seeds. Out: run folders and a report. Imports everything up to `deploy`.
`killick.grid` has the public names.
"""
