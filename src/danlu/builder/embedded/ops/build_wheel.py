"""Build a wheel from a source distribution, directory or checkout, always in the sandbox."""

from __future__ import annotations

import shutil
from pathlib import Path

from danlu.builder.embedded.context import OpContext, OpOutput
from danlu.builder.embedded.wheel_build import (
    WORK,
    collect_built_wheel,
    fetch_build_requirements,
    make_uv,
    run_wheel_build,
)
from danlu.errors import ChecksumError, LockError
from danlu.graph.ops import BuildWheel
from danlu.sources.http import fetch
from danlu.sources.pypi.scm_version import write_description
from danlu.sources.pypi.sdist_build import UV_INSIDE, chown_to_builder
from danlu.sources.pypi.simple_index import fetch_file
from danlu.sources.pypi.source_tree import copy_source
from danlu.util.safe_paths import ProjectTree

_SCRIPT = f"""\
cd {WORK} && exec {UV_INSIDE} build --wheel --no-sources --no-build-isolation --no-index \\
    --out-dir {WORK}/out --python /tmp/build/bin/python "$SOURCE"
"""


async def execute(op: BuildWheel, context: OpContext) -> OpOutput:
    """Build the wheel and return it as the artifact ``wheel``, without a layer.

    Raises :class:`StepFailed` with the last lines of the build, :class:`LockError` if a directory
    is no longer the one that was locked.
    """
    with context.store.staging() as work:
        source = await _prepare_source(op, context, work)
        upper = work / "upper"
        upper.mkdir()
        for name in ("out", "home"):
            (work / "build" / name).mkdir()
        await fetch_build_requirements(op.requires, context, work / "wheels")
        await context.run_sync(chown_to_builder, work / "build")
        await run_wheel_build(op, context, work, script=_SCRIPT, variables={"SOURCE": source})
        built = await context.run_sync(
            collect_built_wheel, op, work / "build" / "out", context.paths.cache
        )
        return OpOutput(artifacts={"wheel": built})


async def _prepare_source(op: BuildWheel, context: OpContext, work: Path) -> str:
    """Put the source into ``work/build``; return its path in the sandbox."""
    place = work / "build"
    place.mkdir()
    if op.source == "git":
        await context.run_sync(_check_out_commit, op, context, place / "source")
    elif op.file:
        file = await _fetch_archive(op, context)
        shutil.copyfile(file, place / op.file)
        return f"{WORK}/{op.file}"
    else:
        await context.run_sync(_copy_directory, op, context, place / "source")
    return f"{WORK}/source" + (f"/{op.subdirectory}" if op.subdirectory else "")


def _check_out_commit(op: BuildWheel, context: OpContext, place: Path) -> None:
    from danlu.sources.git import checkout, digest_tree

    cache = context.paths.cache / "git"
    url = context.with_credentials(op.location)
    tree = checkout(url, op.commit, cache=cache, offline=context.request.offline)
    if digest_tree(tree) != op.sha256:
        raise ChecksumError(
            f"commit {op.commit[:12]} of {op.name} does not match the lock",
            hint=f"check your git configuration for filters that change files, or remove {tree}",
        )
    shutil.copytree(tree, place, symlinks=True)


def _copy_directory(op: BuildWheel, context: OpContext, place: Path) -> None:
    with ProjectTree(context.request.project) as tree:
        if tree.real_path(op.location) is None:
            raise LockError(
                f"{op.location}, which is locked, was not found", hint="run `danlu lock`"
            )
    if copy_source(context.request.project, op.location, place) != op.sha256:
        raise LockError(f"{op.location} has changed since it was locked", hint="run `danlu lock`")
    write_description(place / op.subdirectory)


async def _fetch_archive(op: BuildWheel, context: OpContext) -> Path:
    cache = context.paths.cache / "http"
    if op.source == "sdist":
        fetched = await fetch_file(make_uv(context), op.name, op.file, op.sha256, cache=cache)
    else:
        url = context.with_credentials(op.location)
        if op.source == "local":
            with ProjectTree(context.request.project) as tree:
                url = tree.resolve(op.location).as_uri()
        fetched = await fetch(url, op.sha256, cache=cache, offline=context.request.offline)
    return fetched.path
