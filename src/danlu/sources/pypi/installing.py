"""One call of uv that installs exactly the wheels of a list below a prefix.

Loaded before all else of a build (see :mod:`danlu.sources.pypi.ahead`), so it imports little.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from danlu.graph import Wheel
from danlu.sources.pypi.target import GLIBC_LEVELS
from danlu.sources.pypi.uv import Call, Uv

__all__ = [
    "Attempt",
    "Install",
    "digests_of",
    "plan_install",
    "platform_options",
    "requirement_line",
]


def requirement_line(wheel: Wheel, path: Path | None) -> str:
    """The wheel as one line of a requirements file that admits only its hash."""
    hash_ = "sha256:" + wheel.sha256.removeprefix("sha256:")
    if path is not None:
        return f"{wheel.name} @ {path.absolute().as_uri()} --hash={hash_}"
    return f"{wheel.name}=={wheel.version} --hash={hash_}"


def platform_options(wheels: Sequence[Wheel]) -> list[str]:
    """Options under which uv takes exactly these files: what fits was decided by the lock."""
    files = " ".join(wheel.file for wheel in wheels)
    machine = "aarch64" if "aarch64" in files else "x86_64"
    if not re.search(r"_(x86_64|aarch64)\b", files):
        machine = os.uname().machine
    system = "unknown-linux-musl" if "musllinux" in files else f"manylinux_2_{GLIBC_LEVELS[-1]}"
    # A package may ask for a patch level; the lock knows that it is there.
    return [
        *("--python-version", f"{wheels[0].scheme.version}.99"),
        *("--python-platform", f"{machine}-{system}"),
    ]


class Install(msgspec.Struct, frozen=True):
    """A call of uv that installs wheels below ``prefix``."""

    prefix: Path
    offline: bool
    call: Call

    async def run(self) -> Attempt:
        """Run it to its end."""
        code, _, messages = await self.call.run()
        return self.ended(code, messages)

    def ended(self, code: int, messages: str) -> Attempt:
        """What came of it."""
        refused = (messages or f"uv ended with {code}") if code else ""
        return Attempt(self.prefix, self.offline, refused)


class Attempt(msgspec.Struct, frozen=True):
    """Wheels installed below ``prefix``, or uv's words of why not."""

    prefix: Path
    offline: bool
    refused: str = ""


def plan_install(
    uv: Uv, wheels: Sequence[Wheel], lines: Sequence[str], prefix: Path, *, online: bool = False
) -> Install:
    """How to install exactly ``lines`` below ``prefix``, which is made.

    Without ``online`` from uv's cache alone, where all of it came through that before. Raises what
    :meth:`Uv.call` raises.
    """
    prefix.mkdir(parents=True)
    listing = prefix.with_name(prefix.name + ".txt")
    listing.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = [
        *("--no-deps", "--require-hashes", "--no-compile-bytecode"),
        *("--link-mode", "hardlink", "--prefix", str(prefix), *platform_options(wheels)),
        *("--requirements", str(listing)),
    ]
    offline = not online and (uv.offline or uv.has_fetched(digests_of(wheels)))
    return Install(prefix, offline, uv.call(("pip", "install"), options, offline=offline))


def digests_of(wheels: Iterable[Wheel]) -> list[str]:
    """The bare sha256 digests of wheels."""
    return [wheel.sha256.removeprefix("sha256:") for wheel in wheels]
