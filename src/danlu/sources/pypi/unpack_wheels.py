"""Unpack wheels: install all missing ones with a single call of uv, then split them into trees."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.environment.package_names import normalize_name
from danlu.errors import DanluError, OutsideError, ResolveError, StoreError
from danlu.graph.ops import Wheel
from danlu.sources.pypi import dist_info
from danlu.sources.pypi.dist_info import InvalidWheel
from danlu.sources.pypi.indexes import searches_all_indexes
from danlu.sources.pypi.split_wheels import (
    InstalledDistribution,
    UnlistedFilesError,
    finish_tree,
    list_distributions,
    split_prefix,
    take_all,
)
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.uv_errors import summarize_reason, uv_error
from danlu.sources.pypi.uv_install import (
    plan_install,
    platform_options,
    requirement_line,
    wheel_digests,
)
from danlu.sources.pypi.verification import WheelContents, examine_tree

if TYPE_CHECKING:
    from danlu.sources.pypi.uv_install import InstallAttempt, WheelPrefetch

#: Start of uv's message when an index does not have the file.
_NOT_FOUND = "No solution found"

#: Start of uv's message when an index has another file of the locked version.
_HASH_MISMATCH = "Hash mismatch"

#: Hints for an invalid wheel, by its origin.
_HINTS = {
    "built": "it was built from source: check the settings of the build backend",
    "index": "report it to the package's maintainers and use another version",
    "local": "rebuild the wheel and run `danlu lock`",
    "url": "if the file at this URL is correct now, run `danlu lock`",
}

#: uv's message for an invalid wheel, whether it was just unpacked or comes from uv's cache.
_INVALID_WHEEL = re.compile(r"Failed to install: \S+ \((?P<name>[\w.-]+)")


class UnpackedWheel(msgspec.Struct, frozen=True):
    """A wheel's tree, whose root is the image's root. Not normalised until :meth:`finish`."""

    wheel: Wheel
    tree: Path
    distribution: InstalledDistribution

    def examine(self) -> WheelContents:
        """Compare the files with RECORD, before :meth:`finish`; blocking, call it in a thread.

        Raises :class:`InvalidWheel`.
        """
        return examine_tree(self.tree, self.distribution, self.wheel.scheme, host_interpreters())

    def finish(self) -> Path:
        """Replace references to this machine and normalise modes and times; blocking, call it in
        a thread.

        Raises :class:`InvalidWheel`.
        """
        direct = None
        if self.wheel.source.kind == "url":
            direct = dist_info.render_direct_url(self.wheel.source.location, self.wheel.sha256)
        finish_tree(
            self.tree,
            self.distribution,
            self.wheel.scheme,
            host_interpreters(),
            direct_url=direct,
        )
        return self.tree


def host_interpreters() -> tuple[str, ...]:
    """Return the paths under which uv may have written its own Python into scripts."""
    here = sys.executable
    chain = [here, os.path.realpath(here), str(Path(here).parent.resolve() / Path(here).name)]
    base = getattr(sys, "_base_executable", here)
    chain += [base, os.path.realpath(base)]
    return tuple(dict.fromkeys(chain))


async def unpack_wheels(
    uv: Uv,
    wheels: Sequence[Wheel],
    *,
    workspace: Path,
    files: Mapping[str, Path] | None = None,
    ahead: WheelPrefetch | None = None,
) -> list[UnpackedWheel]:
    """Unpack ``wheels`` (all of one scheme) into trees in ``workspace``, in the same order.

    ``files`` maps a wheel's sha256 to its file if it does not come from an index; ``ahead`` may
    have installed them already. The network is used only if uv's cache lacks something. Raises
    :class:`OutsideError` naming a file that the indexes no longer have, :class:`ResolveError` if
    two wheels have the same path, :class:`InvalidWheel` if a wheel, or uv's cached copy of it,
    cannot be installed.
    """
    files = files or {}
    lines = [requirement_line(wheel, files.get(wheel.sha256)) for wheel in wheels]
    try:
        prefix = await _install_prefix(uv, wheels, lines, workspace, ahead)
        return _unpack_prefix(prefix, wheels, workspace)
    except UnlistedFilesError as incomplete:
        unlisted = incomplete.names
    unpacked_wheels: list[UnpackedWheel] = []
    together = [wheel for wheel in wheels if normalize_name(wheel.name) not in unlisted]
    groups = [together] if together else []
    groups += [[wheel] for wheel in wheels if normalize_name(wheel.name) in unlisted]
    for number, group in enumerate(groups):
        place = workspace / f"again-{number}"
        place.mkdir()
        some = [requirement_line(wheel, files.get(wheel.sha256)) for wheel in group]
        prefix = await _install_prefix(uv, group, some, place)
        unpacked_wheels += _unpack_prefix(prefix, group, place, alone=group is not together)
    return sorted(unpacked_wheels, key=lambda unpacked: wheels.index(unpacked.wheel))


async def _install_prefix(
    uv: Uv,
    wheels: Sequence[Wheel],
    lines: Sequence[str],
    workspace: Path,
    ahead: WheelPrefetch | None = None,
) -> Path:
    """Return a prefix with all ``wheels``: from uv's cache alone if possible, else online."""
    attempt = await ahead.take(wheels, uv.report_download) if ahead else None
    if attempt is None:
        attempt = await plan_install(uv, wheels, lines, workspace / "prefix").run()
    if attempt.error and attempt.offline:
        _raise_if_invalid(attempt)
        if uv.offline:
            raise OutsideError(
                "some Python packages are not cached and cannot be fetched with --offline",
                details=(_format_missing_wheels(wheels, attempt.error),),
            )
        prefix = workspace / "prefix-online"
        attempt = await plan_install(uv, wheels, lines, prefix, online=True).run()
    is_other_file = _HASH_MISMATCH in attempt.error and not uv.offline
    if is_other_file and searches_all_indexes(uv.indexes, uv.project, uv.decisions):
        attempt = await _install_from_any_index(uv, wheels, lines, workspace, attempt)
    if attempt.error:
        _raise_if_invalid(attempt)
        raise await _missing_wheel_error(uv, wheels, attempt.error, workspace)
    if not attempt.offline:
        uv.note_fetched(wheel_digests(wheels))
    return attempt.prefix


async def _install_from_any_index(
    uv: Uv,
    wheels: Sequence[Wheel],
    lines: Sequence[str],
    workspace: Path,
    attempt: InstallAttempt,
) -> InstallAttempt:
    """Install again with locked files that uv does not take, because it takes others.

    Of several indexes with the same version, uv takes the file of the first. The locked one may be
    on another. Returns the last attempt.
    """
    from danlu.sources.pypi.simple_index import fetch_file  # a build needs it for this only

    replaced = list(lines)
    for number in range(len(wheels)):
        named = set(re.findall(rf"{_HASH_MISMATCH} for `([\w.-]+)==", attempt.error))
        changed = False
        for position, wheel in enumerate(wheels):
            if wheel.source.kind != "index" or replaced[position] != lines[position]:
                continue
            if normalize_name(wheel.name) not in map(normalize_name, named):
                continue
            try:
                fetched = await fetch_file(
                    uv, wheel.name, wheel.file, wheel_digests([wheel])[0], cache=workspace / "http"
                )
            except OutsideError:
                return attempt
            path = workspace / "any-index" / wheel.file
            path.parent.mkdir(exist_ok=True)
            os.link(fetched.path, path)
            replaced[position] = requirement_line(wheel, path)
            changed = True
        if not changed:
            break
        prefix = workspace / f"prefix-any-index-{number}"
        attempt = await plan_install(uv, wheels, replaced, prefix, online=True).run()
    return attempt


def _unpack_prefix(
    prefix: Path, wheels: Sequence[Wheel], workspace: Path, *, alone: bool = False
) -> list[UnpackedWheel]:
    distributions = {distribution.name: distribution for distribution in list_distributions(prefix)}
    trees: dict[str, Path] = {}
    for wheel in wheels:
        name = normalize_name(wheel.name)
        if name not in distributions:
            raise InvalidWheel(wheel.name, f"{wheel.file} contains no distribution of that name")
        trees[name] = workspace / "trees" / name
        trees[name].mkdir(parents=True)
    if alone:
        take_all(prefix, distributions[next(iter(trees))], wheels[0].scheme, *trees.values())
    else:
        split_prefix(prefix, [distributions[name] for name in trees], wheels[0].scheme, trees)
    return [
        UnpackedWheel(
            wheel, trees[normalize_name(wheel.name)], distributions[normalize_name(wheel.name)]
        )
        for wheel in wheels
    ]


def _raise_if_invalid(attempt: InstallAttempt) -> None:
    """Raise :class:`InvalidWheel` if uv found a wheel but could not install its content."""
    match = _INVALID_WHEEL.search(attempt.error)
    if match is None or isinstance(uv_error(attempt.error, doing=""), StoreError):
        return
    # Files are named as in the wheel, not where uv unpacked it.
    place = rf"{re.escape(str(attempt.prefix))}/(?:lib/python[\d.]+/site-packages/)?"
    reasons = summarize_reason(re.sub(place, "", attempt.error))
    raise InvalidWheel(match["name"], reasons[-1] if reasons else "uv rejects it", details=reasons)


def _format_missing_wheels(wheels: Sequence[Wheel], message: str) -> str:
    named = [wheel for wheel in wheels if re.search(rf"\b{re.escape(wheel.name)}\b", message)]
    return ", ".join(f"{wheel.name} {wheel.version}" for wheel in named or wheels)


async def _missing_wheel_error(
    uv: Uv, wheels: Sequence[Wheel], message: str, workspace: Path
) -> DanluError:
    """Return the error for uv rejecting an exact list: nearly always a file missing on an index.

    A file that exists but cannot be read is another matter, and a file of the project does not
    concern any index.
    """
    message = await uv.add_denied_access(message)
    error = uv_error(message, doing="fetching the Python packages")
    if not isinstance(error, ResolveError):
        return error
    named = [wheel for wheel in wheels if re.search(rf"\b{re.escape(wheel.name)}\b", message)]
    if not named:
        return error
    gone = named[0]
    if gone.source.kind != "index" or _NOT_FOUND not in message:
        reason = f"{gone.file}: {error.details[-1] if error.details else error.message}"
        return InvalidWheel(gone.name, reason, hint=_HINTS[gone.source.kind], details=error.details)
    instead = await _find_replacement(uv, gone, workspace)
    return OutsideError(
        f"the package indexes no longer have the locked file {gone.file}"
        f" ({gone.name} {gone.version})",
        hint=f"run `danlu lock --upgrade {gone.name}` to lock {instead} instead"
        if instead
        else f"they have no version of {gone.name} that is compatible",
        details=error.details,
    )


async def _find_replacement(uv: Uv, gone: Wheel, workspace: Path) -> str:
    """Return what the indexes have instead of a wheel: ``name version``, or an empty text."""
    source = workspace / "replacement.txt"
    source.write_text(f"{gone.name}\n", encoding="utf-8")
    options = [*platform_options([gone]), "--no-deps", "--no-header"]
    code, output, _ = await uv.run(("pip", "compile"), [*options, "--no-annotate", str(source)])
    from danlu.sources.pypi.uv_compile import read_pins  # resolving; a build needs it for this only

    pins = read_pins(output) if not code else ()
    return f"{pins[0].name} {pins[0].version or pins[0].url}" if pins else ""
