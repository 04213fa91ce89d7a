"""Build an editable wheel (PEP 660) of a directory in the project, always in the sandbox."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable
from pathlib import Path

from danlu.builder.embedded.context import OpContext, OpOutput
from danlu.builder.embedded.wheel_build import (
    WORK,
    collect_built_wheel,
    fetch_build_requirements,
    run_wheel_build,
)
from danlu.errors import LockError, OutsideError, ResolveError
from danlu.graph.ops import BuildEditable
from danlu.sandbox.types import Mount
from danlu.sources.pypi.build_system import LOAD_BACKEND, parse_build_system
from danlu.sources.pypi.editable_metadata import copy_for_editable, locate_editable
from danlu.sources.pypi.scm_version import write_description
from danlu.sources.pypi.sdist_build import chown_to_builder
from danlu.sources.pypi.source_tree import is_tool_file
from danlu.util.safe_paths import ProjectTree

_SCRIPT = f'cd "$SOURCE" && exec python {WORK}/hook.py'

_HOOK = f"""{LOAD_BACKEND}
backend.build_editable({WORK + "/out"!r})
"""

_COMPILED_SUFFIXES = (".so", ".pyd")

#: Where build backends put intermediate files.
_BUILD_DIRECTORIES = frozenset({"build", "dist", "_skbuild"})

_MAX_NAMES_SHOWN = 3


async def execute(op: BuildEditable, context: OpContext) -> OpOutput:
    """Build the wheel and return it as the artifact ``wheel``, without a layer.

    The backend sees a copy of the package where the project is mounted when the image runs.
    Raises :class:`StepFailed` with the last lines of the build, :class:`LockError` if the metadata
    is no longer the one that was locked, :class:`ResolveError` if the package needs files that only
    a build makes.
    """
    with context.store.staging() as work:
        # The lock may come from anybody: this is a path in the project.
        location = await context.run_sync(locate_editable, context.request.project, op.location)
        copy = work / "project" / location
        copy.parent.mkdir(parents=True, exist_ok=True)
        before = await context.run_sync(_copy_package, op, context, copy)
        build = work / "build"
        for place in (work / "upper", build, build / "out", build / "home"):
            place.mkdir()
        await fetch_build_requirements(op.requires, context, work / "wheels")
        (build / "hook.py").write_text(_HOOK)
        for tree in (build, work / "project"):
            await context.run_sync(chown_to_builder, tree)
        await run_wheel_build(
            op,
            context,
            work,
            script=_SCRIPT,
            variables={
                **_read_backend(op, context),
                "SOURCE": os.path.normpath(f"{op.project}/{location}"),
            },
            mounts=[Mount(op.project, work / "project")],
        )
        wheel = await context.run_sync(collect_built_wheel, op, build / "out", context.paths.cache)
        made = await context.run_sync(_list_files, copy)
        _check_generated(op, context, wheel, made - before)
        return OpOutput(artifacts={"wheel": wheel})


def _copy_package(op: BuildEditable, context: OpContext, place: Path) -> set[str]:
    """Copy the package to ``place``; return the paths of its files."""
    if place.exists():
        place.rmdir()
    if copy_for_editable(context.request.project, op.location, place) != op.sha256:
        raise LockError(
            f"the metadata of {op.location} has changed since it was locked",
            hint="run `danlu lock`",
        )
    write_description(place)
    return _list_files(place)


def _read_backend(op: BuildEditable, context: OpContext) -> dict[str, str]:
    try:
        with ProjectTree(context.request.project) as tree:
            text = tree.read_text(os.path.join(op.location, "pyproject.toml"))
    except FileNotFoundError:
        text = ""  # only setup.py: the default backend
    return parse_build_system(text, op.name).to_variables()


def _list_files(directory: Path) -> set[str]:
    """Return the paths of all files below ``directory``; the build may have made any of them."""
    found = set()
    for root, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if not is_tool_file(name)]
        paths = (os.path.relpath(os.path.join(root, name), directory) for name in files)
        found |= {path for path in paths if not is_tool_file(os.path.basename(path))}
    return found


def _check_generated(
    op: BuildEditable, context: OpContext, wheel: Path, made: Iterable[str]
) -> None:
    """Raise if a build made something that the package needs and the project does not have."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            packed = archive.namelist()
    except zipfile.BadZipFile as error:
        raise OutsideError(f"building {op.name} did not produce a wheel file") from error
    made = sorted(made)
    compiled = [name for name in (*made, *packed) if name.endswith(_COMPILED_SUFFIXES)]
    instead = f"install it as a copy: {_spell_directory(op.location)} without -e"
    if compiled:
        raise ResolveError(
            f"{op.name} cannot be installed with -e: it has compiled modules"
            f" ({_join_names(compiled)}), which every edit would have to build again",
            hint=instead,
        )
    with ProjectTree(context.request.project) as tree:
        missing = [
            name
            for name in made
            if not any(part.startswith(".") for part in name.split("/"))
            and name.split("/")[0] not in _BUILD_DIRECTORIES
            and tree.real_path(os.path.join(op.location, name)) is None
        ]
    if missing:
        raise ResolveError(
            f"{op.name} cannot be installed with -e: its build generates {_join_names(missing)},"
            " which the project does not have",
            hint=f"generate it in the project, or {instead}",
        )


def _spell_directory(location: str) -> str:
    return location if location == "." else f"./{location}"


def _join_names(names: list[str]) -> str:
    more = ", …" if len(names) > _MAX_NAMES_SHOWN else ""
    return ", ".join(ascii(name)[1:-1] for name in names[:_MAX_NAMES_SHOWN]) + more
