"""Adapters for other libraries: Lightning, torchmetrics, and loggers.

Each module imports its library, so nothing else in Killick imports from here.

In: models and runs. Out: objects of the other library. May import everything but `cli`.
"""
