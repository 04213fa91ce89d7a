"""Commands as functions, for the command line, the notebook and the Python API.

They do not know the terminal: progress goes to a callback, results are values, failures are errors.
"""
