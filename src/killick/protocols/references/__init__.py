"""References of anchored protocols; imported when a run starts, since it needs torch."""
