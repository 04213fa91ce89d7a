"""Send LLB to a BuildKit daemon with ``buildctl``, and read its progress.

``buildctl`` carries the session (files, secrets, agents) over the daemon's connection and knows
every kind of address: ``unix://``, ``tcp://`` with TLS, ``docker-container://``, ``kube-pod://``.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, Process

from danlu.errors import MachineError, OutsideError
from danlu.util.exception_groups import unwrap_group
from danlu.util.output_lines import OutputLines
from danlu.util.pdeathsig import with_parent_death_signal
from danlu.util.process import run, wait_until_stuck
from danlu.util.process_activity import STUCK_SECONDS, stuck_error
from danlu.util.urls import mask_credentials

_DEFAULT_ADDRESS = "unix:///run/buildkit/buildkitd.sock"
_HINT = "start buildkitd, or set BUILDKIT_HOST to its address; --builder embedded needs no daemon"
_HINTS = {
    "kube-pod": "check that `kubectl exec` reaches the pod: your role needs `create` on pods/exec",
    "docker-container": "check that `docker exec` reaches the container",
    "podman-container": "check that `podman exec` reaches the container",
    "ssh": "check that `ssh` reaches the machine without a question, and has buildctl there",
}
#: What gRPC says if a daemon cannot be reached or went away.
_UNREACHABLE = re.compile(
    r"Unavailable|error while dialing|connection (refused|reset)|closing transport|EOF|no such host"
    r"|DeadlineExceeded|failed to dial|failed to list workers",
    re.IGNORECASE,
)
_MAX_LINE_BYTES = 16 << 20
#: Seconds for the daemon to stop a step after ``buildctl`` was interrupted.
_CANCEL_SECONDS = 10


class SolveInputs(msgspec.Struct, frozen=True):
    """What a solve may read from this machine, and the caches it uses.

    ``layouts`` are OCI layouts by the name of their store, ``secrets`` files by id, and ``agents``
    sockets by id. ``import_cache`` and ``export_cache`` are written as ``buildctl`` reads them.
    """

    layouts: Mapping[str, Path] = {}
    secrets: Mapping[str, Path] = {}
    agents: Mapping[str, Path] = {}
    import_cache: tuple[str, ...] = ()
    export_cache: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """Return the arguments of ``buildctl build``."""
        args = [f"--oci-layout={name}={path}" for name, path in self.layouts.items()]
        args += [
            f"--secret=id={name},{_quote_field('src', path)}" for name, path in self.secrets.items()
        ]
        args += [f"--ssh={name}={path}" for name, path in self.agents.items()]
        args += [f"--import-cache={text}" for text in self.import_cache]
        return args + [f"--export-cache={text}" for text in self.export_cache]


class SolveFailure(msgspec.Struct, frozen=True):
    """Why a solve failed: the message, and the exit code if a command failed, else None."""

    message: str
    exit_code: int | None = None


class _VertexStatus(msgspec.Struct):
    digest: str = ""
    name: str = ""
    cached: bool = False
    error: str = ""
    started: str | None = None
    completed: str | None = None


class _TransferStatus(msgspec.Struct):
    id: str = ""
    total: int = 0
    current: int = 0


class _LogChunk(msgspec.Struct):
    vertex: str = ""
    data: str = ""


class _SolveStatus(msgspec.Struct):
    """A line of ``--progress=rawjson`` (client.SolveStatus)."""

    vertexes: list[_VertexStatus] | None = None
    statuses: list[_TransferStatus] | None = None
    logs: list[_LogChunk] | None = None


_decoder = msgspec.json.Decoder(_SolveStatus)


class BuildctlClient:
    """The client of the daemon at ``address``, by default the one that ``BUILDKIT_HOST`` names.

    ``tls_directory`` has the certificates for ``tcp://``, as ``buildctl --tlsdir`` reads them.
    Raises :class:`MachineError` if the program is missing.
    """

    def __init__(
        self,
        address: str = "",
        environ: Mapping[str, str] | None = None,
        *,
        tls_directory: str = "",
    ) -> None:
        env = dict(os.environ if environ is None else environ)
        program = shutil.which("buildctl", path=env.get("PATH"))
        if program is None:
            raise MachineError(
                "buildctl, BuildKit's client, was not found on PATH",
                hint="install BuildKit's client programs, or build with --builder embedded",
            )
        self._command = [program]
        if tls_directory:
            self._command.append(f"--tlsdir={Path(tls_directory).expanduser().absolute()}")
        self._environment = env
        self.address = address or env.get("BUILDKIT_HOST") or _DEFAULT_ADDRESS
        env["BUILDKIT_HOST"] = self.address

    async def find_worker(self) -> str:
        """Return the id of the daemon's worker, which is another one when its state is deleted.

        Raises :class:`OutsideError` unless the daemon answers.
        """
        command = [*self._command, "debug", "workers", "--format={{range .}}{{.ID}} {{end}}"]
        result = await run(command, env=self._environment)
        if result.code:
            raise self._unreachable_error(_last_error(result.stderr.decode(errors="replace")))
        return result.stdout.decode(errors="replace").strip()

    async def solve(
        self,
        definition: bytes,
        inputs: SolveInputs,
        *,
        output: Path | None = None,
        step: str = "",
        on_line: Callable[[str], None] = lambda line: None,
        transfer: Callable[[int, int], None] = lambda current, total: None,
    ) -> SolveFailure | None:
        """Solve ``definition``; return why it failed, or None.

        The result is written to the OCI layout ``output``, which must not exist, with its layers
        uncompressed. ``on_line`` gets the lines that vertices print, and a note if the vertex named
        ``step`` was cached. ``transfer`` gets the bytes sent so far and their total. Cancelling
        stops the solve in the daemon. Raises :class:`OutsideError` if the daemon cannot be reached
        or goes away, and :class:`TemporaryError` if it does nothing for long. The command of
        ``step`` may be silent as long as it likes, if the daemon answers meanwhile.
        """
        args = [*self._command, "build", "--progress=rawjson", *inputs.arguments()]
        if output is not None:
            place = _quote_field("dest", output)
            args.append(f"--output=type=oci,tar=false,{place},compression=uncompressed")
        reader = _ProgressReader(step, on_line, transfer)
        process = await anyio.open_process(
            with_parent_death_signal(args),
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=PIPE,
            env=self._environment,
            # Only we handle Ctrl-C: cancelling interrupts buildctl, and with it the daemon.
            start_new_session=True,
        )
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_solve, process, reader)
                assert process.stdin is not None
                assert process.stderr is not None
                with suppress(anyio.BrokenResourceError):
                    await process.stdin.send(definition)
                await process.stdin.aclose()
                await _read_lines(process.stderr, reader.handle_line)
                code = await process.wait()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as failures:
            raise unwrap_group(failures) from None
        finally:
            await _interrupt_solve(process)
        reader.flush()
        if code == 0:
            return None
        message = mask_credentials(reader.error or f"buildctl ended with exit code {code}")
        found = re.search(r"did not complete successfully: exit code: (\d+)", message)
        if found is None and _UNREACHABLE.search(message):
            raise self._unreachable_error(message)
        return SolveFailure(message, int(found[1]) if found else None)

    async def _watch_solve(self, process: Process, reader: _ProgressReader) -> None:
        """Raise if nothing happens for long, unless a silent command runs."""
        while True:
            await wait_until_stuck(process)
            if not reader.is_step_running:
                raise stuck_error("buildctl", STUCK_SECONDS)
            await self.find_worker()

    def _unreachable_error(self, reason: str) -> OutsideError:
        address = mask_credentials(self.address)
        scheme = self.address.partition("://")[0]
        # What the program that connects printed, which gRPC quotes at the end of its message.
        if found := re.search(r'stderr=(.+?)(\\[rn])*"?$', reason):
            reason = found[1].replace("\\n", " ").replace('\\"', '"')
        return OutsideError(
            f"cannot reach BuildKit at {address}: {mask_credentials(reason)}",
            hint=_HINTS.get(scheme, _HINT),
        )


class _ProgressReader:
    """Turn the lines of ``--progress=rawjson`` into lines of output, transfers and an error."""

    def __init__(
        self, step: str, on_line: Callable[[str], None], transfer: Callable[[int, int], None]
    ) -> None:
        self._step = step
        self._on_line = on_line
        self._transfer = transfer
        self._outputs = defaultdict[str, OutputLines](partial(OutputLines, on_line))
        self._transfers: dict[str, tuple[int, int]] = {}
        self.error = ""
        #: Whether the command of the step runs.
        self.is_step_running = False

    def handle_line(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            text = line.decode(errors="replace")
            if text.startswith("error: "):
                self.error = text.removeprefix("error: ").removeprefix("failed to solve: ")
            return
        try:
            status = _decoder.decode(line)
        except msgspec.DecodeError:
            return  # a newer daemon's; what we must know is in buildctl's exit status
        for vertex in status.vertexes or ():
            if not self._step or vertex.name != self._step:
                continue
            self.is_step_running = vertex.started is not None and vertex.completed is None
            if vertex.cached:
                self._on_line("found in BuildKit's cache")
        for moved in status.statuses or ():
            if moved.total and moved.id.startswith("sha256:"):
                self._transfers[moved.id] = (moved.current, moved.total)
                sums = [sum(column) for column in zip(*self._transfers.values(), strict=True)]
                self._transfer(sums[0], sums[1])
        for chunk in status.logs or ():
            self._handle_output(chunk)

    def _handle_output(self, chunk: _LogChunk) -> None:
        with suppress(ValueError):
            self._outputs[chunk.vertex].feed(base64.b64decode(chunk.data))

    def flush(self) -> None:
        """Report last lines that have no line end."""
        for output in self._outputs.values():
            output.feed(b"", final=True)


def _quote_field(key: str, path: Path) -> str:
    """Return ``key=path`` as a field of a CSV record, which options of buildctl are."""
    text = str(path).replace('"', '""')
    return f'"{key}={text}"'


def _last_error(text: str) -> str:
    lines = [line.removeprefix("error: ") for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"


async def _read_lines(stream: ByteReceiveStream, handle: Callable[[bytes], None]) -> None:
    pending = b""
    async for chunk in stream:
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            handle(line)
        if len(pending) > _MAX_LINE_BYTES:
            pending = b""
    if pending:
        handle(pending)


async def _interrupt_solve(process: Process) -> None:
    """Let ``buildctl`` cancel its solve and the daemon its step; kill it if it hangs."""
    if process.returncode is not None:
        return
    with anyio.CancelScope(shield=True):
        for number in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                process.send_signal(number)
            with anyio.move_on_after(_CANCEL_SECONDS):
                await process.wait()
                return
        await process.wait()
