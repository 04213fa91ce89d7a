"""Environment to lock: each outside thing pinned by content, one concern a module."""
