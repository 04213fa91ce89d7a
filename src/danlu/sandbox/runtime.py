"""The OCI runtime: find it, build its command line, and interpret its exit."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import msgspec

from danlu.errors import MachineError
from danlu.sandbox.types import SYSTEM_PATH
from danlu.util.pdeathsig import SETPRIV_OPTIONS

# danlu itself failed before the program started; the same code as for `docker run`.
FAILED_TO_START = 125
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127

_EXEC_ERROR = re.compile(r"exec:? \"?|executable file|open executable|find executable", re.I)
#: Of runc, and of crun.
_DIRECTORY_ERROR = re.compile(r"chdir (?:to cwd \(|`)\"?(.+?)[\"`'].*?: (.+)")
#: Of runc (`verifyCwd`).
_DIRECTORY_GONE_ERROR = re.compile(r"current working directory is outside of container")
DIRECTORY_GONE = "its directory was removed or replaced after the start of the container"
_NOT_FOUND_ERROR = re.compile(r"executable file .*not found|no such file or directory", re.I)
_NOT_EXECUTABLE_ERROR = re.compile(r"permission denied|exec format error|is a directory", re.I)


class OciRuntime(msgspec.Struct, frozen=True):
    """An OCI runtime program.

    ``keeper`` is the command prefix that kills the runtime, and everything in its pid namespace,
    when danlu dies.
    """

    program: str
    name: str
    keeper: tuple[str, ...]

    def command(self, bundle: Path, *, descriptors: int = 0) -> list[str]:
        """Return the command line that runs ``bundle`` in the foreground, with its state inside.

        ``descriptors`` is how many file descriptors, from 3 on, the program inherits.
        """
        kept = f"--preserve-fds={descriptors}"
        return [
            *self.keeper,
            *self._common_arguments(bundle, "log"),
            *("run", kept, "--bundle", str(bundle), bundle.name),
        ]

    def exec_command(
        self, bundle: Path, runtime: int, *, process: Path, descriptors: int = 0
    ) -> list[str]:
        """Return the command line that runs another program in the running ``bundle``.

        ``runtime`` is the runtime's process, whose view of processes is needed; ``process`` is a
        file that describes the program (:func:`danlu.sandbox.runtime_spec.render_process`).
        """
        setpriv, nsenter = _require_program("setpriv"), _require_program("nsenter")
        return [
            *(setpriv, *SETPRIV_OPTIONS),
            *(nsenter, f"--target={runtime}", "--pid", "--mount", "--"),
            *self._common_arguments(bundle, f"{process.name}.log"),
            *("exec", f"--preserve-fds={descriptors}", "--process", str(process), bundle.name),
        ]

    def _common_arguments(self, bundle: Path, log: str) -> list[str]:
        options = {
            # cgroups are read-only here (userns.enter); "rootless" makes runc continue without.
            "crun": ["--cgroup-manager=disabled"],
            "runc": ["--rootless=true"],
            # Passes its arguments on to runc.
            "nvidia-container-runtime": ["--rootless=true"],
        }.get(self.name, [])
        return [
            self.program,
            *("--root", str(bundle / "state")),
            *("--log", str(bundle / log), "--log-format", "json"),
            *options,
        ]

    def environment(self) -> dict[str, str]:
        """Return the runtime's environment; ours could affect it (``NOTIFY_SOCKET``)."""
        return {"PATH": os.environ.get("PATH", SYSTEM_PATH)}


def find_runtime(name: str = "") -> OciRuntime:
    """Return the runtime called ``name`` (a name or a path), by default runc, else crun.

    Raises :class:`MachineError` if there is none.
    """
    for candidate in (name,) if name else ("runc", "crun"):
        program = _find_program(candidate)
        if program is not None:
            return OciRuntime(program, Path(program).name, _keeper_command())
    missing = f"OCI runtime {name} not found" if name else "no OCI runtime found"
    raise MachineError(missing, hint="install one: `sudo apt-get install runc` (Fedora: `crun`)")


def supports_seccomp(runtime: OciRuntime) -> bool:
    """Return whether the runtime was built with libseccomp, as it reports itself.

    One without it rejects every configuration that has a filter. Raises :class:`MachineError` if
    the runtime cannot be asked.
    """
    # runc >= 1.1 and crun >= 1.8.6 have `features`; older ones list it with the version.
    features = _query_runtime(runtime, "features")
    try:
        return bool(json.loads(features)["linux"]["seccomp"]["enabled"])
    except (ValueError, LookupError, TypeError):
        version = _query_runtime(runtime, "--version")
    if not version:
        raise MachineError(f"{runtime.program} --version failed", hint="reinstall the OCI runtime")
    return bool(re.search(r"^libseccomp: |\+SECCOMP\b", version, re.M))


def _query_runtime(runtime: OciRuntime, argument: str) -> str:
    import subprocess  # `danlu doctor` only; container starts do without it

    try:
        completed = subprocess.run(
            [runtime.program, argument],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
            env=runtime.environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout.strip() if completed.returncode == 0 else ""


def _find_program(name: str) -> str | None:
    # Debian installs runc in /usr/sbin, which is not in an ordinary user's PATH.
    return shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)


def _keeper_command() -> tuple[str, ...]:
    """Return the prefix that ties the container's life to ours.

    The runtime is the first process of a pid namespace: when it dies, everything in it does.
    ``setpriv`` has the kernel kill ``unshare`` when danlu dies, and ``--kill-child`` kills the
    runtime when ``unshare`` dies. Nothing of this needs danlu to be alive.
    """
    setpriv, unshare = _require_program("setpriv"), _require_program("unshare")
    # --fork, because unshare(2) puts only children into a new pid namespace.
    return (
        *(setpriv, *SETPRIV_OPTIONS),
        *(unshare, "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"),
    )


def _require_program(name: str) -> str:
    program = _find_program(name)
    if program is None:
        hint = "install it: `sudo apt-get install util-linux`"
        raise MachineError(f"{name} is not installed", hint=hint)
    return program


def interpret_exit(code: int, log: Path, program: str) -> tuple[int, str]:
    """Return the exit code of a run, and why the program did not start.

    The reason is empty if the program ran. As in shells, 126 means that the program cannot be
    executed and 127 that it was not found; :data:`FAILED_TO_START` is any other failure.
    """
    if code < 0:
        # As shells report signals (POSIX, Shell & Utilities, 2.8.2).
        return 128 - code, ""
    reason = _read_last_error(log) if code else ""
    if not reason:
        return code, ""
    directory = _DIRECTORY_ERROR.search(reason)
    if directory:
        return FAILED_TO_START, f"cannot change to directory {directory[1]}: {directory[2]}"
    if _DIRECTORY_GONE_ERROR.search(reason):
        return FAILED_TO_START, DIRECTORY_GONE
    is_exec_error = _EXEC_ERROR.search(reason)
    if is_exec_error and _NOT_FOUND_ERROR.search(reason):
        return _NOT_FOUND, f"{program}: not found"
    if is_exec_error and _NOT_EXECUTABLE_ERROR.search(reason):
        return _NOT_EXECUTABLE, f"{program}: cannot be executed"
    return FAILED_TO_START, reason


def _read_last_error(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("level") in ("error", "fatal"):
            return str(entry.get("msg", ""))
    return ""
