"""Arguments, terminal output and exit codes: the only place that knows click and rich.

Every command is one module of :mod:`danlu.cli.verbs` and one line of
:mod:`danlu.cli.registry`; nothing else of danlu is imported before a command asks for it.
"""
