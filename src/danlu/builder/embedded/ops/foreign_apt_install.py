"""Install locked system packages for another processor, without executing anything of them."""

from __future__ import annotations

import os
from pathlib import Path

from danlu.builder.embedded.apt_repository import (
    REPOSITORY,
    fetch_packages,
    verify_installation,
    write_apt_lists,
    write_apt_repository,
)
from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.foreign_tree import (
    CONFIGURE,
    configure_packages,
    find_architecture,
    unpack_packages,
)
from danlu.builder.embedded.staged_tree import commit_tree
from danlu.graph.ops import ForeignAptInstall
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.sandbox.generated_files import remove_generated_files
from danlu.sandbox.merge_upper import merge_upper
from danlu.store import Layer

_MARK = f"""\
marked() {{
    test ! -s {REPOSITORY}/"$1" || xargs -a {REPOSITORY}/"$1" apt-mark -q \
        -o APT::Architecture="$architecture" -o APT::Architectures::="$architecture" "$1"
}}
architecture=$(cat {REPOSITORY}/architecture)
test ! -e /var/lib/apt/extended_states || marked manual || :
"""

_SCRATCH = ("/var/cache/apt", "/var/lib/apt/lists", "/var/log/apt")


async def execute(op: ForeignAptInstall, context: OpContext) -> list[Layer]:
    """Fetch missing packages, unpack and configure exactly the locked ones; commit the changes."""
    if not op.packages:
        return []
    cache = await fetch_packages(context, op.packages, codename=op.codename)
    below = tuple(layer.tree for layer in context.below)
    with context.store.staging() as tree, context.store.staging() as work:
        directory = work / "repository"
        await write_apt_repository(cache, op.packages, directory)
        write_apt_lists(op, cache, directory)
        links = await context.run_sync(_link_directories, tree, below)
        names = await unpack_packages(op.packages, context, directory, tree)
        for name in links:
            (tree / name).unlink()
        (directory / "install").write_text("".join(f"{name}\n" for name in names))
        upper = await configure_packages(
            context,
            _MARK + CONFIGURE + "marked auto\n",
            (*below, tree),
            context.inputs[1].stack,
            packages=op.packages,
            work=work,
            epoch=op.epoch,
            scratch=_SCRATCH,
            what=f"configuring system packages for {find_architecture(op.packages)}",
        )
        await context.run_sync(finalize_upper, upper, op.epoch, below=(*below, tree))
        await context.run_sync(merge_upper, upper, tree, keep_whiteouts=True)
        status = (tree / "var/lib/dpkg/status").read_text(errors="replace")
        verify_installation(status, op.packages, exactly=False)
        for line in await context.run_sync(remove_generated_files, tree):
            context.warn(line)
        await context.run_sync(finalize_upper, tree, op.epoch, below=below)
        made_by = "apt-get install " + " ".join(op.requested)
        return await commit_tree(context, tree, NormalizeOptions(clamp=op.epoch), made_by)


def _link_directories(tree: Path, below: tuple[Path, ...]) -> list[str]:
    """Make the links to directories (``/lib``) in ``tree`` that the system below has at its root.

    Packages still have files in ``/lib``, which belong in ``/usr/lib``. Returns the names.
    """
    tree.chmod(0o755)
    made: list[str] = []
    for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
        found = [layer / name for layer in below if os.path.lexists(layer / name)]
        if found and found[-1].is_symlink():
            (tree / name).symlink_to(os.readlink(found[-1]))
            for directory in (tree / "usr", tree / "usr" / name):
                directory.mkdir(exist_ok=True)
                directory.chmod(0o755)
            made.append(name)
    return made
