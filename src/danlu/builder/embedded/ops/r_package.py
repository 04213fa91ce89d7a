"""Build an R package from its source, in the sandbox and without a network.

``R CMD INSTALL`` installs into a separate library, whose files become the layer: what the build
does elsewhere is discarded.
"""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import commit_tree, make_parents, path_inside
from danlu.errors import OutsideError
from danlu.graph.ops import WHEEL_TIME, RPackage
from danlu.oci.archive import ArchiveLayout, unpack_archive
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.types import SYSTEM_PATH, Mount, ProcessSpec, RootFilesystem
from danlu.sources.http import FetchedFile
from danlu.sources.mirrors import fetch_from_mirror, list_mirrors
from danlu.sources.pypi.sdist_build import BUILDER_UID, chown_to_builder
from danlu.store import Layer

#: Where R looks for packages that the distribution did not install (Debian's Renviron, rocker's).
_LIBRARY = "/usr/local/lib/R/site-library"

_WORK = "/run/danlu/build"


# Times in packages would differ between two builds; the path of the source is fixed, because
# compilers write it into debugging information.
_SCRIPT = f"""\
command -v R >/dev/null || {{ echo "R: not found"; exit 127; }}
cd {_WORK} && exec R CMD INSTALL --built-timestamp="$BUILT" --library={_WORK}/library source/"$NAME"
"""


async def execute(op: RPackage, context: OpContext) -> list[Layer]:
    """Return one layer with the installed package.

    Raises :class:`StepFailed` with the last lines of the build, :class:`OutsideError` if CRAN no
    longer has the file or the archive is invalid.
    """
    fetched = await _fetch_source(op, context)
    with context.store.staging() as work, context.store.staging() as staged:
        for name in ("upper", "build", "build/library", "build/source", "build/home"):
            (work / name).mkdir()
        await context.run_sync(_unpack_source, op, fetched.path, work / "build" / "source")
        await context.run_sync(chown_to_builder, work / "build")
        await _run_build(op, context, work)
        target = path_inside(staged, f"{_LIBRARY}/{op.name}")
        make_parents(staged, target)
        await context.run_sync(_collect_package, op, work / "build" / "library", target)
        normalise = NormalizeOptions(mtime=WHEEL_TIME, uid=0, gid=0)
        return await commit_tree(context, staged, normalise, f"danlu: R package {op.name}")


async def _fetch_source(op: RPackage, context: OpContext) -> FetchedFile:
    mirrors = list_mirrors("cran", context.config, context.request.mirrors)
    file = f"{op.name}_{op.version}.tar.gz"
    # CRAN moves a package to its archive when a newer version is published.
    for path in (f"src/contrib/{file}", f"src/contrib/Archive/{op.name}/{file}"):
        try:
            return await fetch_from_mirror(
                "cran",
                path,
                op.sha256,
                mirrors=mirrors,
                cache=context.paths.cache / "http",
                offline=context.request.offline,
            )
        except FileNotFoundError:
            continue
    raise OutsideError(
        f"the CRAN mirror no longer has {file}",
        hint=f"run `danlu lock --upgrade {op.name}` to lock an available version",
    )


def _unpack_source(op: RPackage, archive: Path, target: Path) -> None:
    """Unpack a source package, whose only directory must have its name."""
    unpack_archive(archive, target, ArchiveLayout(), name=f"the source package of {op.name}")
    if [path.name for path in target.iterdir()] != [op.name]:
        raise OutsideError(f"the source package of {op.name} is invalid")
    if not (target / op.name / "DESCRIPTION").is_file():
        raise OutsideError(f"the source package of {op.name} has no DESCRIPTION")


async def _run_build(op: RPackage, context: OpContext, work: Path) -> None:
    variables = {
        "PATH": SYSTEM_PATH,
        **dict(context.inputs[0].inherited.environment),
        "BUILT": f"{datetime.fromtimestamp(op.epoch, UTC):%Y-%m-%d %H:%M:%S} UTC",
        "HOME": f"{_WORK}/home",
        "LC_ALL": "C.UTF-8",
        "NAME": op.name,
        "SOURCE_DATE_EPOCH": str(op.epoch),
        "TZ": "UTC",
    }
    process = ProcessSpec(("/bin/sh", "-c", _SCRIPT), variables, "/", BUILDER_UID, BUILDER_UID)
    root = RootFilesystem(tuple(layer.tree for layer in context.below), work / "upper")
    await context.run(
        process,
        root,
        f"building the R package {op.name} {op.version}",
        mounts=[Mount(_WORK, work / "build")],
        network=False,
        explain=_suggest_fix,
    )


def _suggest_fix(output: str) -> str:
    if "R: not found" in output:
        return "the base has no R: add install.r_lang()"
    if "No such file or directory" in output or "cannot find -l" in output:
        return "install what is missing, for example install.apt_packages(['libxml2-dev'])"
    if "make: not found" in output or "gcc: not found" in output:
        return 'install compilers: install.apt_packages(["r-base-dev"])'
    return ""


def _collect_package(op: RPackage, library: Path, target: Path) -> None:
    """Move the installed package to ``target``. The build wrote it, so it may be anything."""
    source = library / op.name
    if source.is_symlink() or not (source / "DESCRIPTION").is_file():
        raise OutsideError(f"building the R package {op.name} did not install it")
    os.rename(source, target)
    os.chmod(target, 0o755)
    for root, directories, files in os.walk(target):
        for name in (*directories, *files):
            path = os.path.join(root, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise OutsideError(f"the R package {op.name} has a special file: {name}")
            executable = stat.S_ISDIR(mode) or bool(mode & 0o100)
            os.chmod(path, 0o755 if executable else 0o644)
