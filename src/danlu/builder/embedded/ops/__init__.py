"""Executors: the module named after an op (``Op.module_name``) executes it with ``execute()``."""
