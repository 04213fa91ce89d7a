"""The ops of the build graph, which describe what a builder has to do, not how.

A vertex carries an op and evaluates to a **stack**: layers, lowest first. There are three kinds:

* *roots* produce a stack without input: :class:`ImageSource`, :class:`Bootstrap`;
* *leaves* produce one layer that does not depend on what is below it, so that it can be put on
  any stack: :class:`Wheel`, :class:`CondaPackage`, :class:`Files`, :class:`CopyContext`,
  :class:`CopyImage`, :class:`HttpFile`, :class:`UnpackArchive`; :class:`LoaderCache` and
  :class:`ShellStartup` only read the stack of their input;
* *steps* run in the stack of their first input and add one layer to it: :class:`AptInstall`,
  :class:`AddUser`, :class:`OwnDirectories`, :class:`Exec`. :class:`BuildWheel` runs in a stack
  too, but produces a wheel file (and no layer) for the :class:`Wheel` that has it as its input.

:class:`Merge` concatenates the stacks of its inputs in order, without repeating the bottom layers
that an input shares with the result so far; :class:`Squash` merges several leaves into one layer.

Everything in an op is part of its vertex's digest, so an op contains only what changes its
output: no mirrors, no host paths, no names of people or machines.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

import msgspec

from danlu.errors import UsageError

#: The modification time of everything in wheel layers: 1980-01-01, the oldest a zip can hold.
WHEEL_TIME = 315532800


class Platform(msgspec.Struct, frozen=True):
    """What an image runs on, in OCI's words: ``linux``/``amd64``."""

    os: str = "linux"
    architecture: str = "amd64"
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


def parse_platform(text: str) -> Platform:
    """Parse ``linux/arm64``; raise :class:`UsageError` if it is not a platform of Linux.

    ``linux/arm64/v8`` is the same as ``linux/arm64`` (containerd's platforms.Normalize).
    """
    parts = text.strip().split("/")
    if len(parts) not in (2, 3) or parts[0] != "linux" or not all(parts):
        raise UsageError(f"invalid platform {text!r}", hint="use a platform such as linux/amd64")
    if parts[1:] == ["arm64", "v8"]:
        parts.pop()
    return Platform(*parts)


class DebPackage(msgspec.Struct, frozen=True):
    """A binary package file of a Debian-style archive.

    ``archive`` is the suite it belongs to (``bookworm``, ``bookworm-security``); ``path`` its path
    below that archive's root (``pool/main/…``), the same on every mirror; ``size`` in bytes.
    """

    name: str
    version: str
    architecture: str
    sha256: str
    size: int
    archive: str
    path: str


class InstallScheme(msgspec.Struct, frozen=True):
    """Where Python packages are installed, and the interpreter that their scripts name.

    ``prefix`` is a virtual environment (``/opt/venv``); ``site_packages`` is relative to it
    (``lib/python3.11/site-packages``); ``interpreter`` is the path written in the first lines of
    scripts (``/opt/venv/bin/python``).
    """

    prefix: str
    version: str
    site_packages: str
    interpreter: str


class Op(msgspec.Struct, frozen=True):
    """Base class of ops.

    The class attributes tell the builder how to treat an op, so that it need not know any by name.
    The embedded builder executes an op with the module :meth:`module_name` of
    :mod:`danlu.builder.embedded.ops`.
    """

    op_version: ClassVar[int] = 1
    """Raised by one if what the op *does* changes although its fields do not."""
    is_step: ClassVar[bool] = False
    """Whether its layer goes on top of its first input's stack."""
    reads_inputs: ClassVar[bool] = False
    """Whether its result depends on the content of the stack below, so that the definition alone
    cannot be its cache key. True for steps."""
    is_batched: ClassVar[bool] = False
    """Whether vertices of this op without inputs are executed together, by ``execute_all``."""
    is_exclusive: ClassVar[bool] = False
    """Whether its layers may not have a path in common, unless the bytes are the same."""
    has_free_target: ClassVar[bool] = False
    """Whether the user chooses the paths of its files. They may not replace directories, or
    links to directories, of the stack that they are laid over."""
    runs_programs: ClassVar[bool] = False
    """Whether it executes programs of the stack below, or of the packages that it installs."""

    @classmethod
    def op_name(cls) -> str:
        """Return the name of the op in digests and in output."""
        return cls.__name__

    @classmethod
    def module_name(cls) -> str:
        """Return the name in snake case: ``copy_context``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def extra_ids_reason(self) -> str:
        """Return what in the op needs more user ids than root's, or an empty string."""
        if getattr(self, "uid", 0) or getattr(self, "gid", 0):
            return "a file that belongs to a user other than root"
        return ""


class WheelSource(msgspec.Struct, frozen=True):
    """Where a wheel's bytes come from if they are not in the store yet.

    ``kind`` is ``index`` (by name, version and hash from the user's indexes and find-links),
    ``local`` (``location`` is a path relative to the project), ``url`` (``location`` is the
    address in the user's file) or ``built`` (by the vertex's input, :class:`BuildWheel` or
    :class:`BuildEditable`).
    """

    kind: Literal["index", "local", "url", "built"]
    location: str = ""


class ImageSource(Op, frozen=True):
    """An image of a registry, by the digest of its manifest for the platform."""

    reference: str
    digest: str
    platform: Platform


class Bootstrap(Op, frozen=True):
    """A minimal distribution made of exactly these packages; ``epoch`` in seconds (UTC)."""

    runs_programs: ClassVar[bool] = True
    op_version: ClassVar[int] = 2

    distribution: str
    codename: str
    packages: tuple[DebPackage, ...]
    epoch: int

    def extra_ids_reason(self) -> str:
        return f"a base of {self.distribution} packages"


class AptInstall(Op, frozen=True):
    """Exactly ``packages`` installed by apt; ``requested`` are those marked as manual."""

    runs_programs: ClassVar[bool] = True
    op_version: ClassVar[int] = 5
    is_step: ClassVar[bool] = True
    reads_inputs: ClassVar[bool] = True

    packages: tuple[DebPackage, ...]
    requested: tuple[str, ...]
    epoch: int
    codename: str = ""

    def extra_ids_reason(self) -> str:
        return "installing system packages"


class ForeignBootstrap(Bootstrap, frozen=True):
    """A :class:`Bootstrap` for another processor, by the programs of the vertex's input.

    That is the same system for this machine: its programs run the packages' scripts, and nothing of
    the packages themselves is executed.
    """

    op_version: ClassVar[int] = 1
    runs_programs: ClassVar[bool] = False


class ForeignAptInstall(AptInstall, frozen=True):
    """An :class:`AptInstall` for another processor, by the programs of the second input.

    See :class:`ForeignBootstrap`.
    """

    op_version: ClassVar[int] = 3
    runs_programs: ClassVar[bool] = False


class AddUser(Op, frozen=True):
    """A user and its home directory, added to the account files of the stack below.

    ``shell`` is used if the stack has it. ``groups`` are supplementary groups, joined if they
    exist. With ``sudo`` the user may become root without a password.
    """

    is_step: ClassVar[bool] = True
    reads_inputs: ClassVar[bool] = True

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    epoch: int
    groups: tuple[str, ...] = ()
    sudo: bool = False


class OwnDirectories(Op, frozen=True):
    """The directories at and below ``roots`` of the stack below, given to ``uid`` and ``gid``.

    Files keep their owner, so that the layer is small and their layers are shared with other
    images; who owns the directories can add, replace and remove them.
    """

    is_step: ClassVar[bool] = True
    reads_inputs: ClassVar[bool] = True

    roots: tuple[str, ...]
    uid: int
    gid: int
    epoch: int


class ShellStartup(Op, frozen=True):
    """Files through which login shells get the image's variables, over the stack of the input.

    They are for the shells that the stack has. ``environment`` and ``path`` are the image's
    (:class:`~danlu.graph.image_config.ImageConfig`).
    """

    reads_inputs: ClassVar[bool] = True

    environment: tuple[tuple[str, str], ...]
    path: tuple[str, ...]
    epoch: int


class Wheel(Op, frozen=True):
    """A wheel, unpacked under a scheme: one layer, the same over any base."""

    is_batched: ClassVar[bool] = True
    is_exclusive: ClassVar[bool] = True

    name: str
    version: str
    file: str
    sha256: str
    source: WheelSource
    scheme: InstallScheme


class BuildRequirement(msgspec.Struct, frozen=True):
    """A wheel of an index that a package is built with."""

    name: str
    version: str
    file: str
    sha256: str


class BuildWheel(Op, frozen=True):
    """A wheel built in the sandbox from a source distribution or a checkout.

    ``source`` is ``sdist`` (by name, version and hash from the user's indexes), ``local`` (a
    directory or archive of the project), ``url`` or ``git`` (``commit`` is the full object name);
    ``sha256`` is the hash of the archive, or of the tree for ``local`` directories and ``git``.
    ``requires`` are all the packages in the isolated environment of the build.
    """

    runs_programs: ClassVar[bool] = True

    name: str
    version: str
    source: Literal["sdist", "local", "url", "git"]
    location: str
    sha256: str
    file: str
    commit: str
    subdirectory: str
    scheme: InstallScheme
    epoch: int
    requires: tuple[BuildRequirement, ...] = ()


class BuildEditable(Op, frozen=True):
    """An editable wheel (PEP 660) of a directory, built in the sandbox: it only refers to the code.

    ``location`` is the directory in the project, which is mounted at ``project`` when the image
    runs; ``sha256`` is the hash of the package's metadata. ``requires`` is as for
    :class:`BuildWheel`.
    """

    name: str
    version: str
    location: str
    sha256: str
    project: str
    scheme: InstallScheme
    epoch: int
    requires: tuple[BuildRequirement, ...] = ()


class RPackage(Op, frozen=True):
    """A source package of CRAN, built in the stack of the input: one layer with the package.

    That stack has R and the packages that this one needs; nothing else is visible to the build.
    """

    runs_programs: ClassVar[bool] = True

    name: str
    version: str
    sha256: str
    epoch: int


class CondaPackage(Op, frozen=True):
    """A conda package, unpacked below ``prefix``: one layer, the same over any base.

    ``channel``, ``subdir`` and ``file`` are where the archive is, as in the lock. ``python`` is the
    minor version of the environment's interpreter (``3.11``) and ``site_packages`` its directory
    below the prefix; both are empty unless the package is a ``noarch: python`` one.
    """

    name: str
    version: str
    build: str
    channel: str
    subdir: str
    file: str
    sha256: str
    prefix: str
    python: str = ""
    site_packages: str = ""


class FileEntry(msgspec.Struct, frozen=True):
    """A file, directory or symbolic link that danlu itself writes.

    ``path`` is absolute; ``kind`` is ``file`` (with ``content``), ``dir`` or ``link`` (with
    ``target``); ``mode`` the permission bits.
    """

    path: str
    kind: Literal["file", "dir", "link"] = "file"
    content: str = ""
    target: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


class Files(Op, frozen=True):
    """Files that danlu writes, as one layer; parents that are not listed are 0755 root:root."""

    entries: tuple[FileEntry, ...]
    epoch: int

    def extra_ids_reason(self) -> str:
        if any(entry.uid or entry.gid for entry in self.entries):
            return "a file that belongs to a user other than root"
        return ""


class CopyContext(Op, frozen=True):
    """Files of the project: ``source`` relative to it, ``digest`` of what is copied.

    ``source`` may be a file, a directory (its *content* goes to ``target``, as in Dockerfile's
    COPY) or a pattern; a ``target`` that ends in ``/`` is a directory. ``uid`` and ``gid`` own
    the copy, and the directories that it adds outside those of a distribution.
    """

    op_version: ClassVar[int] = 3
    has_free_target: ClassVar[bool] = True

    source: str
    target: str
    digest: str
    uid: int
    gid: int
    epoch: int


class CopyImage(Op, frozen=True):
    """Files of another image (the stack of the vertex's input), as one layer."""

    op_version: ClassVar[int] = 3
    reads_inputs: ClassVar[bool] = True
    has_free_target: ClassVar[bool] = True

    source: str
    target: str
    uid: int
    gid: int
    epoch: int


class LoaderCache(Op, frozen=True):
    """The cache of the dynamic loader (``/etc/ld.so.cache``) for the stack of the vertex's input.

    ``entries`` are written first: files of ``/etc/ld.so.conf.d``, links. In the directories
    ``linked``, each library gets the name that the linker looks for (``libcudart.so`` for
    ``libcudart.so.12``).
    """

    runs_programs: ClassVar[bool] = True
    reads_inputs: ClassVar[bool] = True

    entries: tuple[FileEntry, ...]
    epoch: int
    linked: tuple[str, ...] = ()


class HttpFile(Op, frozen=True):
    """A file fetched by HTTP, verified by its locked hash, written to ``target``."""

    op_version: ClassVar[int] = 2

    url: str
    sha256: str
    target: str
    epoch: int
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


class UnpackArchive(Op, frozen=True):
    """An archive (tar, tar.gz, .bz2, .xz, .zst, zip or deb), verified by its hash, as one layer.

    ``mirror`` is a name of :mod:`danlu.sources.mirrors`, ``path`` the archive's path below such a
    mirror (if that is empty, in the project), ``size`` its bytes. For ``pypi``, the path
    ``NAME/FILE`` is a wheel of the user's Python indexes. Of its entries only those at or below one
    of ``include`` are taken (all if empty). ``rename`` maps a path in the archive, with what is
    below it, to a path below ``target``; what it does not map loses its first ``strip_components``
    directories, as with ``tar --strip-components``.

    In the text files (below ``target``) that match the pattern of a triple in ``substitute``, its
    second part is replaced by its third: what a build of a program recorded about its machine.

    Everything belongs to ``uid`` and ``gid``, with mode 0755 (directories and programs) or 0644.
    Files keep their times, which bytecode in the archive refers to; directories have
    :data:`WHEEL_TIME`.
    """

    mirror: str
    path: str
    sha256: str
    size: int
    target: str
    strip_components: int = 0
    include: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    uid: int = 0
    gid: int = 0
    substitute: tuple[tuple[str, str, str], ...] = ()


class SecretMount(msgspec.Struct, frozen=True):
    """A secret that a step may read at ``target``; its value is never stored."""

    id: str
    target: str


class Exec(Op, frozen=True):
    """A command run in the stack below it.

    ``args`` is the argument vector; ``environment`` overrides the base image's variables, ``path``
    is prepended to its PATH; with ``context`` the project is mounted read-only at
    ``working_directory``, and ``context_digest`` is the digest of its content; ``uid`` and ``gid``
    run it. What it leaves of root's below ``home`` is given to ``home_uid`` and ``home_gid``.
    """

    runs_programs: ClassVar[bool] = True
    op_version: ClassVar[int] = 4
    is_step: ClassVar[bool] = True
    reads_inputs: ClassVar[bool] = True

    args: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    working_directory: str
    epoch: int
    path: tuple[str, ...] = ()
    uid: int = 0
    gid: int = 0
    secrets: tuple[SecretMount, ...] = ()
    ssh: bool = False
    context: bool = False
    context_digest: str = ""
    home: str = ""
    home_uid: int = 0
    home_gid: int = 0

    def extra_ids_reason(self) -> str:
        return "a step that runs as a user other than root" if self.uid or self.gid else ""


class Merge(Op, frozen=True):
    """The stacks of the inputs over one another, in order."""


class Squash(Op, frozen=True):
    """The layers of the inputs (leaves only) as one layer, if there would be too many."""

    is_exclusive: ClassVar[bool] = True


class SquashConda(Squash, frozen=True):
    """The layers of conda packages as one layer; of two with the same path, the later wins."""

    is_exclusive: ClassVar[bool] = False

    @classmethod
    def module_name(cls) -> str:
        return "squash"


class Unresolved(Op, frozen=True):
    """A source that no lock has pinned yet; ``describes`` names it in the user's words."""

    kind: str
    describes: tuple[str, ...]
