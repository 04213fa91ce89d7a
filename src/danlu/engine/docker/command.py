"""Run the command line of Docker or Podman, and turn its errors into ours."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from anyio import to_thread

from danlu.errors import DanluError, MachineError, OutsideError
from danlu.util.process_activity import run_program
from danlu.util.sanitize import escape_unprintable, read_last_line

#: What the programs read themselves, so that a container's value must not be in their environment.
_OWN_PREFIXES = ("DOCKER_", "CONTAINER", "PODMAN", "BUILDAH", "SSH_", "XDG_", "LD_", "GODEBUG")
_OWN_VARIABLES = frozenset(
    ("PATH", "HOME", "USER", "LANG", "TMPDIR", "REGISTRY_AUTH_FILE", "STORAGE_DRIVER", "TERM")
)
_HINTS = {
    "docker": "start Docker Desktop or the daemon (`systemctl start docker`), or set DOCKER_HOST",
    "podman": "`podman info` shows what is wrong",
}
#: Docker holds back a key that may be the first of those that end a connection, by default Ctrl-P,
#: until the next one. It has no value for "none"; hardly anybody types these three.
DETACH_KEYS = "ctrl-^,ctrl-@,ctrl-^"
#: Podman: "Resource limits are not supported and ignored on cgroups V1 rootless systems"; Docker:
#: "Your kernel does not support memory limit capabilities … Limitation discarded."
_NOT_ENFORCED = re.compile("not support(ed)? .*(ignored|discarded)", re.IGNORECASE)
_UNREACHABLE = (
    "cannot connect to the docker daemon",
    "failed to connect to the docker api",
    "is the docker daemon running",
    "cannot connect to podman",
    "error during connect",
)


class DockerCommand:
    """The command line of an engine: ``docker`` or ``podman``."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def is_podman(self) -> bool:
        """Whether this is Podman, which differs in images and users."""
        return self.name == "podman"

    def run(
        self,
        *args: str,
        variables: Mapping[str, str] | None = None,
        directory: Path | None = None,
        input: bytes = b"",
        warnings: list[str] | None = None,
    ) -> str:
        """Run a command, in another working directory if given, and return what it prints.

        It reads ``input``. ``variables`` are passed to containers by name
        (:func:`render_variables`). What the engine could not enforce is added to ``warnings``.
        Raises :class:`MachineError` if the program is missing or its daemon cannot be reached, and
        :class:`OutsideError` with its last line if the command fails, or does nothing for
        long.
        """
        done = run_program(
            [self.find_program(), *args],
            env={**os.environ, **(variables or {})},
            cwd=directory,
            input=input,
        )
        if done.returncode:
            raise self.interpret_error(args[0], done.stderr.decode(errors="replace"))
        if warnings is not None:
            lines = done.stderr.decode(errors="replace").splitlines()
            found = [line.strip() for line in lines if _NOT_ENFORCED.search(line)]
            warnings += [f"{self.name}: {escape_unprintable(line)}" for line in found]
        return done.stdout.decode(errors="replace")

    async def run_async(
        self,
        *args: str,
        variables: Mapping[str, str] | None = None,
        warnings: list[str] | None = None,
    ) -> str:
        """Run a command as :meth:`run` does, without blocking the event loop."""
        return await to_thread.run_sync(
            lambda: self.run(*args, variables=variables, warnings=warnings)
        )

    def find_program(self) -> str:
        """Return the path of the program; raise :class:`MachineError` if it is missing."""
        found = shutil.which(self.name)
        if found is None:
            raise MachineError(
                f"{self.name} is not installed",
                hint=f"install {self.name}, or choose another context with --on",
            )
        return found

    def interpret_error(self, command: str, stderr: str) -> DanluError:
        """Return the error for a command that failed, from what it printed."""
        lines = [line.strip() for line in stderr.strip().splitlines() if line.strip()]
        # Docker's client ends with advice: "See 'docker run --help'."
        reasons = [line for line in lines if "--help'" not in line]
        reason = read_last_line("\n".join(reasons), otherwise="it printed no error")
        if "permission denied while trying to connect" in stderr:
            return MachineError(
                f"{self.name}: {reason}",
                hint="add your account to the group docker (equivalent to root), or use podman",
            )
        if "nvidia.com/gpu" in reason:
            return MachineError(
                f"{self.name}: {reason}",
                hint="install nvidia-container-toolkit and run `sudo nvidia-ctk cdi generate"
                " --output=/etc/cdi/nvidia.yaml`; the embedded engine needs neither",
            )
        if any(text in stderr.lower() for text in _UNREACHABLE):
            return MachineError(f"{self.name}: {reason}", hint=_HINTS.get(self.name, ""))
        hint = f"`{self.name} context ls` lists them" if "context not found" in reason else ""
        if "no space left on device" in reason:
            hint = f"free space where {self.name} keeps images: `{self.name} system df` shows them"
        return OutsideError(f"{self.name} {command} failed: {reason}", hint=hint)


def render_variables(
    variables: Mapping[str, str],
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return options that set variables in a container, and variables for the program itself.

    Values are passed by name, because every user of the machine can read arguments; the exception
    are variables that the program would interpret itself.
    """
    options: list[str] = []
    passed = {}
    for name, value in variables.items():
        if name in _OWN_VARIABLES or name.startswith(_OWN_PREFIXES):
            options += ["--env", f"{name}={value}"]
        else:
            options += ["--env", name]
            passed[name] = value
    return options, passed
