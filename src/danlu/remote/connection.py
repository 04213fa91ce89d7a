"""Connect to the machine of a context."""

from __future__ import annotations

from collections.abc import Callable

from danlu.engine.contexts import Context
from danlu.remote.machine_container import MachineContainer
from danlu.remote.remote_host import RemoteHost
from danlu.util.paths import Paths


def connect_host(context: Context, paths: Paths, notify: Callable[[str], None]) -> RemoteHost:
    """Return the machine of a remote context; its container is started if it has one.

    ``notify`` is called with sentences for the user. Raises :class:`~danlu.errors.DanluError` if
    the address is invalid or the container cannot be started.
    """
    if context.is_container:
        return MachineContainer(context, paths, notify).connect_host()
    return RemoteHost(context.engine)
