"""A Python kernel inside a running environment, for a Jupyter outside of it.

Jupyter starts ``danlu kernel run`` instead of the kernel. The connection file is not visible in the
environment, so it is sent through standard input: it contains the key that authenticates messages,
which every user of the machine could read in a program's arguments. The ports can be reached
because the environment shares the network of the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from danlu.engine.environment_control import encode_exec
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.environment_ports import shares_host_network
from danlu.engine.foreground_exec import exec_in_foreground
from danlu.engine.types import ExecRequest
from danlu.environments.jupyter import FIND_EXTENSION_SCRIPT, notebook_variables
from danlu.errors import UsageError
from danlu.sandbox.types import PROJECT_DIRECTORY

#: Fits into a pipe, so that it is written before the reader exists. Connection files have 0.3 kB.
_MAX_CONNECTION_FILE_SIZE = 1 << 14
_MISSING = 86
_CHECK = f"""\
command -v python >/dev/null || exit {_MISSING}
python -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("ipykernel"))' \
</dev/null || exit {_MISSING}
"""
# The kernel removes the file when it ends.
_START = """\
umask 077
file=$(mktemp) && cat >"$file" || exit
exec python -Xfrozen_modules=off -m ipykernel_launcher -f "$file" </dev/null
"""


def check_kernel_support(environment: EnvironmentDirectory) -> None:
    """Raise :class:`UsageError` if ``environment`` does not run, or has no ipykernel."""
    code = exec_in_foreground(environment.directory, _encode_script(_CHECK))
    _raise_if_missing(environment, code)


def run_environment_kernel(environment: EnvironmentDirectory, connection_file: Path) -> int:
    """Run a kernel for the connection in ``connection_file``; return its exit code.

    It starts in the directory of the project that corresponds to the current one. If this process
    or the one that started it, Jupyter, is killed, so is the kernel. Raises :class:`UsageError` if
    the environment does not run or has no ipykernel, or if the connection file is invalid.
    """
    data = _read_connection_file(connection_file)
    spec = environment.read_spec()
    if not shares_host_network(spec):
        raise UsageError(
            f"the ports of environment {environment.name} cannot be reached by a Jupyter outside",
            hint="use `config.jupyter()` in the build file, or `danlu up --network host`",
        )
    directory = _inner_directory(spec.project, Path.cwd())
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    # The kernel must end with Jupyter, even if that is killed.
    jupyter = os.pidfd_open(os.getppid())
    try:
        script = FIND_EXTENSION_SCRIPT + _CHECK + _START
        request = _encode_script(script, directory, notebook_variables(spec))
        code = exec_in_foreground(environment.directory, request, stdin=reading, parent=jupyter)
    finally:
        os.close(reading)
        os.close(jupyter)
    _raise_if_missing(environment, code)
    return code


def _encode_script(
    script: str, directory: str = "", variables: Mapping[str, str] | None = None
) -> bytes:
    request = ExecRequest(("sh", "-c", script), variables or {}, directory=directory)
    return encode_exec(request)


def _raise_if_missing(environment: EnvironmentDirectory, code: int) -> None:
    if code == _MISSING:
        raise UsageError(
            f"the Python of environment {environment.name} has no ipykernel",
            hint='add install.python_packages(["ipykernel"]) to the build function, then'
            " `danlu up --recreate`",
        )


def _read_connection_file(path: Path) -> bytes:
    """Return the content of a connection file whose ports can be reached from an environment."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CONNECTION_FILE_SIZE + 1)
        transport = json.loads(data).get("transport", "tcp")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise UsageError(f"{path} is not a connection file of Jupyter") from error
    if transport != "tcp":
        raise UsageError(
            f"{path} uses transport {transport}, which does not reach into an environment",
            hint='set c.KernelManager.transport = "tcp"',
        )
    return data


def _inner_directory(project: str, directory: Path) -> str:
    """Return where ``directory`` is in the environment; empty if it is not in the project."""
    if not project or not directory.is_relative_to(project):
        return ""
    return str(PurePosixPath(PROJECT_DIRECTORY, directory.relative_to(project)))
