"""Notebooks as a person meets them: a real JupyterLab in a real Chromium."""
