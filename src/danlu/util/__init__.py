"""Small tools with no domain: files, locks, processes, paths, configuration, retry."""
