"""Install locked system packages with the image's own apt, from a flat archive of only them."""

from __future__ import annotations

from pathlib import Path

from danlu.builder.embedded.apt_repository import (
    REPOSITORY,
    fetch_packages,
    run_script,
    verify_installation,
    write_apt_lists,
    write_apt_repository,
)
from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import commit_tree
from danlu.graph.ops import AptInstall
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.sandbox.generated_files import remove_generated_files
from danlu.sandbox.types import RootFilesystem
from danlu.store import Layer

# Options on the command line override the image's configuration files; its hooks still run.
# The user _apt cannot read the mount, so apt must stay root (APT::Sandbox::User). Conffiles that
# the image changed are kept (--force-confold).
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


async def execute(op: AptInstall, context: OpContext) -> list[Layer]:
    """Fetch missing packages, install exactly the locked ones, and commit the changes."""
    if not op.packages:
        return []
    cache = await fetch_packages(context, op.packages, codename=op.codename)
    with context.store.staging() as upper, context.store.staging() as work:
        directory = work / "repository"
        await write_apt_repository(cache, op.packages, directory)
        write_apt_lists(op, cache, directory)
        root = RootFilesystem(tuple(layer.tree for layer in context.below), upper)
        await run_script(
            context,
            _SCRIPT,
            root,
            directory=directory,
            epoch=op.epoch,
            scratch=_SCRATCH,
            packages=len(op.packages),
            what="installing system packages",
        )
        for line in await context.run_sync(_finish_install, root, upper, op):
            context.warn(line)
        made_by = "apt-get install " + " ".join(op.requested)
        return await commit_tree(context, upper, NormalizeOptions(clamp=op.epoch), made_by)


def _finish_install(root: RootFilesystem, upper: Path, op: AptInstall) -> list[str]:
    status = (upper / "var/lib/dpkg/status").read_text(errors="replace")
    verify_installation(status, op.packages, exactly=False)
    generated = remove_generated_files(upper)
    finalize_upper(upper, op.epoch, below=root.layers)
    return generated
