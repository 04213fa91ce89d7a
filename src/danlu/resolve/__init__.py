"""Resolve an environment to a lock: every external input pinned by content, one module per kind."""
