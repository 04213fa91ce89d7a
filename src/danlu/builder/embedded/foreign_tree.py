"""Configure the packages of another processor with the programs of this one.

dpkg, the shell and whatever else maintainer scripts call are taken from the same system built for
this machine, the *tools*. They are overlaid on the foreign tree while scripts run, so that these
find the usual paths. The foreign tree already has all files of the packages, and dpkg only records
and configures them (``--path-exclude``, dpkg(1)). Files of the tools do not enter the layer.
See docs/architecture/decisions.md#foreign-bases-are-configured-by-native-programs.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from danlu.builder.embedded.apt_repository import REPOSITORY, run_script
from danlu.builder.embedded.context import OpContext
from danlu.errors import OutsideError
from danlu.graph.ops import DebPackage
from danlu.oci.overlay import is_whiteout
from danlu.sandbox.types import RootFilesystem
from danlu.sources.apt.host_config import require_programs
from danlu.store import Layer
from danlu.util.disk_full import disk_full_error, ran_out_of_space
from danlu.util.files import remove_tree
from danlu.util.process import stream

#: Debian's names of the directories of libraries, by its names of architectures (multiarch).
TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

#: Where only programs of one processor have files: libraries and the loader.
_OWN_PATHS = (
    *(f"usr/lib/{triplet}/" for triplet in TRIPLETS.values()),
    "usr/lib64/",
    "usr/lib/ld-",
)

_TOOLS_PACKAGE = "danlu-tools"
_TOOLS_STATUS = f"""
Package: {_TOOLS_PACKAGE}
Status: install ok installed
Maintainer: danlu
Architecture: all
Version: 1
Description: programs of this machine
"""
_TOOLS_FILES = ("/lib64", "/usr/lib64")

# Keep owners and modes despite the umask, and links to directories as links (merged /usr). Each
# package is printed when it is done.
_UNPACK = """\
for deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -p --same-owner --numeric-owner \
        --keep-directory-symlink --warning=no-timestamp -C "$TREE" -f -
    echo "$deb"
done
"""

# --path-exclude: the files are there, and those of tools must not be replaced while they run.
# Configuration files are unpacked again, because dpkg records their hashes when it configures them.
# --force-depends: packages for all architectures count as this machine's for dpkg.
# The loader's directory belongs to a package that is only recorded meanwhile: the script of
# usr-is-merged removes /lib64 if no package owns it.
CONFIGURE = f"""\
cd {REPOSITORY}
dpkg --add-architecture "$(cat architecture)"
cat tools.status >> /var/lib/dpkg/status
cp tools.list /var/lib/dpkg/info/{_TOOLS_PACKAGE}.list
xargs dpkg --force-depends --force-unsafe-io --force-confdef --force-confold \
    --path-exclude='/*' --path-include='/etc/*' --install < install
dpkg --configure --pending
"""


async def unpack_packages(
    packages: Sequence[DebPackage], context: OpContext, directory: Path, tree: Path
) -> list[str]:
    """Unpack all packages into ``tree``; return their file names, sorted by package name.

    ``directory`` is the archive of :func:`write_apt_repository`.
    """
    require_programs("dpkg-deb", "tar")
    names = [f"{deb.sha256}.deb" for deb in sorted(packages, key=lambda deb: deb.name)]
    unpacked: set[str] = set()
    messages: deque[str] = deque(maxlen=8)

    def read_line(line: str) -> None:
        if line not in names:
            messages.append(line)
            return
        unpacked.add(line)
        context.transfer(len(unpacked), len(names), "extracted")

    code = await stream(
        ["sh", "-ec", _UNPACK, "sh", *names],
        read_line,
        cwd=directory,
        env={**os.environ, "TREE": str(tree), "LC_ALL": "C"},
    )
    if code:
        last = tuple(messages)
        if ran_out_of_space(tree, last):
            raise disk_full_error(f"the store ({context.store.root})", output=last)
        raise OutsideError("cannot unpack the system packages", details=last)
    return names


async def configure_packages(
    context: OpContext,
    script: str,
    below: tuple[Path, ...],
    tools: Sequence[Layer],
    *,
    packages: Sequence[DebPackage],
    work: Path,
    epoch: int,
    scratch: Sequence[str] = (),
    what: str,
) -> Path:
    """Run ``script`` in the foreign system ``below`` with the programs of ``tools``.

    The archive is in ``work/repository``. Returns the directory with the changes, in overlayfs's
    form, without any file of the tools.
    """
    directory = work / "repository"
    (directory / "architecture").write_text(find_architecture(packages) + "\n")
    (directory / "tools.status").write_text(_TOOLS_STATUS)
    (directory / "tools.list").write_text("".join(f"{name}\n" for name in _TOOLS_FILES))
    programs, upper = work / "tools", work / "upper"
    upper.mkdir()
    await context.run_sync(_collect_tools, [layer.tree for layer in tools], programs)
    await run_script(
        context,
        script,
        RootFilesystem((*below, programs), upper),
        directory=directory,
        epoch=epoch,
        scratch=scratch,
        packages=len(packages),
        what=what,
    )
    await context.run_sync(_remove_tools, upper, programs, below)
    return upper


def find_architecture(packages: Sequence[DebPackage]) -> str:
    """Return Debian's name of the architecture of ``packages``; ``all`` if they are for any."""
    return next((deb.architecture for deb in packages if deb.architecture != "all"), "all")


def _collect_tools(trees: Sequence[Path], target: Path) -> None:
    """Copy programs and libraries of a stack (lowest layer first) to the tree ``target``."""
    target.mkdir()
    target.chmod(0o755)
    for tree in trees:
        for path, entry in _walk_tree(tree):
            status = entry.stat(follow_symlinks=False)
            copy = target / path
            if is_whiteout(entry.path, status):
                remove_tree(copy)
            elif stat.S_ISDIR(status.st_mode):
                continue
            elif path.startswith(_OWN_PATHS) or _is_program(entry, status):
                _make_parents(copy, target)
                remove_tree(copy)
                if entry.is_symlink():
                    copy.symlink_to(os.readlink(entry.path))
                else:
                    shutil.copyfile(entry.path, copy)
                    copy.chmod(stat.S_IMODE(status.st_mode))
    # The loader is named by /lib64 (PT_INTERP of the x86-64 ABI), which arm64 systems do not have.
    if (target / "usr/lib64").is_dir():
        (target / "lib64").symlink_to("usr/lib64")


def _make_parents(path: Path, root: Path) -> None:
    for parent in reversed(path.parents):
        if root in parent.parents and not parent.exists():
            parent.mkdir()
            parent.chmod(0o755)


def _walk_tree(tree: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield every entry below ``tree`` with its path, a directory before its contents."""
    pending = [""]
    while pending:
        directory = pending.pop()
        with os.scandir(tree / directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = f"{directory}/{entry.name}".lstrip("/")
                yield path, entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)


def _is_program(entry: os.DirEntry[str], status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode) or status.st_size < 4:
        return False
    with open(entry.path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def _remove_tools(upper: Path, tools: Path, below: Sequence[Path]) -> None:
    """Remove what only the tools have from ``upper``, the changes made in them.

    A script may have given a program another owner or mode: the foreign program gets them.
    """
    database = upper / "var/lib/dpkg"
    (database / "info" / f"{_TOOLS_PACKAGE}.list").unlink(missing_ok=True)
    (database / "arch").unlink(missing_ok=True)
    status = (database / "status").read_text(errors="surrogateescape")
    stanzas = [
        text for text in status.split("\n\n") if not text.startswith(f"Package: {_TOOLS_PACKAGE}\n")
    ]
    (database / "status").write_text("\n\n".join(stanzas), errors="surrogateescape")
    for name in ("lib64", "usr/lib64", "etc/ld.so.cache"):
        if not any(os.path.lexists(tree / name) for tree in below):
            remove_tree(upper / name)
    for path, entry in list(_walk_tree(upper)):
        given = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(given.st_mode) or not os.path.lexists(tools / path):
            continue
        own = [tree / path for tree in below if os.path.lexists(tree / path)]
        if not own or not stat.S_ISREG(given.st_mode):
            remove_tree(upper / path)
            continue
        os.unlink(entry.path)
        shutil.copy2(own[-1], entry.path, follow_symlinks=False)
        os.chown(entry.path, given.st_uid, given.st_gid, follow_symlinks=False)
        if not own[-1].is_symlink():
            os.chmod(entry.path, stat.S_IMODE(given.st_mode))
    for path, entry in list(_walk_tree(upper))[::-1]:
        is_new = not any(os.path.lexists(tree / path) for tree in below)
        if is_new and (tools / path).is_dir() and not os.listdir(entry.path):
            os.rmdir(entry.path)
