"""Bundles for bug reports: what was built and where, without secrets."""
