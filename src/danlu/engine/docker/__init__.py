"""Environments in containers of Docker or Podman, through their command lines.

The command lines know everything about reaching a daemon (contexts, ``DOCKER_HOST``, ``ssh://``,
TLS, rootless), and a program started with ``exec`` gets the caller's own streams and terminal.
"""
