"""The OCI runtime: which program, its command line, and what it said when it failed."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import msgspec

from danlu.errors import MachineError
from danlu.sandbox.types import SYSTEM_PATH

__all__ = ["FAILED_BEFORE", "Runtime", "find", "outcome"]

# danlu itself failed before the program started (DESIGN §4).
FAILED_BEFORE = 125
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127

_STARTED_EXEC = re.compile(r"exec:? \"?|executable file|open executable|find executable", re.I)
_MISSING = re.compile(r"executable file .*not found|no such file or directory", re.I)
_BARRED = re.compile(r"permission denied|exec format error|is a directory", re.I)


class Runtime(msgspec.Struct, frozen=True):
    """An OCI runtime program and what must be around it.

    ``keeper`` are the words that end the runtime, and all in its process namespace, when danlu
    dies.
    """

    program: str
    name: str
    keeper: tuple[str, ...]

    def command(self, bundle: Path, *, descriptors: int = 0) -> list[str]:
        """The command line that runs ``bundle`` in the foreground; all state lies in it.

        So many ``descriptors``, from 3 on, are the program's too.
        """
        kept = f"--preserve-fds={descriptors}"
        return [
            *self.keeper,
            *self._common(bundle, "log"),
            *("run", kept, "--bundle", str(bundle), bundle.name),
        ]

    def exec_command(
        self, bundle: Path, runtime: int, *, process: Path, descriptors: int = 0
    ) -> list[str]:
        """The command line that runs a further program in ``bundle``, which runs.

        ``runtime`` is the process that runs it, whose view of processes is needed; ``process`` is
        a file with the program (:func:`danlu.sandbox.bundle.process_document`).
        """
        setpriv, nsenter = _needed("setpriv"), _needed("nsenter")
        return [
            *(setpriv, "--pdeathsig", "KILL", "--"),
            *(nsenter, f"--target={runtime}", "--pid", "--mount", "--"),
            *self._common(bundle, f"{process.name}.log"),
            *("exec", f"--preserve-fds={descriptors}", "--process", str(process), bundle.name),
        ]

    def _common(self, bundle: Path, log: str) -> list[str]:
        options = {
            # Control groups are hidden (userns.enter): "rootless" makes runc go on without.
            "crun": ["--cgroup-manager=disabled"],
            "runc": ["--rootless=true"],
        }.get(self.name, [])
        return [
            self.program,
            *("--root", str(bundle / "state")),
            *("--log", str(bundle / log), "--log-format", "json"),
            *options,
        ]

    def environment(self) -> dict[str, str]:
        """The runtime's own environment: nothing of ours (``NOTIFY_SOCKET`` would change it)."""
        return {"PATH": os.environ.get("PATH", SYSTEM_PATH)}


def find(name: str = "") -> Runtime:
    """The runtime called ``name`` (a name or a path), else runc, else crun.

    Raises :class:`MachineError` where there is none.
    """
    for candidate in (name,) if name else ("runc", "crun"):
        program = _which(candidate)
        if program is not None:
            return Runtime(program, Path(program).name, _keeper())
    missing = f"the OCI runtime {name} is not there" if name else "there is no OCI runtime"
    raise MachineError(missing, hint="install one: `sudo apt-get install runc` (Fedora: `crun`)")


def _which(name: str) -> str | None:
    # /usr/sbin is where Debian has runc, and not in the PATH of an ordinary user.
    return shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)


def _keeper() -> tuple[str, ...]:
    """The runtime is the first process of a process namespace: when it dies, all in it do.

    ``setpriv`` has the kernel kill ``unshare`` when danlu dies, and ``--kill-child`` the runtime
    when ``unshare`` dies; nothing of this needs danlu to be alive.
    """
    setpriv, unshare = _needed("setpriv"), _needed("unshare")
    return (
        *(setpriv, "--pdeathsig", "KILL", "--"),
        *(unshare, "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--"),
    )


def _needed(name: str) -> str:
    program = _which(name)
    if program is None:
        hint = "install it: `sudo apt-get install util-linux`"
        raise MachineError(f"{name} is not there", hint=hint)
    return program


def outcome(code: int, log: Path, program: str) -> tuple[int, str]:
    """The exit code for a runtime that ended with ``code``, and why the program did not start.

    The reason is empty where the program ran. 126 and 127 are a program that cannot be executed
    or is not there, as shells say it; :data:`FAILED_BEFORE` is any other failure.
    """
    if code < 0:
        return 128 - code, ""
    reason = _last_error(log) if code else ""
    if not reason:
        return code, ""
    said = _STARTED_EXEC.search(reason)
    if said and _MISSING.search(reason):
        return _NOT_FOUND, f"{program}: not found"
    if said and _BARRED.search(reason):
        return _NOT_EXECUTABLE, f"{program}: cannot be executed"
    return FAILED_BEFORE, reason


def _last_error(log: Path) -> str:
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
