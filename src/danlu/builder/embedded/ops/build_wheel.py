"""A wheel out of a source distribution, a directory or a checkout: built in the sandbox only."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections import deque
from pathlib import Path

from danlu.builder.embedded.context import Context, Made
from danlu.builder.embedded.failures import step_failure
from danlu.environment.names import normalised
from danlu.errors import ChecksumError, LockError, OutsideError
from danlu.graph import BuildWheel
from danlu.sandbox.types import SYSTEM_PATH, Mount, Process, Root
from danlu.sources.http import fetch
from danlu.sources.pypi import Indexes, Uv, find_uv
from danlu.sources.pypi.building import (
    BUILDER,
    UV_INSIDE,
    copy_directory,
    hand_over,
    indexes_inside,
)
from danlu.sources.pypi.refusals import build_hint
from danlu.sources.pypi.simple import fetch_file

__all__ = ["execute"]

_WORK = "/run/danlu/build"
_LAST_LINES = 30

#: A wheel larger than that is refused: it is read whole into the cache.
_LIMIT = 8 << 30

_SCRIPT = f"""\
for python in python{{version}} /usr/local/bin/python3 /usr/bin/python3 python3 python; do
    command -v "$python" >/dev/null && break
done
cd {_WORK} && exec {UV_INSIDE} build --wheel --no-sources --out-dir {_WORK}/out \\
    --python "$(command -v "$python")" ${{UV_NO_INDEX:+--no-index}} "$SOURCE"
"""


async def execute(op: BuildWheel, context: Context) -> Made:
    """Build the wheel, and give it as the artifact ``wheel``; no layer.

    Raises :class:`StepFailed` with the last lines of the build, :class:`LockError` where a
    directory is no longer what was locked.
    """
    with context.store.staging() as work:
        source = await _source(op, context, work)
        upper = work / "upper"
        upper.mkdir()
        for name in ("out", "home"):
            (work / "build" / name).mkdir()
        await context.run_sync(hand_over, work / "build")
        await _build(op, context, source, work)
        built = await context.run_sync(_take, op, work / "build" / "out", context.paths.cache)
        return Made(artifacts={"wheel": built})


async def _source(op: BuildWheel, context: Context, work: Path) -> str:
    """Put the source below ``work/build``; its path inside."""
    place = work / "build"
    place.mkdir()
    if op.source == "git":
        await context.run_sync(_check_out, op, context, place / "source")
    elif op.file:
        file = await _archive(op, context)
        shutil.copyfile(file, place / op.file)
        return f"{_WORK}/{op.file}"
    else:
        await context.run_sync(_copy, op, context, place / "source")
    return f"{_WORK}/source" + (f"/{op.subdirectory}" if op.subdirectory else "")


def _check_out(op: BuildWheel, context: Context, place: Path) -> None:
    from danlu.sources.git import checkout, tree_digest

    cache = context.paths.cache / "git"
    tree = checkout(op.location, op.commit, cache=cache, offline=context.offline)
    if tree_digest(tree) != op.sha256:
        raise ChecksumError(
            f"commit {op.commit[:12]} of {op.name} does not hold what the lock says",
            hint=f"a filter of your git configuration may change files; or remove {tree}",
        )
    shutil.copytree(tree, place, symlinks=True)


def _copy(op: BuildWheel, context: Context, place: Path) -> None:
    directory = Path(os.path.normpath(context.project / op.location))
    if not directory.is_dir():
        raise LockError(f"{op.location} is gone, which the lock names", hint="run `danlu lock`")
    if copy_directory(directory, place, context.project) != op.sha256:
        raise LockError(f"{op.location} has changed since it was locked", hint="run `danlu lock`")


async def _archive(op: BuildWheel, context: Context) -> Path:
    cache = context.paths.cache / "http"
    if op.source == "sdist":
        indexes = context.indexes or Indexes()
        uv = Uv(context.paths.cache / "uv", context.project, indexes, offline=context.offline)
        fetched = await fetch_file(uv, op.name, op.file, op.sha256, cache=cache)
    else:
        local = op.source == "local"
        url = (context.project / op.location).absolute().as_uri() if local else op.location
        fetched = await fetch(url, op.sha256, cache=cache, offline=context.offline)
    return fetched.path


async def _build(op: BuildWheel, context: Context, source: str, work: Path) -> None:
    last: deque[str] = deque(maxlen=_LAST_LINES)

    def heard(line: str) -> None:
        last.append(line)
        context.log(line)

    indexes, places = indexes_inside(context.indexes or Indexes(), context.project)
    variables = {
        "PATH": SYSTEM_PATH,
        **dict(context.inputs[0].inherited.environment),
        **indexes,
        "HOME": f"{_WORK}/home",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "SOURCE": source,
        "SOURCE_DATE_EPOCH": str(op.epoch),
        "UV_CACHE_DIR": f"{_WORK}/home/cache",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    if context.offline:
        variables["UV_OFFLINE"] = "1"
    script = _SCRIPT.replace("{version}", op.scheme.version)
    process = Process(("/bin/sh", "-c", script), variables, "/", BUILDER, BUILDER)
    mounts = [Mount(_WORK, work / "build"), Mount(UV_INSIDE, find_uv(), readonly=True)]
    mounts += places
    root = Root(tuple(layer.tree for layer in context.below), work / "upper")
    code = await context.sandbox().run(
        process, root, mounts=mounts, network=not context.offline, on_line=heard
    )
    if code:
        message = f"building {op.name} {op.version} ended with exit code {code}"
        hint = build_hint("\n".join(last))
        raise step_failure(context, message.replace("  ", " "), code=code, last=last, hint=hint)


def _take(op: BuildWheel, out: Path, cache: Path) -> Path:
    """Move the one wheel to the cache; the build wrote it, so it may be anything."""
    names = sorted(name for name in os.listdir(out) if name.endswith(".whl"))
    if len(names) != 1 or not re.fullmatch(r"[\w.+!-]+\.whl", names[0]):
        raise OutsideError(f"building {op.name} gave {len(names)} wheels instead of one")
    if normalised(names[0].partition("-")[0]) != normalised(op.name):
        raise OutsideError(f"building {op.name} gave the wheel {names[0]}")
    # No link out of the sandbox is followed, and no pipe waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(out / names[0], flags)
    with os.fdopen(descriptor, "rb") as source:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LIMIT:
            raise OutsideError(f"building {op.name} gave something that is no wheel")
        digest = hashlib.file_digest(source, "sha256").hexdigest()
        source.seek(0)
        target = cache / "wheels" / digest / names[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{os.getpid()}")
        with partial.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
        os.replace(partial, target)
    return target
