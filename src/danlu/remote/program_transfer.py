"""Copy danlu to another machine, so that both sides have the same version."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from itertools import chain
from pathlib import Path

import msgspec

import danlu
from danlu.errors import MachineError, OutsideError
from danlu.remote.program_packages import (
    OLDEST_PYTHON,
    MachineProbe,
    install_packages,
    list_distributions,
    list_installed_files,
    runs_installed_packages,
)
from danlu.remote.remote_host import RemoteHost
from danlu.util.decoding import decode_json
from danlu.util.sanitize import read_last_line

#: Below the home directory of the other machine.
_PROGRAMS = ".local/share/danlu/programs"
#: The exit code of :func:`program_script` if danlu has to be copied first.
MISSING_PROGRAM = 97
_MAX_OUTPUT = 1 << 20
_PROBE = (
    "import json, platform, sys; print(json.dumps("
    "[sys.platform, platform.python_version(), platform.machine(), *platform.libc_ver()]))"
)
# Two commands may copy at once: one of the renames fails, which is fine. Versions that were not
# used for a month are removed.
_COPY_SCRIPT = """
set -e; umask 077; mkdir -p "$HOME/{programs}"
new=$(mktemp -d "$HOME/{place}.XXXXXX"); trap 'rm -rf "$new"' EXIT
tar -xz -C "$new"
mv -T "$new" "$HOME/{place}" 2>/dev/null || [ -x "$HOME/{place}/launch" ]
find "$HOME/{programs}" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {{}} +
"""
_LAUNCHER = """#!/bin/sh
directory=$(cd "$(dirname "$0")" && pwd)
PYTHONPATH="$directory/packages" exec python3 -P -m "$@"
"""


def program_script(module: str, *args: str) -> str:
    """Return a shell script that runs one of our modules on the other machine.

    It exits with :data:`MISSING_PROGRAM` if danlu is not installed there. ``args`` are inserted
    into the script as they are.
    """
    place = f"$HOME/{_PROGRAMS}/{_identify_program()}"
    words = " ".join(args)
    check = f'[ -x "{place}/launch" ] || exit {MISSING_PROGRAM}; touch "{place}"'
    return f'{check}; exec "{place}/launch" {module} {words}'


def run_program_there(host: RemoteHost, cache: Path, script: str, *, what: str) -> bytes:
    """Run a script of :func:`program_script`, copy danlu first if needed, and return its output.

    Raises :class:`OutsideError` if that fails; ``what`` says what it does.
    """
    done = host.run(script)
    if done.returncode == MISSING_PROGRAM:
        copy_program(host, cache)
        done = host.run(script)
    if done.returncode:
        reason = read_last_line(done.stderr, otherwise=f"exit code {done.returncode}")
        raise OutsideError(f"cannot {what} of {host.name}: {reason}")
    return done.stdout


def copy_program(host: RemoteHost, cache: Path) -> None:
    """Copy danlu and the packages that it needs; ``cache`` is danlu's directory of downloads.

    Raises :class:`MachineError` if danlu cannot run there, and :class:`OutsideError` if the machine
    cannot be reached or written to, or there are no packages for it.
    """
    with _select_packages(host, cache) as packages:
        _send_files(host, chain(_list_own_files(), packages))


def _send_files(host: RemoteHost, files: Iterable[tuple[Path, str]]) -> None:
    script = _COPY_SCRIPT.format(programs=_PROGRAMS, place=f"{_PROGRAMS}/{_identify_program()}")
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
        with tarfile.open(fileobj=source, mode="w:gz", compresslevel=1) as archive:
            for file, name in files:
                archive.add(file, f"packages/{name}", recursive=False, filter=_make_readable)
            _add_launcher(archive)
        source.seek(0)
        try:
            host.pipe_script(script, source=source, target=target, limit=_MAX_OUTPUT)
        except OutsideError as error:
            error.message = f"cannot copy danlu: {error.message}"
            raise


def _probe_machine(host: RemoteHost) -> MachineProbe:
    done = host.run(f"python3 -c '{_PROBE}'")
    try:
        return decode_json(done.stdout, MachineProbe)
    except msgspec.MsgspecError:
        raise MachineError(
            f"{host.name} has no python3",
            hint=f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or later there",
        ) from None


@contextmanager
def _select_packages(host: RemoteHost, cache: Path) -> Iterator[Iterable[tuple[Path, str]]]:
    """Yield the files of packages for a machine, and their names in a directory of packages."""
    probe = _probe_machine(host)
    if runs_installed_packages(probe):
        yield list_installed_files()
        return
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        directory = Path(scratch, "packages")
        install_packages(probe.target, directory, cache)
        files = (path for path in sorted(directory.rglob("*")) if path.is_file())
        yield ((path, str(path.relative_to(directory))) for path in files)


@cache
def _identify_program() -> str:
    """Return a name that changes with every file of danlu and every version of a package."""
    digest = hashlib.sha256()
    root = Path(danlu.__file__).parent
    for path in sorted(root.rglob("*.py")):
        status = path.stat()
        digest.update(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
    for distribution in list_distributions():
        digest.update(f"{distribution.metadata['Name']} {distribution.version}\n".encode())
    return f"{danlu.__version__}-{digest.hexdigest()[:12]}"


def _list_own_files() -> Iterator[tuple[Path, str]]:
    root = Path(danlu.__file__).parent
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path, f"danlu/{path.relative_to(root)}"


def _make_readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o111 else 0o644
    return member


def _add_launcher(archive: tarfile.TarFile) -> None:
    data = _LAUNCHER.encode()
    member = tarfile.TarInfo("launch")
    member.size, member.mode = len(data), 0o755
    archive.addfile(member, BytesIO(data))
