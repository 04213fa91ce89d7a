"""Keep a copy of a project on another machine or in a pod, in both directions.

The other side needs nothing but a POSIX shell, ``find``, ``stat``, ``tar`` and ``sha256sum``, which
BusyBox has; :class:`~danlu.project_sync.types.ScriptRunner` runs them. Everything is decided here,
by content: the other side is asked what it has, gets what it was sent, and is never trusted with
which files of this machine are read or written (:mod:`danlu.project_sync.project_copy`).
"""
