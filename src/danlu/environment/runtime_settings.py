"""What a build file says about how its environment is started (``runtime.*``, ``config.gpu`` …).

None of it changes the image. ``danlu up`` applies all of it; ``danlu run`` applies commands,
mounts, shared memory and ``init``.
"""

from __future__ import annotations

import msgspec

DATA_SCHEME = "data://"
"""Prefix of the source of a mount that names a directory which danlu keeps for data."""


class RuntimeMount(msgspec.Struct, frozen=True, omit_defaults=True):
    """``runtime.mount(host_path, envd_path)``.

    ``source`` is a path on the host (``~`` is the user's home, relative paths belong to the
    project), or ``data://NAME`` for a directory that danlu keeps. ``target`` is absolute, or starts
    with ``~/`` for the home directory of the environment's user. ``included_from`` is the place in
    an included repository that asks for the mount (``URL/FILE:LINE``), which then needs the user's
    permission; empty for the project's own.
    """

    source: str
    target: str
    included_from: str = ""


class ExposedPort(msgspec.Struct, frozen=True, omit_defaults=True):
    """``runtime.expose(envd_port, host_port, service, listen_addr)``; host port 0 is any."""

    port: int
    host_port: int = 0
    service: str = ""
    address: str = "127.0.0.1"


class JupyterSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """``config.jupyter(token, port)``; without a token a random one is made; port 0 is any."""

    token: str = ""
    port: int = 0

    def __repr__(self) -> str:
        return f"JupyterSettings(port={self.port})"  # without the token


class RuntimeSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an environment is started.

    Attributes:
        commands: Named commands: (name, shell command).
        mounts: Directories and files of the host.
        init: Shell commands to run in order when the environment starts, before the daemons.
        daemons: Programs to keep running, each with its arguments.
        ports: Ports to expose on the host.
        gpus: Number of GPUs; None if the build file does not say.
        shm_size: Megabytes of ``/dev/shm``; None for the default.
        jupyter: The Jupyter server to run, if any.
    """

    commands: tuple[tuple[str, str], ...] = ()
    mounts: tuple[RuntimeMount, ...] = ()
    init: tuple[str, ...] = ()
    daemons: tuple[tuple[str, ...], ...] = ()
    ports: tuple[ExposedPort, ...] = ()
    gpus: int | None = None
    shm_size: int | None = None
    jupyter: JupyterSettings | None = None
