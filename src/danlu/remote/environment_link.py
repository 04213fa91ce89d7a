"""Make the environments of another machine reachable from this one: ports, SSH hosts, editors."""

from __future__ import annotations

from collections.abc import Callable

from danlu.engine.contexts import Context
from danlu.engine.settings import Settings
from danlu.engine.ssh.keys import HOST_SUFFIX
from danlu.engine.ssh.ssh_config import host_name
from danlu.environments.editors import EditorTarget
from danlu.errors import UsageError
from danlu.remote.connection import connect_host
from danlu.remote.environment_access import AccessList, parse_access_list
from danlu.remote.port_tunnel import PortTunnel
from danlu.remote.program_transfer import program_script, run_program_there
from danlu.remote.remote_host import RemoteHost
from danlu.remote.ssh_access import ContextHosts
from danlu.util.suggest import suggest_name

_MODULE = "danlu.remote.environment_access"


def open_environment_link(
    named_context: tuple[str, Context], settings: Settings, notify: Callable[[str], None]
) -> EnvironmentLink | None:
    """Return the environments of a context's machine; None if that is this one.

    ``notify`` is called with sentences for the user.
    """
    name, context = named_context
    if not context.is_remote:
        return None
    return EnvironmentLink(name, connect_host(context, settings.paths, notify), settings)


class EnvironmentLink:
    """The environments of a context's machine."""

    def __init__(self, name: str, host: RemoteHost, settings: Settings) -> None:
        self.hosts = ContextHosts(name, settings)
        self._name = name
        self._cache = settings.paths.cache
        self._host = host
        self._tunnel = PortTunnel(self._host, settings.paths)

    def update(self) -> list[str]:
        """Forward the ports of running environments and configure SSH; return notes for the user.

        Raises :class:`OutsideError` if the machine cannot be reached.
        """
        access = self._read_access()
        ports = [port for item in access.environments for port in item.ports]
        problems = self._tunnel.update(ports)
        return problems + [f"connect with `ssh {new}`" for new in self._update_hosts(access)]

    def find_target(self, environment: str) -> EditorTarget:
        """Return what an editor opens of an environment.

        Raises :class:`UsageError` if it does not exist.
        """
        access = self._read_access()
        self._update_hosts(access)
        directories = {item.name: item.directory for item in access.environments}
        if environment not in directories:
            raise UsageError(
                f"environment {environment} not found on {self._host.name}",
                hint=suggest_name(environment, list(directories), what="environments"),
            )
        if self.hosts.exists_here(environment):
            host = host_name(environment, self._name)
            raise UsageError(
                f"{host} is the SSH host of an environment of this machine",
                hint=f"rename that one: `danlu rename {host.removesuffix(HOST_SUFFIX)} NAME`"
                " in the context local",
            )
        return EditorTarget(host_name(environment, self._name), directories[environment])

    def _update_hosts(self, access: AccessList) -> list[str]:
        return self.hosts.update(access.environments)

    def _read_access(self) -> AccessList:
        output = run_program_there(
            self._host, self._cache, program_script(_MODULE), what="list the environments"
        )
        return parse_access_list(output, self._host.name)
