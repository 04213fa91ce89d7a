"""One process in a root file system: namespaces, layers, mounts, an OCI runtime, secrets.

:mod:`danlu.sandbox.userns` comes first in a process, then :class:`danlu.sandbox.sandbox.Sandbox`.
"""
