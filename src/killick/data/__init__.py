"""Image sets, and what becomes of them on the way to the network."""
