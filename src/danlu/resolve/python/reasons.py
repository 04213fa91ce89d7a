"""Which requirements bring a locked Python package in."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from danlu.environment.lock import FunctionLock
from danlu.environment.package_names import normalize_name, requirement_name
from danlu.environment.requirements import PYTHON_SOURCE, list_python_packages
from danlu.environment.types import Environment
from danlu.resolve.python.request import collect_indexes, version_preference
from danlu.resolve.python.requirements import (
    DeclaredRequirements,
    collect_requirements,
    write_requirements,
)
from danlu.sandbox.machine_settings import WHEN_LOCKING
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.uv import Uv, target_options
from danlu.sources.pypi.uv_errors import uv_error
from danlu.util.config import Configuration
from danlu.util.paths import Paths

_ANNOTATED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\S*(==| @ )\S+.*?# via (?P<via>.+)")


async def explain_package(
    environment: Environment,
    lock: FunctionLock,
    name: str,
    *,
    project: Path,
    paths: Paths,
    config: Configuration,
) -> tuple[str, ...]:
    """Return lines: a locked package (normalised name), and below it what requires it.

    Each requirement of the user is shown with its line. What requires what is not in the lock: uv
    reads it from the metadata of the locked versions. Raises :class:`ResolveError` or
    :class:`OutsideError` if it cannot.
    """
    assert lock.python is not None
    target = PlatformTarget(lock.python.version, lock.base.libc, lock.platform.split("/")[1])
    declared = list_python_packages(environment)
    if all(package.name != "pip" for package in lock.packages):
        declared = tuple(item for item in declared if item.source != PYTHON_SOURCE)
    wanted = collect_requirements(declared, project, target)
    indexes = collect_indexes(environment, project, config)
    uv = Uv(paths.cache / "uv", project, indexes, decisions=WHEN_LOCKING)
    paths.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".why-", dir=paths.cache) as scratch:
        pins = Path(scratch) / "pins.txt"
        known = [pin for package in lock.packages if (pin := version_preference(package))]
        pins.write_text("".join(f"{pin.line}\n" for pin in known), encoding="utf-8")
        inputs = write_requirements(wanted, indexes, Path(scratch))
        options = [*inputs, "--constraints", str(pins), *target_options(target), "--no-header"]
        command = ("pip", "compile")
        code, output, messages = await uv.run(command, [*options, "--annotation-style", "line"])
    if code:
        raise uv_error(messages, doing="reading what the locked packages require")
    return tuple(_describe_package(name, lock, wanted, _read_annotations(output)))


def _read_annotations(text: str) -> dict[str, list[str]]:
    """Return what requires each package in uv's output; files of requirements are left out."""
    found = {}
    for line in text.splitlines():
        if match := _ANNOTATED.match(line):
            via = (word.strip() for word in match["via"].split(","))
            names = [normalize_name(word) for word in via if not word.startswith("-")]
            found[normalize_name(match["name"])] = names
    return found


def _describe_package(
    name: str, lock: FunctionLock, wanted: DeclaredRequirements, via: Mapping[str, list[str]]
) -> Iterator[str]:
    versions = {package.name: package.version for package in lock.packages}
    shown: set[str] = set()

    def walk(package: str, depth: int, before: str) -> Iterator[str]:
        indent = "  " * depth
        again = package in shown
        more = " (see above)" if again else ""
        yield f"{indent}{before}{package} {versions.get(package, '')}".rstrip() + more
        if again:
            return
        shown.add(package)
        for line in wanted.lines:
            if requirement_name(line.text) == package:
                yield f"{indent}  {line.span or 'danlu itself'}: {line.text}"
        for line in wanted.constraints:
            if requirement_name(line.text) == package:
                yield f"{indent}  limited by {line.span or 'a constraint'}: {line.text}"
        for source in wanted.sources:
            if normalize_name(source.reference.name) == package:
                yield f"{indent}  {source.span or ''}: {source.text}"
        for request in wanted.uv_locks:
            if package not in via:  # uv knows what requires it: `uv tree --invert`
                yield f"{indent}  {request.span or ''}: {request.lock.name}"
        for parent in via.get(package, ()):
            yield from walk(parent, depth + 1, "required by ")

    yield from walk(name, 0, "")
