"""A container of Docker that is a Linux machine for danlu: for macOS, where only Docker runs Linux.

The container has more capabilities than others, because danlu mounts file systems and starts
containers in it. Directories of this machine are mounted at the same path, so a project there is
not copied. Everything else of danlu is in a volume with the container's name. No port is open: the
SSH server is started for each connection by ``docker exec``.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from danlu.engine.contexts import Context, SshAddress
from danlu.engine.docker.command import DockerCommand
from danlu.engine.ssh.keys import HOST_SUFFIX, SshKeys
from danlu.errors import OutsideError, UsageError
from danlu.remote.remote_host import RemoteHost
from danlu.util.locks import file_lock
from danlu.util.paths import Paths
from danlu.util.xdg import base_directory

#: Has Python 3.11 or later, and apt.
DEFAULT_IMAGE = "docker.io/library/debian:stable-slim"
_LABEL = "danlu.machine"
_HOME = "/var/lib/danlu"
_CONFIGURATION = "/etc/danlu"
_SSHD = "/usr/sbin/sshd"
#: What mounting file systems and starting containers needs; `--privileged` would add all devices.
_PRIVILEGES = (
    *("--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN", "--cap-add", "SYS_PTRACE"),
    *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
    *("--security-opt", "systempaths=unconfined"),
)
_SSHD_CONFIG = f"""\
HostKey {_CONFIGURATION}/host_key
AuthorizedKeysFile {_CONFIGURATION}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""
# With version 2 of cgroups, groups with limits cannot be created next to processes (cgroups(7), "no
# internal processes"), so the first process moves itself away, as in Docker's image of itself.
_FIRST_PROCESS = """
groups=/sys/fs/cgroup
if [ -f $groups/cgroup.controllers ]; then
    mkdir -p $groups/init
    xargs -rn1 <$groups/cgroup.procs >$groups/init/cgroup.procs || :
    sed -e 's/ / +/g' -e 's/^/+/' $groups/cgroup.controllers >$groups/cgroup.subtree_control || :
fi
exec sleep infinity
"""
_SETUP = f"""
set -e
if ! [ -x {_SSHD} ] || ! command -v python3 runc >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q >&2
    apt-get install -yq --no-install-recommends \\
        ca-certificates nftables openssh-server python3 runc slirp4netns >&2
fi
mkdir -p {_CONFIGURATION} /run/sshd
tar -x --no-same-owner -C {_CONFIGURATION}
"""


class MachineContainer:
    """The container of a context; ``notify`` is called with sentences for the user."""

    def __init__(self, context: Context, paths: Paths, notify: Callable[[str], None]) -> None:
        self._context = context
        self._name = context.container
        self._image = context.image or DEFAULT_IMAGE
        self._mounts = tuple(map(Path, context.mounts))
        self._keys = SshKeys(paths.data / "machines" / self._name)
        self._docker = DockerCommand("docker")
        self._notify = notify

    def connect_host(self) -> RemoteHost:
        """Start the container, which is created the first time; return how ssh reaches it.

        Raises :class:`~danlu.errors.DanluError` if Docker cannot be used or refuses, or the
        container is another one.
        """
        self._keys.create_missing(self._name)
        with file_lock(self._keys.directory / "container.lock"):
            identifier, state = self._find_container()
            if not identifier:
                identifier = self._create_container()
            elif state != "running":
                self._docker.run("start", identifier)
        options = [f"-o{name}={value}" for name, value in self._ssh_options(identifier).items()]
        return RemoteHost(
            self._context.engine,
            SshAddress(self._name, user="root"),
            options=options,
            mounts=self._mounts,
            check=f"docker exec {self._name} true",
        )

    def _find_container(self) -> tuple[str, str]:
        """Return the container's short identifier and Docker's state, both empty if none exists."""
        fields = f'{{{{.ID}}}}\t{{{{.State}}}}\t{{{{.Label "{_LABEL}"}}}}'
        filters = ("--all", "--filter", f"name=^{self._name}$", "--format", fields)
        line = self._docker.run("container", "ls", *filters).strip()
        if not line:
            return "", ""
        identifier, state, label = f"{line}\t\t".split("\t")[:3]
        if label != self._digest_settings():
            raise UsageError(
                f"container {self._name} has other settings than the context, or is not danlu's",
                hint=f"`docker rm -f {self._name}` removes it; environments stay in its volume",
            )
        return identifier, state

    def _digest_settings(self) -> str:
        settings = (self._image, self._context.mounts, self._keys.client_public_key.read_text())
        return hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:16]

    def _create_container(self) -> str:
        """Create, start and set up the container; return its short identifier."""
        self._notify(f"creating container {self._name} from {self._image}; this takes a minute")
        # It gets its name when it is complete.
        unfinished = f"{self._name}.unfinished"
        options = ["--name", unfinished, "--hostname", self._name, "--init", *_PRIVILEGES]
        options += ["--restart", "unless-stopped", "--label", f"{_LABEL}={self._digest_settings()}"]
        options += ["--volume", f"{self._name}:{_HOME}"]
        for mount in self._context.mounts:
            options += ["--mount", f"type=bind,source={mount},target={mount}"]
        process = ("--entrypoint", "sh", self._image, "-c", _FIRST_PROCESS)
        self._docker.run("rm", "--force", unfinished)
        identifier = self._docker.run("create", *options, *process).strip()[:12]
        try:
            self._docker.run("start", identifier)
            self._docker.run(
                *("exec", "--interactive", identifier, "sh", "-c", _SETUP),
                input=self._pack_configuration(),
            )
            self._docker.run("rename", identifier, self._name)
        except BaseException:
            with suppress(OutsideError):
                self._docker.run("rm", "--force", identifier)
            raise
        return identifier

    def _pack_configuration(self) -> bytes:
        """Return a tar archive of the SSH server's files."""
        files = {
            "sshd_config": self._render_sshd_config().encode(),
            "host_key": self._keys.host_key.read_bytes(),
            "authorized_keys": self._keys.client_public_key.read_bytes(),
        }
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(data), 0o600
                archive.addfile(member, io.BytesIO(data))
        return buffer.getvalue()

    def _render_sshd_config(self) -> str:
        """Return the configuration; programs there find the configuration files of this user."""
        variables = {"HOME": _HOME, "DANLU_SSH_CONFIG": "off"}
        places = {
            "XDG_CONFIG_HOME": base_directory(os.environ, "XDG_CONFIG_HOME", ".config"),
            "KUBECONFIG": os.environ.get("KUBECONFIG", str(Path.home() / ".kube/config")),
        }
        for name, place in places.items():
            if any(Path(place).is_relative_to(mount) for mount in self._mounts):
                variables[name] = place
        words = " ".join(f'"{name}={value}"' for name, value in variables.items())
        return f"{_SSHD_CONFIG}SetEnv {words}\n"

    def _ssh_options(self, identifier: str) -> dict[str, str]:
        server = [self._docker.find_program(), "exec", "--interactive", identifier]
        return {
            "ProxyCommand": shlex.join(
                [*server, _SSHD, "-i", "-f", f"{_CONFIGURATION}/sshd_config"]
            ).replace("%", "%%"),
            # Part of the name of the control socket, so that no connection to another host or
            # container of the same name is used.
            "HostName": f"{identifier}.docker-container",
            "HostKeyAlias": f"{self._name}{HOST_SUFFIX}",
            "UserKnownHostsFile": f'"{self._keys.known_hosts}"',
            "StrictHostKeyChecking": "yes",
            "IdentityFile": f'"{self._keys.client_key}"',
            "IdentitiesOnly": "yes",
        }
