"""Components of training: one file and one registered class each."""
