"""Models on disk: save, load, the hub.

In: models or folders. Out: folders or models. Imports `core` and `nets`.
"""
