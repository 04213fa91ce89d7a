"""The tree of a minimal distribution: what is there before its packages, and what is after."""

from __future__ import annotations

from pathlib import Path

from danlu.builder.embedded.apt_repository import (
    fetch_packages,
    verify_installation,
    write_apt_repository,
)
from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.foreign_tree import unpack_packages
from danlu.builder.embedded.staged_tree import commit_tree
from danlu.graph.ops import Bootstrap
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.sandbox.merge_upper import merge_upper
from danlu.store import Layer

#: Architectures with the dynamic loader in ``/lib64`` (PT_INTERP of their ABIs).
_LIB64 = ("amd64", "loong64", "ppc64el")

#: Neutral contents; sandboxes and engines mount their own files over them.
_FILES = {
    "etc/hostname": "localhost\n",
    "etc/hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/resolv.conf": "",
    "etc/apt/sources.list": (
        "# danlu writes no mirror of the machine that built this image. config.apt_source(...) in\n"
        "# the build file sets the text of this file.\n"
    ),
}


def _make_directory(path: Path) -> None:
    """Create a directory and its parents with mode 0755, whatever the umask is."""
    for directory in (*reversed(path.parents), path):
        if not directory.exists():
            directory.mkdir()
            directory.chmod(0o755)


def _write_file(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o644)


def _make_skeleton(tree: Path, op: Bootstrap) -> None:
    """Create what packages expect: the merged ``/usr`` and an empty dpkg database."""
    tree.chmod(0o755)
    own = {deb.architecture for deb in op.packages} - {"all"}
    names = ["bin", "lib", "sbin", *(["lib64"] if own & set(_LIB64) else [])]
    for name in names:
        _make_directory(tree / "usr" / name)
        (tree / name).symlink_to(f"usr/{name}")
    for name in ("alternatives", "info", "parts", "triggers", "updates"):
        _make_directory(tree / "var/lib/dpkg" / name)
    _write_file(tree / "var/lib/dpkg/status", "")
    _write_file(tree / "var/lib/dpkg/available", "")


async def unpack_base(op: Bootstrap, context: OpContext, tree: Path, directory: Path) -> None:
    """Fetch missing packages, and unpack all of them into ``tree``; nothing is configured.

    ``directory`` becomes their archive, with their file names in ``install``.
    """
    cache = await fetch_packages(
        context, op.packages, distribution=op.distribution, codename=op.codename
    )
    await write_apt_repository(cache, op.packages, directory)
    await context.run_sync(_make_skeleton, tree, op)
    names = await unpack_packages(op.packages, context, directory, tree)
    (directory / "install").write_text("".join(f"{name}\n" for name in names))


async def commit_base(op: Bootstrap, context: OpContext, tree: Path, changes: Path) -> list[Layer]:
    """Commit the layer: ``tree`` with the ``changes`` that configuring made to it."""

    def finish_tree() -> None:
        # dpkg unpacks every file again. Without those that it did not change, a directory's time
        # says when its content changed, however the changes were recorded.
        finalize_upper(changes, op.epoch, below=(tree,))
        merge_upper(changes, tree)
        _finish_base(tree, op)

    await context.run_sync(finish_tree)
    made_by = f"danlu bootstrap {op.distribution}"
    return await commit_tree(context, tree, NormalizeOptions(clamp=op.epoch), made_by)


def _finish_base(tree: Path, op: Bootstrap) -> None:
    """Check that exactly the packages of ``op`` are installed; write neutral files."""
    status = (tree / "var/lib/dpkg/status").read_text(errors="replace")
    verify_installation(status, op.packages, exactly=True)
    for name, text in _FILES.items():
        _write_file(tree / name, text)
    finalize_upper(tree, op.epoch)
