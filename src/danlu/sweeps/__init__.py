"""Hyperparameter sweeps: the search space, its jobs, and the report."""
