"""``install.vscode_extensions``: extensions for VS Code's server and code-server.

They come from an Open VSX registry (https://open-vsx.org), or from ``.vsix`` files of the project.
The lock pins each with its dependencies by hash. They lie where editors look when they connect for
the first time, in the home directory of the environment's user.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from danlu.environment.archives import LockedArchive, find_archive_problem
from danlu.environment.image_layout import HOME
from danlu.environment.lock_section import LockSection, SectionResolver
from danlu.environment.types import Declaration, Environment, GraphContext, ProjectDigests
from danlu.errors import DanluError, OutsideError, ResolveError, Span
from danlu.graph.ops import FileEntry, Files, UnpackArchive, Unresolved
from danlu.graph.types import Vertex
from danlu.lang.arg_types import TEXTS, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.checks import strip_names
from danlu.util.decoding import decode_json

_MIRROR = "openvsx"

#: Where VS Code's remote server looks for extensions, and code-server, below the home directory.
_SERVER = ".vscode-server/extensions"
_CODE_SERVER = ".local/share/code-server/extensions"

_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_VERSION = r"[0-9]+\.[0-9]+\.[0-9]+(?:[-+][0-9A-Za-z.+-]+)?"
# publisher.name, publisher.name-1.2.3 as envd writes it, publisher.name@1.2.3 as VS Code does.
_EXTENSION = re.compile(rf"({_NAME}\.{_NAME}?)(?:[-@]({_VERSION}))?")
_ID = re.compile(rf"{_NAME}\.{_NAME}")

#: VS Code's names of platforms, by OCI's.
_PLATFORMS = {"linux/amd64": "linux-x64", "linux/arm64": "linux-arm64", "linux/arm": "linux-armhf"}
_UNIVERSAL = "universal"

#: Extensions that are part of VS Code.
_BUILT_IN = "vscode."

_MANIFEST = "extension/package.json"


class VscodeExtensions(Declaration, frozen=True):
    """``install.vscode_extensions(name)``: names, or paths of ``.vsix`` files in the project."""

    names: tuple[str, ...]

    def project_files(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if _is_file(name))

    def vertices(self, context: GraphContext) -> Sequence[Vertex]:
        if context.environment.find(VscodeExtensions) is not self:
            return ()  # the first call adds the extensions of all
        if context.lock is None:
            names = tuple(item[0] for item in _list_extension_ids(context.environment))
            op = Unresolved("VS Code extensions", names)
            label = f"{len(names)} VS Code extension{'s' if len(names) > 1 else ''}"
            return (Vertex(op, (), label, "vscode", (self.span,)),)
        pins = EXTENSIONS.pins(context.lock)
        home = HOME if context.owner.uid else "/root"
        vertices = [self._make_vertex(pin, f"{home}/{_SERVER}", context) for pin in pins]
        owner = (context.owner.uid, context.owner.gid)
        files = Files(tuple(_list_files(pins, home, owner, context.epoch)), context.epoch)
        return (*vertices, Vertex(files, (), "VS Code's list of extensions", "vscode"))

    def _make_vertex(self, pin: LockedExtension, root: str, context: GraphContext) -> Vertex:
        op = UnpackArchive(
            mirror=pin.mirror,
            path=pin.path,
            sha256=pin.sha256,
            size=pin.size,
            target=f"{root}/{pin.directory}",
            strip_components=1,
            include=("extension", "extension.vsixmanifest"),
            rename=(("extension.vsixmanifest", ".vsixmanifest"),),
            uid=context.owner.uid,
            gid=context.owner.gid,
        )
        return Vertex(op, (), f"{pin.name} {pin.version}", "vscode", (self.span,))


class LockedExtension(LockedArchive, frozen=True):
    """An extension: ``name`` is ``publisher.name``, ``mirror`` empty for a file of the project.

    ``platform`` is VS Code's name of it, empty for any. ``requested`` is what the build file says,
    empty for a dependency; ``requires`` are the names of dependencies and of members of a pack.
    ``digest`` is that of a project's file as builds compare it.
    """

    requested: str = ""
    requires: tuple[str, ...] = ()
    digest: str = ""

    @property
    def directory(self) -> str:
        """The directory that VS Code gives it."""
        platform = f"-{self.platform}" if self.platform else ""
        return f"{self.name.lower()}-{self.version}{platform}"


def _list_files(
    pins: Sequence[LockedExtension], home: str, owner: tuple[int, int], epoch: int
) -> Iterator[FileEntry]:
    """Yield VS Code's list of installed extensions, and code-server's way to the same directory."""
    uid, gid = owner
    listed = [
        {
            "identifier": {"id": pin.name.lower()},
            "version": pin.version,
            "location": {
                "$mid": 1,
                "path": f"{home}/{_SERVER}/{pin.directory}",
                "scheme": "file",
            },
            "relativeLocation": pin.directory,
            "metadata": {
                "installedTimestamp": epoch * 1000,
                "source": "gallery" if pin.mirror else "vsix",
                "targetPlatform": pin.platform or _UNIVERSAL,
            },
        }
        for pin in pins
    ]
    content = json.dumps(listed, separators=(",", ":"))
    yield FileEntry(f"{home}/{_SERVER}/extensions.json", content=content, uid=uid, gid=gid)
    up = "../" * _CODE_SERVER.count("/")
    link = f"{home}/{_CODE_SERVER}"
    yield FileEntry(link, "link", target=f"{up}{_SERVER}", uid=uid, gid=gid)


def _is_file(name: str) -> bool:
    return name.endswith(".vsix")


def _list_extension_ids(environment: Environment) -> list[tuple[str, Span]]:
    """Return the names that the build file asks for with their lines, each once."""
    found: dict[str, Span] = {}
    for declaration in environment.find_all(VscodeExtensions):
        for name in declaration.names:
            found.setdefault(name, declaration.span)
    return list(found.items())


class _ExtensionManifest(msgspec.Struct, rename="camel"):
    """The part of an extension's ``package.json`` that matters here. It is untrusted."""

    name: str
    publisher: str
    version: str
    extension_pack: list[str] = []
    extension_dependencies: list[str] = []


class _RegistryEntry(msgspec.Struct, rename="camel"):
    """The part of Open VSX's answer for an extension that matters here. It is untrusted."""

    namespace: str
    name: str
    version: str
    target_platform: str = _UNIVERSAL
    downloads: dict[str, str] = {}

    @property
    def platforms(self) -> set[str]:
        """The platforms that there are files for."""
        return set(self.downloads) or {self.target_platform}


class ExtensionPins(LockSection[LockedExtension]):
    """The extensions of VS Code."""

    name = "vscode"
    singular = "VS Code extension"
    plural = "VS Code extensions"

    def is_stale(self, environment: Environment, pins: tuple[LockedExtension, ...]) -> bool:
        wanted = {name for name, _ in _list_extension_ids(environment)}
        return wanted != {pin.requested for pin in pins} - {""}

    def is_outdated(
        self,
        environment: Environment,
        pins: tuple[LockedExtension, ...],
        digests: ProjectDigests,
    ) -> bool:
        if self.is_stale(environment, pins):
            return True
        files = [pin for pin in pins if not pin.mirror]
        return any(pin.digest != digests.files.get(pin.path) for pin in files)

    async def resolve(
        self, environment: Environment, pins: tuple[LockedExtension, ...], resolver: SectionResolver
    ) -> tuple[LockedExtension, ...]:
        known = {pin.name.lower(): pin for pin in pins if not resolver.may_change(pin.name)}
        locked: dict[str, LockedExtension] = {}
        waiting = [(name, span, True) for name, span in _list_extension_ids(environment)]
        # What names a version first: a dependency takes the version that the build file asks for.
        waiting.sort(key=lambda item: not (_is_file(item[0]) or _split_name(item[0])[1]))
        while waiting:
            name, span, is_requested = waiting.pop(0)
            try:
                pin = await _lock_extension(name, known, locked, resolver)
            except DanluError as error:
                error.span = error.span or span
                raise
            if is_requested:
                pin = msgspec.structs.replace(pin, requested=name)
            is_new = pin.name.lower() not in locked
            if is_new or is_requested:
                locked[pin.name.lower()] = pin
            if is_new:
                waiting += [(required, span, False) for required in pin.requires]
        return tuple(locked[name] for name in sorted(locked))

    def describe(self, pin: LockedExtension) -> tuple[str, str]:
        return pin.name, pin.version

    def find_problem(self, pin: LockedExtension) -> str:
        if not _ID.fullmatch(pin.name) or not re.fullmatch(_VERSION, pin.version):
            return f"VS Code extension {pin.name} has an invalid name or version"
        if pin.platform not in ("", *_PLATFORMS.values()):
            return f"VS Code extension {pin.name} has an invalid platform"
        if pin.mirror not in ("", _MIRROR):
            return f"VS Code extension {pin.name} has an invalid mirror"
        return find_archive_problem(pin)


EXTENSIONS = ExtensionPins(LockedExtension)


def _split_name(text: str) -> tuple[str, str]:
    """Return ``publisher.name`` and the version, if there is one."""
    match = _EXTENSION.fullmatch(text)
    return (match[1], match[2] or "") if match else ("", "")


async def _lock_extension(
    text: str,
    known: Mapping[str, LockedExtension],
    locked: Mapping[str, LockedExtension],
    resolver: SectionResolver,
) -> LockedExtension:
    if _is_file(text):
        return await _lock_file(text, resolver)
    name, version = _split_name(text)
    already = locked.get(name.lower())
    if already is not None:
        if version not in ("", already.version):
            raise ResolveError(
                f"{name} is required in version {version}, and in version {already.version}",
                hint="request a single version",
            )
        return already
    kept = known.get(name.lower())
    if kept is not None and kept.mirror and version in ("", kept.version):
        return msgspec.structs.replace(kept, requested="")
    return await _lock_from_registry(name, version, resolver)


async def _lock_file(path: str, resolver: SectionResolver) -> LockedExtension:
    file = await resolver.hash_project_file(path)
    manifest = await _read_manifest("", path, file.sha256, resolver)
    pin = _make_pin(manifest, "", path, file.sha256, file.size)
    return msgspec.structs.replace(pin, digest=file.url)


async def _lock_from_registry(
    name: str, version: str, resolver: SectionResolver
) -> LockedExtension:
    platform = _PLATFORMS.get(str(resolver.platform), "")
    entry = await _read_entry(name, version, resolver)
    if platform in entry.platforms:
        target = platform
    elif _UNIVERSAL in entry.platforms:
        target = ""
    else:
        raise ResolveError(
            f"extension {name} {entry.version} has no build for {platform or resolver.platform}",
            hint=f"it has one for {', '.join(sorted(entry.platforms))}",
        )
    path = _locate_file(entry, target)
    try:
        file = await resolver.fetch_from_mirror(_MIRROR, path)
    except FileNotFoundError as error:
        raise _make_missing_error(name, version) from error
    manifest = await _read_manifest(_MIRROR, path, file.sha256, resolver)
    pin = _make_pin(manifest, _MIRROR, path, file.sha256, file.size, platform=target)
    if pin.name.lower() != name.lower() or pin.version != entry.version:
        raise OutsideError(
            f"the registry's file for {name} {entry.version} contains {pin.name} {pin.version}",
            hint="use another registry: [mirrors.openvsx] in config.toml",
        )
    return pin


async def _read_entry(name: str, version: str, resolver: SectionResolver) -> _RegistryEntry:
    """Return what the registry knows of an extension; without a version, of its newest."""
    publisher, _, short = name.partition(".")
    path = f"api/{publisher}/{short}" + (f"/{version}" if version else "")
    try:
        data = await resolver.read_from_mirror(_MIRROR, path)
    except FileNotFoundError as error:
        if not version:
            raise _make_missing_error(name, version) from error
        # A directory of files has no API. A file for any platform is what most of them have.
        return _RegistryEntry(publisher, short, version)
    try:
        entry = decode_json(data, _RegistryEntry)
    except msgspec.DecodeError as error:
        raise OutsideError(
            f"the registry's answer for {name} is not that of Open VSX: {error}",
            hint="check [mirrors.openvsx] in config.toml",
        ) from error
    same = f"{entry.namespace}.{entry.name}".lower() == name.lower()
    if not same or not re.fullmatch(_VERSION, entry.version) or version not in ("", entry.version):
        raise OutsideError(f"the registry answered with another extension than {name} {version}")
    return entry


def _locate_file(entry: _RegistryEntry, platform: str) -> str:
    """Return the path of a file in a registry (eclipse/openvsx, RegistryAPI.java)."""
    stem = f"{entry.namespace}.{entry.name}-{entry.version}"
    root = f"api/{entry.namespace}/{entry.name}"
    if platform:
        return f"{root}/{platform}/{entry.version}/file/{stem}@{platform}.vsix"
    return f"{root}/{entry.version}/file/{stem}.vsix"


def _make_missing_error(name: str, version: str) -> ResolveError:
    if version:
        return ResolveError(
            f"extension {name} {version} not found in the registry",
            hint=f'without a version ("{name}") the newest is taken',
        )
    return ResolveError(
        f"extension {name} not found in the registry",
        hint="search https://open-vsx.org; for a directory of .vsix files, name a version"
        f" ({name}-1.2.3); other files go into the project (./{name}.vsix)",
    )


async def _read_manifest(
    mirror: str, path: str, sha256: str, resolver: SectionResolver
) -> _ExtensionManifest:
    file = path.rpartition("/")[2]
    data = await resolver.read_archive_member(mirror, path, sha256, _MANIFEST)
    try:
        manifest = decode_json(data, _ExtensionManifest)
    except msgspec.DecodeError as error:
        raise OutsideError(f"{file} is not an extension: its package.json: {error}") from error
    name = f"{manifest.publisher}.{manifest.name}"
    if not _ID.fullmatch(name) or not re.fullmatch(_VERSION, manifest.version):
        raise OutsideError(f"{file} is not an extension: invalid name or version")
    return manifest


def _make_pin(
    manifest: _ExtensionManifest,
    mirror: str,
    path: str,
    sha256: str,
    size: int,
    *,
    platform: str = "",
) -> LockedExtension:
    name = f"{manifest.publisher}.{manifest.name}"
    required = [*manifest.extension_dependencies, *manifest.extension_pack]
    return LockedExtension(
        name=name,
        version=manifest.version,
        mirror=mirror,
        path=path,
        sha256=sha256,
        size=size,
        platform=platform,
        requires=tuple(
            dict.fromkeys(
                item
                for item in required
                if _ID.fullmatch(item) and not item.lower().startswith(_BUILT_IN)
            )
        ),
    )


def _declare_extensions(env: EnvironmentBuilder, call: BoundCall) -> None:
    names = tuple(
        posixpath.normpath(name) if _is_file(name) else name
        for name in strip_names(call["name"], "install.vscode_extensions")
    )
    for name in names:
        if not _is_file(name) and not _split_name(name)[0]:
            raise CallError(
                f"install.vscode_extensions(): invalid extension '{name}'",
                hint="write publisher.name, publisher.name-1.2.3, or the path of a .vsix file",
                argument="name",
            )
    if names:
        env.declare(VscodeExtensions(names, span=call.span))


FUNCTIONS = (
    BuildFunction(
        "install.vscode_extensions",
        "Install extensions for VS Code's server and code-server, with their dependencies and the "
        "members of packs, from Open VSX or a mirror of it (`[mirrors.openvsx]`).",
        (
            Parameter(
                "name",
                TEXTS,
                "`publisher.name`, optionally with a version (`publisher.name-1.2.3`), or the path "
                "of a `.vsix` file in the project",
            ),
        ),
        declare=_declare_extensions,
        lock_section=EXTENSIONS,
        example='install.vscode_extensions(["ms-python.python"])',
    ),
)
