"""The operator against a real API server: the server, its load, and the measurements."""
