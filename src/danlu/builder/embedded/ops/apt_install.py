"""Locked system packages, installed by the image's own apt from a flat archive of exactly them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from danlu.builder.embedded.context import Context
from danlu.builder.embedded.ops.leaf import commit_tree
from danlu.builder.embedded.ops.packages import (
    REPOSITORY,
    check_installed,
    fetched,
    repository,
    run_script,
)
from danlu.graph import AptInstall
from danlu.oci.tar import Normalise
from danlu.sandbox.commit import finish_upper
from danlu.sandbox.types import Root
from danlu.sources.apt import Cache
from danlu.sources.apt.records import provided, records
from danlu.store import Layer

__all__ = ["execute"]

# The options stand on the command line, after which no file of the image is read. Its hooks stay.
# _apt is no user here that may read the mount; conffiles of an image stay as they were changed.
_SCRIPT = f"""\
command -v apt-get >/dev/null || {{ echo 'the image has no apt-get' >&2; exit 127; }}
with_apt() {{
    "$@" -q -o Dir::Etc::sourcelist={REPOSITORY}/sources.list -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o APT::Get::List-Cleanup=false \
        -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io \
        -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold
}}
marked() {{
    test ! -s {REPOSITORY}/"$1" || with_apt xargs -a {REPOSITORY}/"$1" apt-mark "$1"
}}
with_apt apt-get update
test ! -e /var/lib/apt/extended_states || marked manual || :
with_apt xargs -a {REPOSITORY}/install apt-get install --yes --no-install-recommends \
    --allow-downgrades --allow-change-held-packages
marked auto
"""

_SCRATCH = ("/var/cache/apt", "/var/lib/apt/lists", "/var/log/apt")


async def execute(op: AptInstall, context: Context) -> list[Layer]:
    """Fetch what is missing, install exactly the locked packages, and commit what changed."""
    if not op.packages:
        return []
    cache = await fetched(context, op.packages, codename=op.codename)
    with context.store.staging() as upper, context.store.staging() as work:
        directory = work / "repository"
        await repository(cache, op.packages, directory)
        _write_lists(op, cache, directory)
        root = Root(tuple(layer.tree for layer in context.below), upper)
        await run_script(
            context,
            _SCRIPT,
            root,
            directory=directory,
            epoch=op.epoch,
            scratch=_SCRATCH,
            what="installing system packages",
        )
        await context.run_sync(_finish, root, upper, op)
        made_by = "apt-get install " + " ".join(op.requested)
        return await commit_tree(context, upper, Normalise(clamp=op.epoch), made_by)


def _write_lists(op: AptInstall, cache: Cache, directory: Path) -> None:
    """The sources, and which packages to install, to mark as automatic, and as manual."""
    requested = {name.partition("=")[0].partition(":")[0] for name in op.requested}
    # Who asked for a virtual package asked for the one that provides it.
    wanted = {
        deb.name
        for deb in op.packages
        if deb.name in requested or requested & provided(records(cache.control(deb)))
    }
    present = {deb.name for deb in op.packages}
    lines = {
        "sources.list": [f"deb [trusted=yes] file:{REPOSITORY} ./"],
        "install": [f"{deb.name}={deb.version}" for deb in op.packages],
        "auto": present - wanted,
        "manual": requested - present,
    }
    for name, some in lines.items():
        (directory / name).write_text(_text(some))


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in sorted(lines))


def _finish(root: Root, upper: Path, op: AptInstall) -> None:
    status = (upper / "var/lib/dpkg/status").read_text(errors="replace")
    check_installed(status, op.packages, exactly=False)
    finish_upper(upper, op.epoch, below=root.layers)
