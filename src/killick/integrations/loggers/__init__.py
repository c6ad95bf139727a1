"""Loggers for other tools: one file and one registered class each."""
