"""Running uv: where it is, what every call of ours says, and its refusals as our errors."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from danlu.errors import (
    ChecksumError,
    DanluError,
    MachineError,
    OutsideError,
    ResolveError,
    TemporaryError,
)
from danlu.sandbox.installerconfig import uv_builds
from danlu.sources.pypi.indexes import Indexes, uv_environment
from danlu.sources.pypi.target import Target
from danlu.util.files import spread_below
from danlu.util.space import full_disk

__all__ = ["Uv", "build_hint", "find_uv", "reason_of", "refusal", "target_options"]


@functools.cache
def find_uv() -> Path:
    """The uv program: the one of danlu's own dependency, else the one in PATH."""
    beside = Path(sys.executable).with_name("uv")
    if beside.is_file():
        return beside
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise MachineError("uv is missing", hint="pip install uv")
    return Path(found)


def target_options(target: Target) -> list[str]:
    """The options that make uv choose for ``target`` and not for the Python that runs danlu."""
    return ["--python-version", target.python, "--python-platform", target.uv_platform]


class Uv(msgspec.Struct, frozen=True):
    """uv with a private cache, set up for one project.

    ``cache`` must lie on the store's file system: what is installed are hard links into it.
    """

    cache: Path
    project: Path
    indexes: Indexes = msgspec.field(default_factory=Indexes)
    offline: bool = False

    async def run(
        self, command: Sequence[str], options: Iterable[str], *, offline: bool = False
    ) -> tuple[int, str, str]:
        """Run ``uv <command> <options>``: exit code, output, messages.

        ``command`` is one of ``uv pip``'s, and builds nothing: a build runs a stranger's code.
        Always with umask 022, because modes of files in the cache become modes in images. Raises
        :class:`ResolveError` where uv's own settings would have it build something all the same.
        """
        from danlu.util.process import run

        self._refuse_builds()
        self.cache.mkdir(parents=True, exist_ok=True)
        spread_below(self.cache)
        common = [
            "--quiet",
            "--no-build",
            "--cache-dir",
            str(self.cache),
            "--python",
            sys.executable,
        ]
        if self.offline or offline:
            common.append("--offline")
        environment = uv_environment(self.indexes, self.project)
        # Of all index options this one alone has no variable that uv reads.
        if environment.pop("UV_NO_INDEX", ""):
            common.append("--no-index")
        args = [str(find_uv()), *command, *common, *options]
        done = await run(args, env=environment, cwd=self.project, umask=0o022)
        return done.code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def has_fetched(self, digests: Iterable[str]) -> bool:
        """Whether all files of these sha256 digests came through this cache before."""
        return all((self._fetched / digest).exists() for digest in digests)

    def note_fetched(self, digests: Iterable[str]) -> None:
        """Remember that these came; whatever empties the cache takes the notes with it."""
        self._fetched.mkdir(parents=True, exist_ok=True)
        for digest in digests:
            (self._fetched / digest).touch()

    @property
    def _fetched(self) -> Path:
        return self.cache / "fetched"

    def _refuse_builds(self) -> None:
        found = uv_builds(os.environ, Path(os.path.realpath(self.project)))
        if found is not None:
            path, setting = found
            raise ResolveError(
                f"uv's setting {setting} in {path} would have packages built on this machine",
                hint="take it out; --no-binary in a requirements file builds in the sandbox",
            )


def _plain(text: str) -> list[str]:
    """uv's message without its drawing: one line a sentence."""
    lines = []
    for raw in text.splitlines():
        line = re.sub(r"^[\s│├╰─▶×]+", "", raw)
        line = re.sub(r"^(error|cause|Caused by|warning):\s*", "", line).strip()
        if line and not raw.startswith("warning:"):
            lines.append(line)
    return lines


def _quietened(text: str) -> str:
    """``text`` without credentials in addresses."""
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", text)


_boilerplate = re.compile(
    r",?( and)?,? we can conclude that (your requirements|the requirements) are unsatisfiable\."
)


def reason_of(text: str, *, lines: int = 4) -> tuple[str, ...]:
    """The few lines of uv's message that say why."""
    plain = [_quietened(line) for line in _plain(text)]
    reasons = [
        _boilerplate.sub(".", line)
        for line in plain
        if not line.startswith(("hint:", "No solution found"))
    ]
    cut = [line if len(line) <= 600 else line[:597] + "…" for line in reasons[:lines]]
    return tuple(cut)


_UNREACHABLE = re.compile(
    r"Failed to fetch: `?(?P<url>[^\s`]+)`?|error sending request for url \((?P<sent>[^)]+)\)"
)
_TEMPORARY = (
    "dns error",
    "Connection refused",
    "Connection reset",
    "operation timed out",
    "timed out",
    "500 Internal",
    "502 Bad",
    "503 Service",
    "504 Gateway",
    "429 Too Many",
    "unexpected EOF",
    "connection closed",
)


def build_hint(text: str) -> str:
    """What usually helps after a build that ended like this."""
    if re.search(r"unable to detect version|git.*(not found|No such file)", text):
        return 'its version comes from git, which runs inside: install.apt_packages(["git"])'
    return "compilers and headers are system packages: install.apt_packages(...)"


def refusal(text: str, *, doing: str) -> DanluError:
    """uv's failure as one of our errors; ``doing`` completes "… failed" sentences of ours."""
    reasons = reason_of(text)
    if "Failed to build" in text or "[stderr]" in text:
        # What matters of a build's output is its end.
        return ResolveError(
            reasons[0] if reasons else f"{doing} failed",
            details=tuple(_quietened(line) for line in text.rstrip().splitlines()[-16:]),
            hint=build_hint(text),
        )
    if "No space left on device" in text:
        return full_disk("danlu's downloads")
    if "Hash mismatch" in text:
        return ChecksumError(
            "a package file is not what the lock says", details=reason_of(text, lines=8)
        )
    if "No solution found" in text:
        hints = [line[5:].strip() for line in _plain(text) if line.startswith("hint:")]
        return ResolveError(
            "the Python packages cannot be satisfied",
            hint=_quietened(hints[0]) if hints else "",
            details=reasons,
        )
    if found := _UNREACHABLE.search(text):
        url = _quietened(found["url"] or found["sent"])
        kind = TemporaryError if any(one in text for one in _TEMPORARY) else OutsideError
        return kind(
            f"the package index could not be reached: {url}",
            hint="check the address (pip's and uv's settings are used), the network and the proxy",
            details=reasons[-2:],
        )
    if "Network connectivity is disabled" in text or "--offline" in text:
        return OutsideError(f"{doing} needs the network, which --offline forbids", details=reasons)
    return ResolveError(f"{doing} failed", details=reasons or (text.strip()[:600],))
