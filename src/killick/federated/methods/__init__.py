"""Federated methods: one file each, with one registered class."""
