"""Use cases, one module a verb: what the command line, notebooks and the Python API call.

No terminal code: progress goes to a callback, results are values, failures are errors.
"""
