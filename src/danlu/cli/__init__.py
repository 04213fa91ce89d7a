"""The command line: arguments, terminal output and exit codes.

Only this package knows click and rich. A command of ``danlu`` is a module, which is loaded when the
command is used, and a line in :mod:`danlu.cli.app`. ``project``, ``environments`` and the other
packages below do the work.
"""
