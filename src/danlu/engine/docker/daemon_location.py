"""Find out whether the daemon of Docker or Podman runs on this machine, whose files it mounts."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from danlu.engine.docker.command import DockerCommand
from danlu.errors import UsageError
from danlu.util.sanitize import escape_unprintable
from danlu.util.urls import mask_credentials

_REMOTE_SCHEMES = ("ssh", "tcp", "http", "https")


def require_local_daemon(command: DockerCommand, environ: Mapping[str, str]) -> None:
    """Raise :class:`UsageError` if the engine's daemon runs on another machine.

    It would mount that machine's directories of the same names, or create empty ones. A service of
    Podman is refused on this machine, too: its client reads no images from files (`podman pull
    oci:`), and it may run as another user, to whom new files would belong.
    """
    address = find_daemon_address(command, environ)
    url = urlsplit(address)
    is_here = url.scheme not in _REMOTE_SCHEMES or _is_loopback(url.hostname or "")
    if is_here and address and command.is_podman:
        raise UsageError(
            f"podman uses the service at {escape_unprintable(mask_credentials(address))}",
            hint="unset CONTAINER_HOST, or make another connection the default: danlu needs"
            " Podman's own program, which works without a service",
        )
    if is_here:
        return
    host = url.netloc.rpartition("@")[2] if url.scheme != "ssh" else url.netloc
    shown = escape_unprintable(mask_credentials(address))
    raise UsageError(
        f"{command.name} runs containers at {shown}, where this project's files are missing",
        hint="let danlu work on that machine: `danlu context create NAME --engine"
        f" ssh://{escape_unprintable(host.partition(':')[0])}`, then `danlu context use NAME`",
    )


def find_daemon_address(command: DockerCommand, environ: Mapping[str, str]) -> str:
    """Return the address of the daemon, such as ``unix:///run/docker.sock``; may be empty.

    Raises :class:`~danlu.errors.DanluError` if the engine cannot be used.
    """
    if not command.is_podman:
        # What Docker's client uses: DOCKER_HOST is stronger than a context.
        template = "{{.Endpoints.docker.Host}}"
        return (
            environ.get("DOCKER_HOST") or command.run("context", "inspect", "-f", template).strip()
        )
    if environ.get("CONTAINER_HOST"):
        return environ["CONTAINER_HOST"]
    if command.run("info", "--format", "{{.Host.ServiceIsRemote}}").strip() != "true":
        return ""
    connection = command.run("system", "connection", "list", "--format", "{{.Default}} {{.URI}}")
    rows = [line.split() for line in connection.splitlines()]
    defaults = [row[1] for row in rows if len(row) > 1 and row[0] == "true"]
    return defaults[0] if defaults else ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
