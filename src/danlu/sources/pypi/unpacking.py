"""Wheels as trees: everything that is missing in one call of uv, then one tree for each."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from danlu.environment.names import normalised
from danlu.errors import DanluError, OutsideError, ResolveError
from danlu.graph import Wheel
from danlu.sources.pypi import record
from danlu.sources.pypi.splitting import (
    Distribution,
    Incomplete,
    finish_tree,
    installed,
    split,
    take_all,
)
from danlu.sources.pypi.target import GLIBC_LEVELS
from danlu.sources.pypi.uv import Uv, refusal

__all__ = ["Unpacked", "host_interpreters", "materialise", "requirement_line"]


class Unpacked(msgspec.Struct, frozen=True):
    """A wheel's tree; its root is the image's root. Not yet finished: see :meth:`finish`."""

    wheel: Wheel
    tree: Path
    distribution: Distribution

    def finish(self) -> Path:
        """Rewrite what names this machine and fix modes and times; blocking, for a thread."""
        direct = None
        if self.wheel.source.kind == "url":
            direct = record.direct_url(self.wheel.source.location, self.wheel.sha256)
        finish_tree(
            self.tree,
            self.distribution,
            self.wheel.scheme,
            host_interpreters(),
            direct_url=direct,
        )
        return self.tree


def host_interpreters() -> tuple[str, ...]:
    """The paths of the Python uv runs with, as it may write them into scripts."""
    here = sys.executable
    chain = [here, os.path.realpath(here), str(Path(here).parent.resolve() / Path(here).name)]
    base = getattr(sys, "_base_executable", here)
    chain += [base, os.path.realpath(base)]
    return tuple(dict.fromkeys(chain))


def requirement_line(wheel: Wheel, path: Path | None) -> str:
    """The wheel as one line of a requirements file that admits only its hash."""
    hash_ = "sha256:" + wheel.sha256.removeprefix("sha256:")
    if path is not None:
        return f"{wheel.name} @ {path.absolute().as_uri()} --hash={hash_}"
    return f"{wheel.name}=={wheel.version} --hash={hash_}"


def _platform(wheels: Sequence[Wheel]) -> list[str]:
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


async def _install(
    uv: Uv, wheels: Sequence[Wheel], lines: Sequence[str], prefix: Path, *, offline: bool
) -> str:
    """Install exactly these lines; the message of a refusal, or nothing."""
    prefix.mkdir(parents=True)
    listing = prefix.with_name(prefix.name + ".txt")
    listing.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = [
        *("--no-deps", "--require-hashes", "--no-compile-bytecode"),
        *("--link-mode", "hardlink", "--prefix", str(prefix), *_platform(wheels)),
        *("--requirements", str(listing)),
    ]
    code, _, messages = await uv.run(("pip", "install"), options, offline=offline)
    return (messages or f"uv ended with {code}") if code else ""


async def materialise(
    uv: Uv,
    wheels: Sequence[Wheel],
    *,
    workspace: Path,
    files: Mapping[str, Path] | None = None,
) -> list[Unpacked]:
    """Unpack ``wheels`` (of one scheme) into trees below ``workspace``, in their order.

    ``files`` maps a wheel's sha256 to its file where it does not come from an index. The network
    is used only where uv's cache lacks something. Raises :class:`OutsideError` naming a file that
    the indexes no longer have, :class:`ResolveError` where two wheels own one path.
    """
    files = files or {}
    lines = [requirement_line(one, files.get(one.sha256)) for one in wheels]
    try:
        return await _unpack(uv, wheels, lines, workspace)
    except Incomplete as incomplete:
        unlisted = incomplete.names
    found: list[Unpacked] = []
    together = [one for one in wheels if normalised(one.name) not in unlisted]
    groups = [together] if together else []
    groups += [[one] for one in wheels if normalised(one.name) in unlisted]
    for number, group in enumerate(groups):
        place = workspace / f"again-{number}"
        place.mkdir()
        some = [requirement_line(one, files.get(one.sha256)) for one in group]
        alone = group is not together
        found += await _unpack(uv, group, some, place, alone=alone)
    return sorted(found, key=lambda one: wheels.index(one.wheel))


async def _installed_prefix(
    uv: Uv, wheels: Sequence[Wheel], lines: Sequence[str], workspace: Path
) -> Path:
    """A prefix with all of ``wheels``: from uv's cache alone where it has them, else online."""
    digests = [wheel.sha256.removeprefix("sha256:") for wheel in wheels]
    if uv.offline or uv.has_fetched(digests):
        prefix = workspace / "prefix"
        refused = await _install(uv, wheels, lines, prefix, offline=True)
        if not refused:
            return prefix
        if uv.offline:
            raise OutsideError(
                "some Python packages are not in the cache, and --offline forbids to fetch them",
                details=(_missing(wheels, refused),),
            )
    prefix = workspace / "prefix-online"
    refused = await _install(uv, wheels, lines, prefix, offline=False)
    if refused:
        raise await _gone(uv, wheels, refused, workspace)
    uv.note_fetched(digests)
    return prefix


async def _unpack(
    uv: Uv,
    wheels: Sequence[Wheel],
    lines: Sequence[str],
    workspace: Path,
    *,
    alone: bool = False,
) -> list[Unpacked]:
    prefix = await _installed_prefix(uv, wheels, lines, workspace)
    found = {one.name: one for one in installed(prefix)}
    trees: dict[str, Path] = {}
    for wheel in wheels:
        name = normalised(wheel.name)
        if name not in found:
            raise OutsideError(f"{wheel.file} holds no distribution named {wheel.name}")
        trees[name] = workspace / "trees" / name
        trees[name].mkdir(parents=True)
    if alone:
        take_all(prefix, found[next(iter(trees))], wheels[0].scheme, *trees.values())
    else:
        split(prefix, [found[name] for name in trees], wheels[0].scheme, trees)
    return [
        Unpacked(one, trees[normalised(one.name)], found[normalised(one.name)]) for one in wheels
    ]


def _missing(wheels: Sequence[Wheel], message: str) -> str:
    named = [one for one in wheels if re.search(rf"\b{re.escape(one.name)}\b", message)]
    return ", ".join(f"{one.name} {one.version}" for one in named or wheels)


async def _gone(uv: Uv, wheels: Sequence[Wheel], message: str, workspace: Path) -> DanluError:
    """uv's refusal of an exact list: nearly always a file that an index no longer has."""
    error = refusal(message, doing="fetching the Python packages")
    if not isinstance(error, ResolveError):
        return error
    named = [one for one in wheels if re.search(rf"\b{re.escape(one.name)}\b", message)]
    if not named:
        return error
    gone = named[0]
    instead = await _replacement(uv, gone, workspace)
    return OutsideError(
        f"the package indexes no longer have {gone.file} ({gone.name} {gone.version}),"
        " which the lock names",
        hint=f"they have {instead}: `danlu lock --upgrade {gone.name}` takes it"
        if instead
        else f"they have no {gone.name} that fits",
        details=error.details,
    )


async def _replacement(uv: Uv, gone: Wheel, workspace: Path) -> str:
    """What the indexes have instead of a wheel: ``name version``, or nothing."""
    source = workspace / "replacement.txt"
    source.write_text(f"{gone.name}\n", encoding="utf-8")
    options = [*_platform([gone]), "--no-deps", "--no-header"]
    code, output, _ = await uv.run(("pip", "compile"), [*options, "--no-annotate", str(source)])
    from danlu.sources.pypi.compiling import read_pins

    pins = read_pins(output) if not code else ()
    return f"{pins[0].name} {pins[0].version or pins[0].url}" if pins else ""
