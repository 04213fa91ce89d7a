"""A minimal distribution out of exactly the locked packages, as one layer.

dpkg is put in place by unpacking all packages from outside, and then installs all of them
properly from inside, in one call: what debootstrap and mmdebstrap do for essential packages.
"""

from __future__ import annotations

import os
from pathlib import Path

from danlu.builder.embedded.context import Context
from danlu.builder.embedded.ops.absorb import absorb
from danlu.builder.embedded.ops.leaf import commit_tree
from danlu.builder.embedded.ops.packages import (
    REPOSITORY,
    check_installed,
    fetched,
    repository,
    run_script,
)
from danlu.errors import OutsideError
from danlu.graph import Bootstrap
from danlu.oci.tar import Normalise
from danlu.sandbox.types import Root
from danlu.sources.apt.host import need
from danlu.store import Layer
from danlu.util.process import run
from danlu.util.space import full_disk, was_full

__all__ = ["execute"]

#: Architectures whose dynamic loader is below ``/lib64`` (their ABIs' PT_INTERP).
_LIB64 = ("amd64", "loong64", "ppc64el")

# tar keeps owners and modes whatever the umask is; links to directories stay links (merged /usr).
_UNPACK = """\
for deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -p --same-owner --numeric-owner \
        --keep-directory-symlink --warning=no-timestamp -C "$TREE" -f -
done
"""

# --force-depends: dpkg does not order by Pre-Depends; everything they could need is unpacked.
# --force-unsafe-io: a bootstrap cut short is thrown away.
_INSTALL = f"""\
cd {REPOSITORY}
xargs dpkg --force-depends --force-unsafe-io --install < install
dpkg --configure --pending
"""

#: Neutral files: sandboxes and engines lay their own over them.
_FILES = {
    "etc/hostname": "localhost\n",
    "etc/hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/resolv.conf": "",
    "etc/apt/sources.list": (
        "# danlu writes no mirror of the machine that built this image. config.apt_source(...) in\n"
        "# the build file sets the text of this file.\n"
    ),
}


async def execute(op: Bootstrap, context: Context) -> list[Layer]:
    """Fetch what is missing of the packages, install them, and commit the layer."""
    cache = await fetched(context, op.packages, distribution=op.distribution, codename=op.codename)
    with context.store.staging() as tree, context.store.staging() as work:
        directory = work / "repository"
        await repository(cache, op.packages, directory)
        await context.run_sync(_skeleton, tree, op)
        names = await _unpack(op, context, directory, tree)
        (directory / "install").write_text("".join(f"{name}\n" for name in names))
        await _install(op, context, tree, work)
        await context.run_sync(_finish, tree, op)
        made_by = f"danlu bootstrap {op.distribution}"
        return await commit_tree(context, tree, Normalise(clamp=op.epoch), made_by)


def _make(path: Path) -> None:
    """A directory 0755 whatever the umask; its parents too."""
    for one in (*reversed(path.parents), path):
        if not one.exists():
            one.mkdir()
            one.chmod(0o755)


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o644)


def _skeleton(tree: Path, op: Bootstrap) -> None:
    """What must be there before any package: the merged ``/usr`` and dpkg's empty database."""
    tree.chmod(0o755)
    own = {deb.architecture for deb in op.packages} - {"all"}
    names = ["bin", "lib", "sbin", *(["lib64"] if own & set(_LIB64) else [])]
    for name in names:
        _make(tree / "usr" / name)
        (tree / name).symlink_to(f"usr/{name}")
    for name in ("alternatives", "info", "parts", "triggers", "updates"):
        _make(tree / "var/lib/dpkg" / name)
    _write(tree / "var/lib/dpkg/status", "")
    _write(tree / "var/lib/dpkg/available", "")


async def _unpack(op: Bootstrap, context: Context, directory: Path, tree: Path) -> list[str]:
    """Unpack all packages into ``tree``; their files' names, in the order of package names."""
    need("dpkg-deb", "tar")
    names = [f"{deb.sha256}.deb" for deb in sorted(op.packages, key=lambda deb: deb.name)]
    result = await run(
        ["sh", "-ec", _UNPACK, "sh", *names],
        cwd=directory,
        env={**os.environ, "TREE": str(tree), "LC_ALL": "C"},
    )
    if result.code:
        last = result.stderr.decode(errors="replace").splitlines()[-8:]
        if was_full(tree, last):
            raise full_disk(f"the store ({context.store.root})", details=last)
        raise OutsideError("the base's packages could not be unpacked", details=tuple(last))
    return names


async def _install(op: Bootstrap, context: Context, tree: Path, work: Path) -> None:
    upper = work / "upper"
    upper.mkdir()
    await run_script(
        context,
        _INSTALL,
        Root((tree,), upper),
        directory=work / "repository",
        epoch=op.epoch,
        what=f"installing the base of {op.distribution}",
    )
    await context.run_sync(absorb, upper, tree)


def _finish(tree: Path, op: Bootstrap) -> None:
    from danlu.sandbox.commit import finish_upper

    status = (tree / "var/lib/dpkg/status").read_text(errors="replace")
    check_installed(status, op.packages, exactly=True)
    for name, text in _FILES.items():
        _write(tree / name, text)
    finish_upper(tree, op.epoch)
