"""Resolve declared Python requirements to exact files.

uv is called twice, because the second step is slow: for versions (locked ones are preferred), and
then for files, only of packages that are new. If a package must be built to know its
requirements, both steps run in the sandbox (:mod:`danlu.resolve.python.sandboxed`).

Most of a resolution is asking indexes about every package. If this machine remembers which
requirements the locked packages answer, only the *new* requirements are resolved. An answer that
leaves every locked version unchanged is complete: the locked packages need nothing else, and
whatever the new packages need of them has been taken into account.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import msgspec
from msgspec.structs import replace
from packaging.requirements import Requirement

from danlu.environment.lock import FunctionLock, LockedPackage, LockedSetting
from danlu.environment.package_names import normalize_name, requirement_name
from danlu.environment.requirements import PYTHON_SOURCE, list_python_packages
from danlu.environment.types import Environment
from danlu.errors import DanluError, ResolveError, Span
from danlu.resolve.context import ResolveContext
from danlu.resolve.python.build_requirements import LockedBuilds, lock_build_requirements
from danlu.resolve.python.hidden_versions import resolve_keeping_versions
from danlu.resolve.python.lock_files import import_lock_file
from danlu.resolve.python.pyproject import check_own_extras
from danlu.resolve.python.request import (
    PythonRequest,
    ResolveTask,
    can_keep,
    collect_indexes,
    to_locked_package,
    verify_required_urls,
)
from danlu.resolve.python.requirements import (
    DeclaredRequirements,
    SourceRequirement,
    UvRequirement,
    collect_requirements,
    write_requirements,
)
from danlu.resolve.python.sandboxed import resolve_in_sandbox
from danlu.sandbox.machine_settings import WHEN_LOCKING
from danlu.sources.http import fetch
from danlu.sources.pypi.indexes import (
    find_unset_variables,
    index_state,
    local_page_times,
    may_skip_denied_index,
    searches_all_indexes,
    uv_environment,
)
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.requirements import check_hashes, wrong_hash
from danlu.sources.pypi.restrictions import check_settings, read_restrictions, select_restrictions
from danlu.sources.pypi.split_wheels import reject_variants
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.uv_compile import (
    PackageFile,
    Pin,
    compile_pins,
    locate_files,
    upgrade_options,
    write_index_pins,
)
from danlu.sources.pypi.uv_errors import AccessDenied, format_missing_extra, lacks_package, uv_error
from danlu.sources.pypi.variant_labels import split_variant_label
from danlu.sources.pypi.wheel_variants import find_level_wheels
from danlu.util.disk_cache import read_cache, write_cache
from danlu.util.safe_paths import ProjectTree
from danlu.util.urls import mask_credentials

#: How long (seconds) a resolution is reused. uv itself would not ask the large indexes earlier:
#: their pages have ``Cache-Control: max-age=600``.
_RESOLUTION_TTL_SECONDS = 600.0


async def resolve_packages(
    environment: Environment,
    lock: FunctionLock,
    kept: Sequence[LockedPackage],
    builds: Sequence[LockedPackage],
    context: ResolveContext,
) -> LockedBuilds:
    """Return all packages that the environment needs, sorted by name, with what they are built
    with; ``kept`` versions and their ``builds`` stay if possible.

    Raises :class:`ResolveError` with the responsible line, :class:`OutsideError` for an index that
    does not respond.
    """
    assert lock.python is not None
    declared = list_python_packages(environment)
    if not declared:
        return LockedBuilds(())
    check_settings(context.project)
    request = PythonRequest(
        declared=declared,
        target=PlatformTarget(lock.python.version, lock.base.libc, context.platform.architecture),
        project=context.project,
        paths=context.paths,
        indexes=collect_indexes(environment, context.project, context.config),
        restrictions=read_restrictions(context.project),
        offline=context.offline,
        executable=lock.python.executable,
        run_in_sandbox=partial(context.run_in_system, lock),
        report=context.report,
    )
    resolve = partial(
        resolve_python, old=kept, upgrade=context.upgrade, upgrade_all=context.upgrade_all
    )
    try:
        packages = await resolve(request)
    except ResolveError as error:
        # The user did not ask for pip, so an index of the project may lack it.
        own = [packages for packages in declared if packages.source != PYTHON_SOURCE]
        if len(own) in (0, len(declared)) or not lacks_package(error, "pip"):
            raise
        packages = await resolve(replace(request, declared=own))
        context.report("warning: no index of the project has pip; the environment is without it")
    if lock.base.variant:
        packages = await _choose_level_wheels(request, packages, kept, lock.base.variant)
    locked = LockedBuilds(packages)
    if any(not package.file.endswith(".whl") for package in packages):
        with tempfile.TemporaryDirectory(prefix=".builds-", dir=context.paths.cache) as scratch:
            locked = await lock_build_requirements(
                request,
                packages,
                LockedBuilds(tuple(kept), tuple(builds)),
                upgrade=context.upgrade,
                scratch=Path(scratch),
            )
    return replace(locked, settings=_list_settings(request, locked))


async def _choose_level_wheels(
    request: PythonRequest,
    packages: Sequence[LockedPackage],
    kept: Sequence[LockedPackage],
    level: str,
) -> tuple[LockedPackage, ...]:
    """Return the packages with wheels for a level of processors where an index has some."""
    if request.offline:
        labelled = {split_variant_label(package.file)[0]: package for package in kept}
        return tuple(labelled.get(package.file, package) for package in packages)
    wheels = {package.name: package.file for package in packages if package.source == "index"}
    uv = Uv(request.paths.cache / "uv", request.project, request.indexes, decisions=WHEN_LOCKING)
    found = await find_level_wheels(
        uv, wheels, level, request.target, cache=request.paths.cache / "http"
    )
    return tuple(
        replace(package, file=chosen.file, sha256=chosen.sha256, size=chosen.size)
        if (chosen := found.get(package.name)) is not None
        else package
        for package in packages
    )


def _list_settings(request: PythonRequest, locked: LockedBuilds) -> tuple[LockedSetting, ...]:
    """Return the settings of this machine that restricted the packages."""
    applied = select_restrictions(
        request.restrictions.entries,
        (package.name for package in locked.packages),
        (wheel.name for wheel in locked.wheels),
    )
    settings = {
        LockedSetting(entry.setting, entry.value, entry.origin, entry.package) for entry in applied
    }
    return tuple(sorted(settings, key=msgspec.structs.astuple))


async def resolve_python(
    request: PythonRequest,
    old: Sequence[LockedPackage] = (),
    *,
    upgrade: Sequence[str] = (),
    upgrade_all: bool = False,
) -> tuple[LockedPackage, ...]:
    """Return exact files for all declared packages and their dependencies, by normalised name.

    ``old`` packages keep their version if possible, except for those in ``upgrade`` (all with
    ``upgrade_all``). Raises :class:`ResolveError` with uv's reason and the responsible line,
    :class:`OutsideError` naming an index that does not respond.
    """
    wanted = collect_requirements(
        request.declared,
        request.project,
        request.target,
        formats=request.restrictions.formats,
    )
    uses_lock_file = bool(wanted.pylock_files or wanted.uv_locks)
    if not uses_lock_file and not wanted.lines and not wanted.sources:
        return ()
    for source in wanted.sources:
        _check_extras(source, request.project)
    upgrading = {normalize_name(name) for name in upgrade}
    kept = {
        package.name: package
        for package in old
        if not upgrade_all and package.name not in upgrading
    }
    renew = upgrade_options(sorted(upgrading), upgrade_all=upgrade_all)
    request.paths.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".resolve-", dir=request.paths.cache) as name:
        task = ResolveTask(request, wanted, kept, renew, Path(name))
        try:
            digests = await _verify_files(request, wanted)
            await _check_access(task)
            packages = await (
                _resolve_with_lock_file(task)
                if uses_lock_file
                else _resolve_declared_packages(task)
            )
            _check_hashes(packages, (wanted.hashes, request.restrictions.hashes))
            _check_files(packages, wanted, digests)
            reject_variants({package.name for package in packages})
            return packages
        except ResolveError as error:
            error.span = error.span or _find_requirement_span(wanted, error)
            request.restrictions.explain(error)
            raise
        except AccessDenied as error:
            unset = find_unset_variables(request.declared, request.project)
            if unset:
                variable, where = unset[0]
                error.hint = f"set the variable {variable}, which the URL of an index contains"
                error.span = error.span or where
            raise


async def _check_access(task: ResolveTask) -> None:
    """Raise :class:`AccessDenied` if an index denies access that uv would pass over."""
    request = task.request
    if request.offline or not may_skip_denied_index(request.indexes, request.project):
        return
    uv = _make_uv(task, _MissingExtras(task.wanted))
    if denied := await uv.find_denied_access():
        raise uv_error(denied, doing="resolving Python packages")


async def _resolve_with_lock_file(task: ResolveTask) -> tuple[LockedPackage, ...]:
    packages, additions = await import_lock_file(task)
    if additions is None:
        return packages
    listed = {package.name for package in packages}
    added = await _resolve_declared_packages(additions)
    more = (package for package in added if package.name not in listed)
    return tuple(sorted((*packages, *more), key=lambda package: package.name))


async def _verify_files(
    request: PythonRequest, wanted: DeclaredRequirements
) -> dict[str, frozenset[str]]:
    """Verify the hashes of wheels at a location; return the sha256 that each may have, by name.

    uv would take the hash in a URL for that of the file. A file whose hash is of another kind is
    read here; the others, by the sha256 in the lock, after uv has read them.
    """
    digests = {}
    for name, file in wanted.files.items():
        digests[name] = frozenset(
            text.removeprefix("sha256:") for text in file.hashes if text.startswith("sha256:")
        )
        if file.path is not None:
            with ProjectTree(request.project) as tree:
                opened = os.fdopen(tree.open_file(file.path), "rb")
        elif len(digests[name]) == len(file.hashes):
            continue
        else:
            cache = request.paths.cache / "http"
            fetched = await fetch(file.location, None, cache=cache, offline=request.offline)
            opened = fetched.path.open("rb")
            digests[name] = frozenset((fetched.sha256,))
        with opened:
            check_hashes(opened, file.hashes, file.location, file.span)
        if file.path is not None:
            del digests[name]
    return digests


def _check_hashes(
    packages: Iterable[LockedPackage], allowed: Iterable[Mapping[str, frozenset[str]]]
) -> None:
    """Raise unless each locked file has a hash that the ``--hash`` options allow."""
    for package, hashes in product(packages, allowed):
        if package.sha256 not in hashes.get(package.name, {package.sha256}):
            raise ResolveError(
                f"{package.file} does not match any hash in the requirements file",
                hint="the requirements file may only list hashes for other platforms",
            )


def _check_files(
    packages: Iterable[LockedPackage],
    wanted: DeclaredRequirements,
    digests: Mapping[str, frozenset[str]],
) -> None:
    """Raise unless each file at a location has a hash that the location allows."""
    for package in packages:
        if package.sha256 not in digests.get(package.name, {package.sha256}):
            file = wanted.files[package.name]
            raise wrong_hash(file.location, file.hashes, file.span)


def _check_extras(source: SourceRequirement, project: Path) -> None:
    """Raise :class:`ResolveError` for an extra that a directory of the user does not have."""
    reference = source.reference
    names = [name.strip() for name in reference.extras.strip("[]").split(",") if name.strip()]
    if not names or reference.kind != "directory" or reference.path is None:
        return
    path = reference.path / reference.subdirectory / "pyproject.toml"
    try:
        if path.is_file():
            check_own_extras(path, project, names)
    except ResolveError as error:
        error.span = error.span or source.span
        raise


async def _resolve_declared_packages(task: ResolveTask) -> tuple[LockedPackage, ...]:
    source_builds = _find_source_builds(task.wanted, task.kept)
    if not source_builds:
        try:
            return await _resolve_wheels(task)
        except ResolveError as error:
            if not _requires_build(error) or ":all:" in task.wanted.formats.only_binary:
                raise
            if task.request.run_in_sandbox is None:
                raise
            task.request.report(
                "no compatible wheel for some packages; resolving from source in the sandbox"
            )
    if task.request.run_in_sandbox is None:
        first = source_builds[0]
        package = "every package" if first == ":all:" else mask_credentials(first)
        raise ResolveError(
            f"{package} must be built from source, which is not possible here",
            hint="danlu builds packages only inside the environment, never on this machine",
        )
    uv = _make_uv(task, _MissingExtras(task.wanted))
    packages = await resolve_keeping_versions(task, uv, resolve_in_sandbox)
    return await _replace_source_distributions(task, uv, packages)


async def _replace_source_distributions(
    task: ResolveTask, uv: Uv, packages: Sequence[LockedPackage]
) -> tuple[LockedPackage, ...]:
    """Return ``packages`` with wheels in place of source distributions, if any index has one.

    If builds are allowed, uv takes a source distribution of one index although the next one has a
    wheel of that version. pip takes the wheel.
    """
    request, formats = task.request, task.wanted.formats
    if not searches_all_indexes(request.indexes, request.project, uv.decisions):
        return tuple(packages)
    replaced = []
    for package in packages:
        is_new = package.source == "sdist" and task.kept.get(package.name) != package
        if is_new and formats.allows(package.name, wheel=True):
            listing = task.scratch / "wheel.txt"
            line = f"{package.name}=={package.version}"
            listing.write_text(f"{line}\n", encoding="utf-8")
            inputs = [str(listing), *_write_pins([line], task)]
            try:
                (file,) = await locate_files(uv, inputs, request.target, scratch=task.scratch)
                package = to_locked_package(file, task.wanted)
            except (ResolveError, ValueError):
                pass  # it has no wheel
        replaced.append(package)
    return tuple(replaced)


def _find_source_builds(
    wanted: DeclaredRequirements, kept: Mapping[str, LockedPackage]
) -> list[str]:
    """Return what must be built: sources, packages forced by options, locked sdists."""
    before = [
        package.name
        for package in kept.values()
        if package.source != "index"
        and not package.file.endswith(".whl")
        and wanted.formats.allows(package.name, wheel=False)
    ]
    return [*(source.text for source in wanted.sources), *sorted(wanted.formats.no_binary), *before]


def _requires_build(error: ResolveError) -> bool:
    """Return whether uv failed because only a source distribution is available."""
    # uv has no machine-readable errors; these are its phrases for that case.
    text = " ".join((error.message, error.hint, *error.details))
    return any(
        sign in text
        for sign in ("no usable wheels", "Wheels are required", "no wheels", "Building source")
    )


class _CachedResolution(msgspec.Struct):
    """A cached answer of uv, and the modification times of local index pages at that time."""

    packages: tuple[LockedPackage, ...]
    pages: dict[str, int]


async def _resolve_wheels(task: ResolveTask) -> tuple[LockedPackage, ...]:
    """Like :func:`_resolve_with_uv`, but reuse a recent answer to the same question."""
    request, wanted = task.request, task.wanted
    # An upgrade must ask the indexes again, and what is behind a path or URL can change any time.
    if task.renew or wanted.user_paths or any(" @ " in line.text for line in wanted.lines):
        return await _resolve_with_uv(task, _make_uv(task, _MissingExtras(wanted)))
    directory = request.paths.cache / "resolved"
    variables = uv_environment(request.indexes, request.project)
    setting = [
        sorted(line.text for line in wanted.constraints),
        sorted((name, sorted(hashes)) for name, hashes in wanted.hashes.items()),
        wanted.formats,
        request.target,
        request.restrictions,
        *((sorted(wanted.pins.items()), request.indexes.named) if wanted.pins else ()),
        *([sorted(wanted.virtual)] if wanted.virtual else ()),
    ]
    question = [
        setting,
        sorted(line.text for line in wanted.lines),
        sorted(task.kept.items()),
        index_state(variables, request.project),
    ]
    answer = read_cache(directory, question, _CachedResolution, seconds=_RESOLUTION_TTL_SECONDS)
    if answer and answer.pages == local_page_times(
        variables, [package.name for package in answer.packages]
    ):
        return answer.packages
    missing = _MissingExtras(wanted)
    uv = _make_uv(task, missing)
    added = await resolve_additions(task, uv, setting)
    packages = (
        await _resolve_with_uv(task, uv) if added is None else _lock_files(added, wanted, task.kept)
    )
    if missing.warnings:
        return packages  # not remembered: the warning is repeated until the extra is removed
    pages = local_page_times(variables, [package.name for package in packages])
    write_cache(
        directory, question, _CachedResolution(packages, pages), seconds=_RESOLUTION_TTL_SECONDS
    )
    save_answer(task, packages, setting)
    return packages


class _MissingExtras:
    """Warns once about each requested extra that the package does not have.

    An extra that another package requests is ignored, because the user cannot correct it.
    """

    def __init__(self, wanted: DeclaredRequirements) -> None:
        self._declared = {
            (normalize_name(requirement.name), normalize_name(extra)): line.span
            for line in wanted.lines
            for requirement in (Requirement(line.text),)
            for extra in requirement.extras
        }
        self.warnings: list[str] = []

    def add(self, package: str, extra: str, report: Callable[[str], None]) -> None:
        """Report an extra that uv has found missing, if it is the user's."""
        key = normalize_name(package), normalize_name(extra)
        if key not in self._declared:
            return
        span = self._declared[key]
        text = format_missing_extra(package, extra) + (f" ({span})" if span else "")
        if text not in self.warnings:
            self.warnings.append(text)
            report(text)


def _make_uv(task: ResolveTask, missing: _MissingExtras) -> Uv:
    request = task.request
    return Uv(
        request.paths.cache / "uv",
        request.project,
        request.indexes,
        offline=request.offline,
        report_extra=partial(missing.add, report=request.report),
        decisions=WHEN_LOCKING,
    )


async def _resolve_with_uv(task: ResolveTask, uv: Uv) -> tuple[LockedPackage, ...]:
    return await resolve_keeping_versions(task, uv, partial(_resolve_once, uv))


async def _resolve_once(uv: Uv, task: ResolveTask) -> tuple[LockedPackage, ...]:
    request, wanted, kept, scratch = task.request, task.wanted, task.kept, task.scratch
    inputs = write_requirements(wanted, request.indexes, scratch)
    sources = [*inputs, *request.restrictions.to_options("resolving")]
    if not kept and not task.renew:
        files = await locate_files(uv, sources, request.target, scratch=scratch, dependencies=True)
        declared = {requirement_name(line.text) for line in wanted.lines if " @ " in line.text}
        if all(not file.direct or normalize_name(file.name) in declared for file in files):
            return _lock_files(files, wanted, {})
    pins = await compile_pins(
        uv,
        sources,
        request.target,
        scratch=scratch,
        preferences=task.list_preferences(),
        renew=task.renew,
    )
    await verify_required_urls(request, pins)
    reused = {
        pin.name: package
        for pin in pins
        if (package := _find_reusable(pin, kept, task)) is not None
    }
    # Locating files is the slow step, so it is limited to packages that changed.
    new = [pin for pin in pins if pin.name not in reused]
    files = ()
    if new:
        listing = scratch / "new.txt"
        listing.write_text("".join(f"{pin.line}\n" for pin in new), encoding="utf-8")
        inputs = [str(listing), *_write_pins((pin.line for pin in new), task)]
        files = await locate_files(uv, inputs, request.target, scratch=scratch)
    return _lock_files(files, wanted, reused)


def _write_pins(lines: Iterable[str], task: ResolveTask) -> list[str]:
    named = task.request.indexes.named
    return write_index_pins(lines, task.wanted.pins, named, task.scratch)


def _find_reusable(
    pin: Pin, kept: Mapping[str, LockedPackage], task: ResolveTask
) -> LockedPackage | None:
    package = kept.get(pin.name)
    if package is None or pin.url:
        return None
    formats, target = task.wanted.formats, task.request.target
    return package if can_keep(package, pin.version, formats, target) else None


def _lock_files(
    files: Sequence[PackageFile], wanted: DeclaredRequirements, reused: Mapping[str, LockedPackage]
) -> tuple[LockedPackage, ...]:
    packages = {**reused, **{file.name: to_locked_package(file, wanted) for file in files}}
    return tuple(packages[name] for name in sorted(packages))


def _find_requirement_span(wanted: DeclaredRequirements, error: DanluError) -> Span | None:
    """Return the line of the first requirement that uv's message names."""
    lines: list[UvRequirement] = [line for line in wanted.lines if line.span is not None]
    # The conclusion comes first, and its steps may name every requirement.
    for text in (error.message, *error.details):
        for line in lines:
            name = re.split(r"[ \[<>=!~;@]", line.text)[0]
            if name and any(name in word for word in text.replace("`", " ").split()):
                return line.span
    return None


#: How long (seconds) to remember which requirements a set of locked packages answers.
_ANSWER_TTL_SECONDS = 90 * 86400.0


async def resolve_additions(
    task: ResolveTask, uv: Uv, setting: object
) -> tuple[PackageFile, ...] | None:
    """Resolve only the new requirements; return the files they add to the locked ones.

    Returns None if that is not possible, and everything must be resolved. ``setting`` is everything
    else that restricts an answer. The indexes are not part of it, because locked files have hashes.
    """
    before = read_cache(
        _cache_directory(task),
        _cache_key(setting, task.kept.values()),
        frozenset[str],
        seconds=_ANSWER_TTL_SECONDS,
    )
    if before is None or not before <= {line.text for line in task.wanted.lines}:
        return None
    new = tuple(line for line in task.wanted.lines if line.text not in before)
    if not new:
        return ()
    try:
        files = await locate_files(
            uv,
            [
                *write_requirements(
                    replace(task.wanted, lines=new), task.request.indexes, task.scratch
                ),
                *task.request.restrictions.to_options("resolving"),
            ],
            task.request.target,
            scratch=task.scratch,
            dependencies=True,
            preferences=task.list_preferences(),
        )
    except ResolveError:
        # A complete resolution may still succeed; if not, its error is the relevant one.
        return None
    added = {normalize_name(file.name): file for file in files}
    formats, target = task.wanted.formats, task.request.target
    for name in added.keys() & task.kept.keys():
        if not can_keep(task.kept[name], added[name].version, formats, target):
            return None
    return tuple(file for name, file in added.items() if name not in task.kept)


def save_answer(task: ResolveTask, packages: Iterable[LockedPackage], setting: object) -> None:
    """Remember that ``packages`` answer the requirements of the task."""
    lines = sorted(line.text for line in task.wanted.lines)
    write_cache(
        _cache_directory(task), _cache_key(setting, packages), lines, seconds=_ANSWER_TTL_SECONDS
    )


def _cache_directory(task: ResolveTask) -> Path:
    return task.request.paths.cache / "answered"


def _cache_key(setting: object, packages: Iterable[LockedPackage]) -> object:
    return [setting, sorted(packages, key=lambda package: package.name)]
