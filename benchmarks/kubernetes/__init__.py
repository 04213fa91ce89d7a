"""The operator against a real API server: the server, those who load it, and what is measured."""
