"""Keep locked versions that uv does not find as preferences, because another index hides them.

uv looks for a preferred version on the first index that has the version. If no file there is
compatible, it takes the version for unavailable, even if another index has a compatible file: for
instance, an extra index may have wheels for x86-64 only. Without the preference, uv and pip search
all indexes for each version, so such a version is required with a constraint instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from danlu.environment.lock import LockedPackage
from danlu.environment.package_names import versions_equal
from danlu.errors import ResolveError
from danlu.resolve.python.request import ResolveTask, version_preference
from danlu.sources.pypi.indexes import searches_all_indexes
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.uv_compile import Pin, compile_pins

Resolve = Callable[[ResolveTask], Awaitable[tuple[LockedPackage, ...]]]


async def resolve_keeping_versions(
    task: ResolveTask, uv: Uv, resolve: Resolve
) -> tuple[LockedPackage, ...]:
    """Return what ``resolve`` returns for ``task``, with hidden locked versions kept if possible.

    Raises :class:`ResolveError` as ``resolve`` does for the original task.
    """
    pins = [
        pin
        for package in task.kept.values()
        if package.source == "index" and (pin := version_preference(package)) is not None
    ]
    if not pins or not searches_all_indexes(uv.indexes, uv.project, uv.decisions):
        return await resolve(task)
    try:
        packages = await resolve(task)
    except ResolveError as error:
        text = " ".join((error.message, *error.details))
        hidden = await _find_hidden(uv, task, [pin for pin in pins if pin.name in text])
        if not hidden:
            raise
        try:
            return await resolve(task.require_versions(hidden))
        except ResolveError:
            raise error from None
    versions = {package.name: package.version for package in packages}
    lost = [
        pin for pin in pins if not versions_equal(versions.get(pin.name, pin.version), pin.version)
    ]
    hidden = await _find_hidden(uv, task, lost)
    if not hidden:
        return packages
    try:
        return await resolve(task.require_versions(hidden))
    except ResolveError:
        return packages  # a requirement excludes the version


async def _find_hidden(uv: Uv, task: ResolveTask, pins: Sequence[Pin]) -> list[str]:
    """Return the names of those ``pins`` that uv only finds if they are not preferences."""
    if not pins or await _can_find(uv, task, pins, preferences=pins):
        return []
    if len(pins) == 1:
        return [pins[0].name] if await _can_find(uv, task, pins) else []
    middle = len(pins) // 2
    return [
        *(await _find_hidden(uv, task, pins[:middle])),
        *(await _find_hidden(uv, task, pins[middle:])),
    ]


async def _can_find(
    uv: Uv, task: ResolveTask, pins: Sequence[Pin], preferences: Sequence[Pin] = ()
) -> bool:
    listing = task.scratch / "suspects.txt"
    listing.write_text("".join(f"{pin.line}\n" for pin in pins), encoding="utf-8")
    try:
        await compile_pins(
            uv,
            ["--no-deps", str(listing)],
            task.request.target,
            scratch=task.scratch,
            preferences=preferences,
        )
    except ResolveError:
        return False
    return True
