"""Resolve the Python packages that an environment declares to exact, hashed files."""
