"""Build a wheel in the sandbox: the parts that all kinds of sources share."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from danlu.builder.embedded.context import OpContext
from danlu.environment.image_layout import CONDA_PREFIX, STANDALONE_PYTHON
from danlu.environment.package_names import normalize_name
from danlu.errors import OutsideError
from danlu.graph.ops import BuildEditable, BuildRequirement, BuildWheel
from danlu.sandbox.types import SYSTEM_PATH, Mount, ProcessSpec, RootFilesystem
from danlu.sources.pypi.indexes import IndexSettings
from danlu.sources.pypi.scm_version import VERSION_VARIABLE
from danlu.sources.pypi.sdist_build import BUILD_WHEELS, BUILDER_UID, UV_INSIDE
from danlu.sources.pypi.simple_index import fetch_file
from danlu.sources.pypi.uv import Uv, find_uv
from danlu.sources.pypi.uv_errors import build_hint

#: The directory in the sandbox that a build may write to.
WORK = "/run/danlu/build"


#: Larger wheels are refused.
_MAX_WHEEL_SIZE = 8 << 30

#: Start of a shell script; makes a virtual environment with the image's interpreter and exactly
#: the locked wheels, which may be more than ``build-system.requires``.
_PREPARE = f"""\
for python in {CONDA_PREFIX}/bin/python{{version}} \\
    {STANDALONE_PYTHON}/bin/python{{version}} python{{version}} \\
    /usr/local/bin/python3 /usr/bin/python3 python3 python; do
    command -v "$python" >/dev/null && break
done
python=$(command -v "$python")
{UV_INSIDE} venv -q --python "$python" /tmp/build || exit
{UV_INSIDE} pip install -q --no-deps --no-index --find-links {BUILD_WHEELS} \\
    --python /tmp/build/bin/python -r {WORK}/pins.txt || exit
export PATH=/tmp/build/bin:$PATH
"""


async def fetch_build_requirements(
    requires: Sequence[BuildRequirement], context: OpContext, place: Path
) -> None:
    """Put the wheels that the package is built with into ``place``, verified."""
    place.mkdir()
    cache = context.paths.cache / "http"
    for wheel in requires:
        fetched = await fetch_file(
            make_uv(context), wheel.name, wheel.file, wheel.sha256, cache=cache
        )
        shutil.copyfile(fetched.path, place / wheel.file)


def make_uv(context: OpContext) -> Uv:
    """Return uv with the indexes of the build."""
    indexes = context.indexes or IndexSettings()
    return Uv(
        context.paths.cache / "uv",
        context.request.project,
        indexes,
        offline=context.request.offline,
    )


async def run_wheel_build(
    op: BuildWheel | BuildEditable,
    context: OpContext,
    work: Path,
    *,
    script: str,
    variables: Mapping[str, str],
    mounts: Sequence[Mount] = (),
) -> None:
    """Run a shell script with ``work/build`` at :data:`WORK`, and wheels to build with.

    ``python`` is the image's interpreter there, with these wheels. Raises :class:`StepFailed` with
    the last lines.
    """
    pins = "".join(f"{wheel.name}=={wheel.version}\n" for wheel in op.requires)
    (work / "build/pins.txt").write_text(pins)
    environment = {
        "PATH": SYSTEM_PATH,
        **dict(context.inputs[0].inherited.environment),
        "HOME": f"{WORK}/home",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": str(op.epoch),
        "UV_CACHE_DIR": f"{WORK}/home/cache",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        # The locked wheels are all there is to build with.
        "PIP_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        **_lock_version(op),
        **variables,
    }
    text = _PREPARE.replace("{version}", op.scheme.version) + script
    process = ProcessSpec(("/bin/sh", "-c", text), environment, "/", BUILDER_UID, BUILDER_UID)
    places = [
        Mount(WORK, work / "build"),
        Mount(UV_INSIDE, find_uv(), readonly=True),
        Mount(BUILD_WHEELS, work / "wheels", readonly=True),
        *mounts,
    ]
    root = RootFilesystem(tuple(layer.tree for layer in context.below), work / "upper")
    await context.run(
        process,
        root,
        f"building {op.name} {op.version}".rstrip(),
        mounts=places,
        network=not context.request.offline,
        explain=build_hint,
    )


def _lock_version(op: BuildWheel | BuildEditable) -> dict[str, str]:
    """Return the variable for a version that is derived from git: what was locked is built."""
    is_directory = isinstance(op, BuildEditable) or (op.source == "local" and not op.file)
    return {VERSION_VARIABLE: op.version} if is_directory and op.version else {}


def collect_built_wheel(op: BuildWheel | BuildEditable, out: Path, cache: Path) -> Path:
    """Move the wheel to the cache. The build wrote it, so it may be anything."""
    names = sorted(name for name in os.listdir(out) if name.endswith(".whl"))
    if len(names) != 1 or not re.fullmatch(r"[\w.+!-]+\.whl", names[0]):
        raise OutsideError(f"building {op.name} produced {len(names)} wheels instead of one")
    if normalize_name(names[0].partition("-")[0]) != normalize_name(op.name):
        raise OutsideError(f"building {op.name} produced the wheel {names[0]}")
    # Follow no link out of the sandbox, and do not block on a pipe.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(out / names[0], flags)
    with os.fdopen(descriptor, "rb") as source:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_WHEEL_SIZE:
            raise OutsideError(f"building {op.name} did not produce a wheel file")
        digest = hashlib.file_digest(source, "sha256").hexdigest()
        source.seek(0)
        target = cache / "wheels" / digest / names[0]
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{os.getpid()}")
        with partial.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
        os.replace(partial, target)
    return target
