"""Plan the environment of a packed model: training's, without what the predictor does not use.

Pure: an environment, its lock and a report in, a smaller environment and lock out. What stays is
pinned exactly as before, so that its layers have the same digests as in the training image.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from danlu.environment.lock import FunctionLock
from danlu.environment.package_names import normalize_name
from danlu.environment.types import Declaration, Environment, ImageOwner, PythonInterpreter
from danlu.errors import UsageError
from danlu.serving.report import RunReport
from danlu.util.suggest import closest_match


class ReducedEnvironment(msgspec.Struct, frozen=True):
    """The smaller environment and its lock, and which packages were left out, by name."""

    environment: Environment
    lock: FunctionLock
    dropped: tuple[str, ...]
    dropped_system: tuple[str, ...]
    keeps_steps: bool


def reduce_environment(
    environment: Environment,
    lock: FunctionLock,
    report: RunReport,
    *,
    dpkg_status: str,
    uses_steps: bool,
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> ReducedEnvironment:
    """Return the environment with only the packages that ``report`` says were used.

    ``keep`` and ``drop`` are names of Python or system packages that win over the report.
    ``uses_steps`` says that files of ``run()`` or ``io.*`` steps were used: the steps stay then,
    and all system packages that they may need. ``dpkg_status`` is the training image's
    ``/var/lib/dpkg/status``, from which the dependencies of system packages are known. conda
    packages all stay. Raises :class:`UsageError` for names that the lock does not have.
    """
    python = {normalize_name(package.name) for package in lock.packages}
    system = {package.name for package in lock.system.packages} if lock.system else set()
    kept, kept_system = _split_names(keep, python, system, "--keep")
    left, left_system = _split_names(drop, python, system, "--drop")
    used = ({*report.distributions.used} | kept) - left
    packages = tuple(item for item in lock.packages if normalize_name(item.name) in used)
    new = replace(lock, packages=packages)
    if lock.system is not None and not uses_steps:
        roots = {*report.system, *_find_interpreter_packages(lock), *kept_system} - left_system
        needed = close_over_dependencies(roots & system, dpkg_status) - left_system
        remaining = tuple(item for item in lock.system.packages if item.name in needed)
        requested = tuple(name for name in lock.system.requested if name in needed)
        # Without a request apt would regard everything as removable.
        requested = requested or tuple(sorted(roots & system))
        new = replace(new, system=replace(lock.system, packages=remaining, requested=requested))
    remaining_system = {item.name for item in new.system.packages} if new.system else set()
    return ReducedEnvironment(
        _reduce_declarations(environment, keeps_steps=uses_steps),
        new,
        dropped=tuple(sorted(python - used)),
        dropped_system=tuple(sorted(system - remaining_system)),
        keeps_steps=uses_steps,
    )


def _split_names(
    names: Iterable[str], python: Collection[str], system: Collection[str], option: str
) -> tuple[set[str], set[str]]:
    """Return which of ``names`` are Python packages, and which system packages."""
    found, found_system = set(), set()
    for name in names:
        if normalize_name(name) in python:
            found.add(normalize_name(name))
        elif name in system:
            found_system.add(name)
        else:
            match = closest_match(name, [*python, *system])
            raise UsageError(
                f"{option} {name}: the training environment has no such package",
                hint=f"did you mean {match}?" if match else "`danlu.lock` lists all packages",
            )
    return found, found_system


def _find_interpreter_packages(lock: FunctionLock) -> set[str]:
    """Return the system package of the interpreter, if it is one (``python3.11``)."""
    if lock.python is None or lock.python.provider != "apt":
        return set()
    return {lock.python.executable.rsplit("/", 1)[-1]}


def _reduce_declarations(environment: Environment, *, keeps_steps: bool) -> Environment:
    """Return the environment without tools, services and steps.

    Variables, PATH and the interpreter stay, and so do declarations whose own layers hold
    libraries. Others add packages, which the lock decides, or configure tools.
    """
    kept = tuple(item for item in environment.declarations if _is_needed(item))
    return replace(
        environment,
        base=replace(environment.base, dev=False),
        declarations=kept,
        steps=environment.steps if keeps_steps else (),
    )


def _is_needed(declaration: Declaration) -> bool:
    if isinstance(declaration, (PythonInterpreter, ImageOwner)):
        return True
    return bool(declaration.variables() or declaration.extra_path())


# -- Debian's dependencies ------------------------------------------------------------------------


def close_over_dependencies(roots: Collection[str], dpkg_status: str) -> set[str]:
    """Return ``roots`` with all installed packages that they depend on, directly or not.

    Follows ``Depends`` and ``Pre-Depends`` of dpkg's status file (deb-control(5)); of alternatives,
    all that are installed are kept, and so are providers of virtual packages.
    """
    depends, provides = _parse_status(dpkg_status)
    found: set[str] = set()
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        for wanted in depends.get(name, ()):
            pending.extend([wanted] if wanted in depends else provides.get(wanted, ()))
    return found


def _parse_status(text: str) -> tuple[Mapping[str, Sequence[str]], Mapping[str, Sequence[str]]]:
    """Return what each package depends on, and who provides each virtual package."""
    depends: dict[str, list[str]] = {}
    provides: dict[str, list[str]] = {}
    for paragraph in re.split(r"\n\n+", text):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        name = fields.get("Package")
        if name is None:
            continue
        needs = f"{fields.get('Depends', '')},{fields.get('Pre-Depends', '')}"
        depends[name] = _list_names(needs)
        for virtual in _list_names(fields.get("Provides", "")):
            provides.setdefault(virtual, []).append(name)
    return depends, provides


def _list_names(field: str) -> list[str]:
    """Return the names in a relationship field, without versions and architectures."""
    names = (re.match(r"\s*([a-z0-9][a-z0-9+.-]*)", part) for part in re.split(r"[,|]", field))
    return [match[1] for match in names if match]
