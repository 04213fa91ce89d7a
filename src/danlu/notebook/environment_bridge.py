"""The process on the host to which notebooks inside an environment send their job cells.

``python -m danlu.notebook.environment_bridge DIRECTORY`` is started with an environment that has a
Jupyter server, if danlu built its image here. It puts the extension (:mod:`danlu.notebook.inside`)
into the environment, has a program there listen on a Unix socket, as for SSH, and forks a process
for each connection. That process submits the job, so the job ends with it, and it ends with the
kernel. The bridge ends with the environment.
"""

from __future__ import annotations

import io
import os
import select
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
import zipfile
from importlib.resources import files
from pathlib import Path

from danlu.engine.detached_process import FIRST_FD
from danlu.engine.environment_control import encode_exec
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.environment_image import find_environment_image
from danlu.engine.exec_connection import ExecConnection
from danlu.engine.ssh.programs import socket_request
from danlu.engine.types import ExecRequest
from danlu.environments.jupyter import (
    BRIDGE_LOCK,
    BRIDGE_READY,
    NOTEBOOK_VARIABLE,
    notebook_variables,
)
from danlu.errors import DanluError, OutsideError
from danlu.notebook.environment_cells import has_cluster_jobs, serve_kernel
from danlu.notebook.inside.extension import SOCKET
from danlu.notebook.kernel_connection import KernelConnection
from danlu.notebook.preload import load_cell_modules
from danlu.store import Store
from danlu.util.danlu_program import CONTEXT_VARIABLE, LOCAL_CONTEXT
from danlu.util.locks import try_file_lock
from danlu.util.paths import Paths
from danlu.util.sanitize import escape_unprintable

#: Further kernels wait. Each is a process here and one inside.
_MAX_KERNELS = 16
_MAX_LINE = 600
_ANSWER_SECONDS, _END_SECONDS, _POLL_SECONDS = 30.0, 30.0, 0.05
_EPOCH = (1980, 1, 1, 0, 0, 0)
_RUNTIME_MODULES = ("__init__", "encoding", "pickles", "report")
_INSTALL = """\
umask 077
mkdir -p "$1" && cat >"$1/modules.new" && mv -f "$1/modules.new" "$1/modules.zip" &&
    rm -f "$1/socket"
"""


def pack_extension() -> bytes:
    """Return an archive that Python imports ``danlu`` from, always the same bytes."""
    inside = files("danlu.notebook.inside")
    runtime = files("danlu.replica_runtime")
    members = {
        "danlu/__init__.py": inside / "stub.py",
        "danlu/notebook.py": inside / "extension.py",
        **{f"danlu/replica_runtime/{name}.py": runtime / f"{name}.py" for name in _RUNTIME_MODULES},
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, source in members.items():
            # Not compressed: a Python may lack zlib.
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), source.read_bytes())
    return data.getvalue()


def find_notebook_directory(environment: EnvironmentDirectory) -> str:
    """Return the directory inside for the extension and its socket; empty if it gets none.

    Only an image that danlu built here gets one (SECURITY.md).
    """
    spec, settings = environment.read_spec(), environment.read_settings()
    paths = Paths(Path(settings.config), Path(settings.data), Path(settings.state))
    with Store.open(paths.store) as store:
        image, _ = find_environment_image(store, spec)
    is_trusted = image.is_built_here and bool(spec.target)
    return notebook_variables(spec).get(NOTEBOOK_VARIABLE, "") if is_trusted else ""


class EnvironmentBridge:
    """Listens inside an environment, and forks a process for each kernel's request."""

    def __init__(self, environment: EnvironmentDirectory) -> None:
        self._environment = environment
        self._control, self._program, queue = self._listen_inside()
        self._queue = queue
        self._selector = selectors.DefaultSelector()
        self._kernels: dict[int, int] = {}

    def _listen_inside(self) -> tuple[socket.socket, ExecConnection, str]:
        directory = find_notebook_directory(self._environment)
        if not directory:
            raise OutsideError("the environment has no notebooks that may start jobs")
        self._install_extension(directory)
        control, program = self._start_relay("listen", f"{directory}/{SOCKET}")
        _expect_sign(control, b"=")
        return control, program, _read_line(control)

    def _install_extension(self, directory: str) -> None:
        request = encode_exec(ExecRequest(("/bin/sh", "-c", _INSTALL, "sh", directory)))
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            with tempfile.TemporaryFile() as archive:
                archive.write(pack_extension())
                archive.seek(0)
                streams = archive.fileno(), null, null
                program = ExecConnection.open(self._environment.directory, request, streams)
                while (code := program.read_exit()) is None:
                    continue
                program.close()
        finally:
            os.close(null)
        if code:
            raise OutsideError(f"{directory} cannot be written in the environment")

    def _start_relay(self, action: str, path: str) -> tuple[socket.socket, ExecConnection]:
        control, program = socket.socketpair()
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            streams = program.fileno(), program.fileno(), null
            request = encode_exec(socket_request(action, path))
            return control, ExecConnection.open(self._environment.directory, request, streams)
        finally:
            program.close()
            os.close(null)

    def serve_kernels(self, supervisor: int) -> None:
        """Serve kernels until the supervisor of that pidfd ends, or nothing listens inside."""
        for source in (self._control, supervisor):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in self._selector.select()]
            if supervisor in ready:
                return
            for item in ready:
                if item is not self._control:
                    assert isinstance(item, int)
                    self._reap_kernel(item)
                elif not self._accept_kernel():
                    return

    def _accept_kernel(self) -> bool:
        """Fork a process for an announced connection; return False if nothing listens any more."""
        if not self._control.recv(1):
            return False
        # Possible because this process has neither threads nor an event loop.
        child = os.fork()
        if child == 0:
            self._serve_and_exit()
        pidfd = os.pidfd_open(child)
        self._kernels[pidfd] = child
        self._selector.register(pidfd, selectors.EVENT_READ)
        if len(self._kernels) == _MAX_KERNELS:
            self._selector.unregister(self._control)
        return True

    def _reap_kernel(self, pidfd: int) -> None:
        if len(self._kernels) == _MAX_KERNELS:
            self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(self._kernels.pop(pidfd), 0)

    def _serve_and_exit(self) -> None:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # The listener inside and the lock belong to the bridge alone. Nothing closes the
            # numbers again: the objects live until this process exits.
            os.closerange(FIRST_FD, os.sysconf("SC_OPEN_MAX"))
            relay, program = self._start_relay("accept", self._queue)
            _expect_sign(relay, b"+")
            serve_kernel(KernelConnection(relay), self._environment)
            # The program passes on what it has, and ends when the kernel disconnects.
            relay.shutdown(socket.SHUT_WR)
            select.select([program], [], [], _END_SECONDS)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


def _expect_sign(control: socket.socket, sign: bytes) -> None:
    """Read one byte, which must be ``sign``; raise :class:`OutsideError` with the reason."""
    control.settimeout(_ANSWER_SECONDS)
    try:
        found = control.recv(1)
        if found != sign:
            reason = _read_line(control) if found == b"-" else "python3 was not found"
            raise OutsideError(f"nothing listens in the environment: {reason}")
    except OSError as error:
        raise OutsideError(f"the environment does not answer: {error}") from error
    control.settimeout(None)


def _read_line(control: socket.socket) -> str:
    line = b""
    # Byte by byte: what follows the line belongs to the connection.
    while len(line) < _MAX_LINE and (byte := control.recv(1)) not in (b"", b"\n"):
        line += byte
    return escape_unprintable(line, limit=_MAX_LINE)


def main(directory: str) -> None:
    """Serve the environment in ``directory`` while it runs; report when kernels can connect.

    The report is ``ready``, or why they cannot.
    """
    # Nothing of the command that started us: its descriptors would stay open, its directory used.
    os.closerange(FIRST_FD + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(FIRST_FD, False)
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Jobs run on this machine, whatever context is current.
    os.environ[CONTEXT_VARIABLE] = LOCAL_CONTEXT
    environment = EnvironmentDirectory(Path(directory))
    load_cell_modules(on_cluster=has_cluster_jobs(environment.read_spec()))
    lock = environment.directory / BRIDGE_LOCK
    # The supervisor writes its process id before it listens.
    supervisor = environment.lock.read_text()
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        with try_file_lock(lock) as is_free:
            if is_free:
                lock.write_text(supervisor)
                _serve_environment(environment, int(supervisor))
                return
        if lock.read_text() == supervisor:  # another command was faster
            os.write(FIRST_FD, BRIDGE_READY)
            return
        time.sleep(_POLL_SECONDS)  # that of an earlier supervisor is about to exit
    os.write(FIRST_FD, b"the process of an earlier start does not end")


def _serve_environment(environment: EnvironmentDirectory, supervisor: int) -> None:
    try:
        pidfd = os.pidfd_open(supervisor)
        bridge = EnvironmentBridge(environment)
    except (DanluError, OSError) as error:
        os.write(FIRST_FD, str(error).encode())
        return
    os.write(FIRST_FD, BRIDGE_READY)
    os.close(FIRST_FD)
    bridge.serve_kernels(pidfd)


if __name__ == "__main__":
    main(sys.argv[1])
