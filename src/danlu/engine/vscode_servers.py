"""Servers of VS Code that users added, and where environments have them.

The user's directory of servers is mounted read-only in containers; pods get copies
(:mod:`danlu.engine.kubernetes.server_copy`). Links in the home directory lead there, so that the
directories next to them, in which editors write, belong to the user::

    COMMIT/server/            the server, with product.json and bin/code-server
           cli/PROGRAM        the command line that Remote-SSH runs first; optional

    ~/.vscode-server/cli/servers/Stable-COMMIT/server     Remote-SSH
                     code-COMMIT                          its command line
                     bin/COMMIT                           Open Remote - SSH, older Remote-SSH
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec

from danlu.engine.types import EnvironmentContainer, ExecRequest
from danlu.errors import DanluError, UsageError
from danlu.sandbox.types import Mount
from danlu.util.decoding import decode_json
from danlu.util.files import read_regular_file
from danlu.util.sanitize import escape_unprintable

#: Where containers have the directory of servers.
MOUNT_TARGET = "/run/danlu/vscode"

_COMMIT = re.compile("[0-9a-f]{40}")
_FOLDER = re.compile(r"\.[a-z0-9-]*server[a-z0-9-]*")
_PROGRAM = re.compile("[a-z][a-z0-9-]*")
_TEXT = re.compile(r"[A-Za-z0-9 ._+-]{0,60}")
#: The names that VS Code's command line gives to directories of servers.
_QUALITIES = {"stable": "Stable", "insider": "Insiders", "exploration": "Exploration"}
#: VS Code's names of processors, by e_machine in ELF files and as uname(2) reports them.
_ELF_MACHINES = {62: "x64", 183: "arm64", 40: "armhf"}
_UNAME_MACHINES = {"x86_64": "x64", "aarch64": "arm64", "armv7l": "armhf"}

_MAX_PRODUCT = 16 << 20
_LINK_TIMEOUT = 20.0
_MAX_OUTPUT = 2000

# Arguments: pairs of a path below the home directory and the target of the link. Links to servers
# that were removed go first, with their directory: its existence means to Remote-SSH that the
# server is there. What an editor or the image put at a path stays.
_LINK_SCRIPT = r"""mkdir -p "$HOME" && cd "$HOME" || exit
for link in .*server*/bin/* .*server*/*-* .*server*/cli/servers/*/server; do
  [ -L "$link" ] && ! [ -e "$link" ] || continue
  case $(readlink "$link") in /run/danlu/vscode/*) ;; *) continue;; esac
  rm -f "$link" || exit
  case $link in */cli/servers/*/server)
    rm -f "${link%/*}/log.txt" "${link%/*}/pid.txt"; rmdir "${link%/*}" 2>/dev/null;;
  esac
done
while [ $# -gt 0 ]; do
  [ -e "$1" ] || { mkdir -p "${1%/*}" && ln -s "$2" "$1"; } || exit
  shift 2
done"""


class VscodeServer(msgspec.Struct, frozen=True):
    """A server; ``cli`` is the name of its command line's program, empty without one."""

    commit: str
    name: str
    version: str
    quality: str
    folder: str
    architecture: str
    cli: str = ""

    @property
    def quality_name(self) -> str:
        """The name of its quality in directories of Remote-SSH; empty for an unknown one."""
        return _QUALITIES.get(self.quality, "")

    def list_links(self) -> Iterator[tuple[str, str]]:
        """Yield paths below the home directory, and what they lead to in a container."""
        place = f"{MOUNT_TARGET}/{self.commit}"
        if self.quality_name:
            yield (
                f"{self.folder}/cli/servers/{self.quality_name}-{self.commit}/server",
                f"{place}/server",
            )
        yield f"{self.folder}/bin/{self.commit}", f"{place}/server"
        if self.cli:
            yield f"{self.folder}/{self.cli}-{self.commit}", f"{place}/cli/{self.cli}"


class _ProductFile(msgspec.Struct, rename="camel"):
    """The part of ``product.json`` that matters here. It is untrusted."""

    commit: str
    server_application_name: str
    server_data_folder_name: str
    name_short: str = ""
    version: str = ""
    quality: str = ""


def read_server(directory: Path) -> VscodeServer:
    """Read and check an unpacked server; raise :class:`UsageError` if it is not for Linux."""
    data = _read_file(directory / "product.json", _MAX_PRODUCT)
    if data is None:
        raise UsageError("it has no product.json")
    try:
        product = decode_json(data, _ProductFile)
    except msgspec.MsgspecError as error:
        raise UsageError(f"product.json is invalid: {error}") from error
    checks = (
        ("commit", product.commit, _COMMIT),
        ("serverApplicationName", product.server_application_name, _PROGRAM),
        ("serverDataFolderName", product.server_data_folder_name, _FOLDER),
        *((name, getattr(product, field), _TEXT) for name, field in _TEXTS),
    )
    for name, value, pattern in checks:
        if not pattern.fullmatch(value):
            shown = escape_unprintable(value, limit=60)
            raise UsageError(f"product.json has an invalid {name}: {shown!r}")
    program = f"bin/{product.server_application_name}"
    if not _is_program(directory / "bin", product.server_application_name):
        raise UsageError(f"it has no program {program}")
    return VscodeServer(
        product.commit,
        product.name_short or product.server_application_name,
        product.version,
        product.quality,
        product.server_data_folder_name,
        read_architecture(directory / "node"),
    )


_TEXTS = (("nameShort", "name_short"), ("version", "version"), ("quality", "quality"))


def read_architecture(program: Path) -> str:
    """Return the processor of an ELF file as VS Code names it; raise :class:`UsageError`."""
    header = _read_file(program, 20, cut=True)
    if header is None:
        raise UsageError(f"it has no program {program.name}")
    if len(header) < 20 or not header.startswith(b"\x7fELF"):
        raise UsageError(f"its program {program.name} is not for Linux")
    number = int.from_bytes(header[18:20], "big" if header[5] == 2 else "little")
    return _ELF_MACHINES.get(number, f"processor {number}")


def machine_architecture() -> str:
    """Return this machine's processor as VS Code names it."""
    name = os.uname().machine
    return _UNAME_MACHINES.get(name, name)


def list_servers(root: Path) -> list[VscodeServer]:
    """Return the servers in the user's directory ``root`` by name and version."""
    try:
        commits = [name for name in os.listdir(root) if _COMMIT.fullmatch(name)]
    except FileNotFoundError:
        return []
    servers = []
    for commit in commits:
        try:
            server = read_server(root / commit / "server")
        except UsageError:  # it is being added or removed
            continue
        programs = [name for name in _list_names(root / commit / "cli") if is_cli_name(name)]
        if server.commit == commit:
            servers.append(msgspec.structs.replace(server, cli=min(programs, default="")))
    return sorted(servers, key=lambda server: (server.name, server.version, server.commit))


def is_cli_name(name: str) -> bool:
    """Return whether a file may be the program of a command line, such as ``code``."""
    return bool(_PROGRAM.fullmatch(name))


def find_server_mount(root: Path) -> Mount | None:
    """Return the mount of the user's directory of servers; None if nothing was ever added."""
    return Mount(MOUNT_TARGET, root, readonly=True) if root.is_dir() else None


async def link_servers(container: EnvironmentContainer, root: Path) -> str:
    """Create the links in the home directory of the user of a container that has the mount.

    Returns a sentence about what prevented it, or an empty string.
    """
    words = [word for server in list_servers(root) for link in server.list_links() for word in link]
    request = ExecRequest(("/bin/sh", "-c", _LINK_SCRIPT, "danlu", *words))
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        program = await container.start_exec(request, stdin=null, stdout=writing, stderr=writing)
        with anyio.move_on_after(_LINK_TIMEOUT):
            exit = await program.wait()
            return "" if exit.code == 0 else _explain_failure(_read_output(reading))
        await program.stop(grace=0)
        return _explain_failure("the environment's shell does not answer")
    except DanluError as error:
        return _explain_failure(error.message)
    finally:
        for descriptor in (reading, writing, null):
            os.close(descriptor)


def _explain_failure(reason: str) -> str:
    return f"VS Code's server was not put into the home directory: {reason}"


def _read_output(descriptor: int) -> str:
    try:
        data = os.read(descriptor, _MAX_OUTPUT)
    except BlockingIOError:
        data = b""
    return escape_unprintable(data.strip(), limit=_MAX_OUTPUT) or "a shell script failed"


def _is_program(directory: Path, name: str) -> bool:
    """Return whether a directory, not a link, has an executable file, not a link."""
    try:
        above, status = directory.lstat(), (directory / name).lstat()
    except OSError:
        return False
    executable = bool(status.st_mode & 0o111)
    return stat.S_ISDIR(above.st_mode) and stat.S_ISREG(status.st_mode) and executable


def _read_file(path: Path, limit: int, *, cut: bool = False) -> bytes | None:
    """Return the content of a regular file that an archive had; None if it is missing."""
    data = read_regular_file(path, limit + 1)
    if data is None:
        return None
    if len(data) > limit and not cut:
        raise UsageError(f"{path.name} is too large")
    return data[:limit]


def _list_names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
