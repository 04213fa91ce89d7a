"""Run one process in a root file system: namespaces, layers, mounts, an OCI runtime, secrets.

A process calls :func:`danlu.sandbox.userns.enter` once, then uses
:class:`danlu.sandbox.sandbox.Sandbox`.
"""
