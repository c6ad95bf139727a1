"""Adapters for other libraries: Lightning.

Each module imports its library, so nothing else in Killick imports from here.
"""
