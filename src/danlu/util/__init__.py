"""Helpers without domain knowledge: files, locks, processes, paths, configuration, retries."""
