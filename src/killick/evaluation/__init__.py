"""Evaluation: model and data to rows. `running.evaluate` is the way in."""
