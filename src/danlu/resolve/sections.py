"""The network as the lock's sections see it: packages, mirrors, wheels and images."""

from __future__ import annotations

import base64
import hashlib
import io
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from anyio import to_thread

from danlu.environment.lock import LockedBase
from danlu.environment.lock_section import HashedTree, MirroredFile, SystemVersion, WheelFile
from danlu.environment.types import Environment
from danlu.errors import ChecksumError, OutsideError, ResolveError, UsageError
from danlu.graph.ops import Platform
from danlu.oci.archive import read_zip_member
from danlu.oci.git_tree import read_archive_tree
from danlu.resolve.context import ResolveContext
from danlu.resolve.image import read_dpkg_status, resolve_digest
from danlu.resolve.system import find_system_versions
from danlu.sandbox.machine_settings import WHEN_LOCKING
from danlu.sources.build_context import digest_path
from danlu.sources.http import FetchedFile
from danlu.sources.mirrors import (
    fetch_archive,
    fetch_from_mirror,
    fetch_from_server,
    list_mirrors,
    read_from_mirror,
)
from danlu.sources.pypi.indexes import read_index_settings
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.restrictions import check_settings, read_restrictions
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.uv_compile import locate_files
from danlu.util.safe_paths import ProjectTree
from danlu.util.urls import strip_credentials

#: The wheels of toolchains contain no Python extension: any version does.
_PYTHON = "3.11"


class SectionSources:
    """A :class:`danlu.environment.lock.SectionResolver` for one environment and its base."""

    def __init__(self, environment: Environment, base: LockedBase, context: ResolveContext) -> None:
        self._environment = environment
        self._base = base
        self._context = context
        self._cache = context.paths.cache / "http"

    @property
    def platform(self) -> Platform:
        return self._context.platform

    def may_change(self, name: str) -> bool:
        return self._context.may_change(name)

    async def fetch_file(self, url: str, sha256: str) -> tuple[str, int]:
        fetched = await fetch_from_server(
            url,
            sha256 or None,
            mirrors=self._context.config.mirrors,
            cache=self._cache,
            offline=self._context.offline,
        )
        return fetched.sha256, fetched.size

    async def resolve_image(self, reference: str) -> str:
        return await resolve_digest(reference, self._context)

    async def find_system_versions(self, names: Sequence[str]) -> Mapping[str, SystemVersion]:
        context, base = self._context, self._base
        return await find_system_versions(
            base,
            names,
            platform=context.platform,
            apt=self._environment.apt_source,
            paths=context.paths,
            config=context.config,
            offline=context.offline,
            read_status=partial(read_dpkg_status, base, context) if base.image else None,
        )

    async def read_from_mirror(self, mirror: str, path: str) -> bytes:
        return await read_from_mirror(
            mirror,
            path,
            mirrors=self._list_mirrors(mirror),
            cache=self._cache,
            offline=self._context.offline,
        )

    async def fetch_from_mirror(
        self, mirror: str, path: str, sha256: str = "", *, integrity: str = ""
    ) -> MirroredFile:
        mirrors = self._list_mirrors(mirror)
        fetched = await fetch_from_mirror(
            mirror,
            path,
            sha256 or None,
            mirrors=mirrors,
            cache=self._cache,
            offline=self._context.offline,
        )
        if integrity:
            await to_thread.run_sync(_check_integrity, fetched.path, integrity)
        url = strip_credentials(f"{mirrors[0]}/{path}")
        return MirroredFile(url, fetched.sha256, fetched.size)

    async def fetch_tree(
        self, mirror: str, path: str, tree: str, members: Sequence[str] = ()
    ) -> HashedTree:
        fetched = await fetch_from_mirror(
            mirror,
            path,
            None,
            mirrors=self._list_mirrors(mirror),
            cache=self._cache,
            offline=self._context.offline,
        )
        return await to_thread.run_sync(_read_tree, fetched, path, tree, members)

    async def hash_project_file(self, path: str) -> MirroredFile:
        data = self._read_project_file(path)
        digest = digest_path(self._context.project, path)
        return MirroredFile(digest, hashlib.sha256(data).hexdigest(), len(data))

    def _read_project_file(self, path: str) -> bytes:
        with ProjectTree(self._context.project) as tree:
            return tree.read_bytes(path)

    async def read_archive_member(self, mirror: str, path: str, sha256: str, member: str) -> bytes:
        if mirror:
            fetched = await fetch_archive(
                mirror,
                path,
                sha256,
                mirrors=self._list_mirrors(mirror),
                cache=self._cache,
                offline=self._context.offline,
            )
            return read_zip_member(fetched.path, member, name=path.rpartition("/")[2])
        data = io.BytesIO(self._read_project_file(path))
        try:
            return read_zip_member(data, member, name=path)
        except OutsideError as error:
            hint = "the file in the project is damaged, or not what its name says"
            raise UsageError(error.message, hint=hint) from error

    def _list_mirrors(self, name: str) -> tuple[str, ...]:
        return list_mirrors(name, self._context.config, self._environment.mirrors())

    async def find_wheel(self, name: str, version: str) -> WheelFile | None:
        context = self._context
        check_settings(context.project)
        indexes = read_index_settings(
            self._environment.pip_index, (), context.project, mirrors=context.config.mirrors
        )
        restrictions = read_restrictions(context.project)
        uv = Uv(
            context.paths.cache / "uv",
            context.project,
            indexes,
            offline=context.offline,
            decisions=WHEN_LOCKING,
        )
        target = PlatformTarget(_PYTHON, self._base.libc, self.platform.architecture)
        with tempfile.TemporaryDirectory() as scratch:
            wanted = Path(scratch) / "wanted.txt"
            wanted.write_text(f"{name}=={version}.*\n" if version else f"{name}\n")
            try:
                files = await locate_files(
                    uv,
                    [str(wanted), *restrictions.to_options("resolving")],
                    target,
                    scratch=Path(scratch),
                    dependencies=True,
                )
            except ResolveError:
                return None
        for file in files:
            if file.name == name and file.kind == "wheel":
                return WheelFile(file.version, file.file, file.sha256, file.size)
        return None


def _read_tree(fetched: FetchedFile, path: str, tree: str, members: Sequence[str]) -> HashedTree:
    def is_wanted(name: str) -> bool:
        return name in members or ("*" in members and name.endswith(".toml"))

    try:
        with fetched.path.open("rb") as file:
            found = read_archive_tree(file, is_wanted, name=path)
        if found.sha1 != tree:
            raise ChecksumError(
                f"checksum mismatch for {path}",
                details=(f"expected git-tree-sha1 {tree}", f"received git-tree-sha1 {found.sha1}"),
                hint="try again, or use another mirror",
            )
    except OutsideError:
        # It must not be taken from the cache by its SHA-256.
        fetched.path.unlink(missing_ok=True)
        raise
    return HashedTree(fetched.sha256, fetched.size, found.paths, found.files)


def _check_integrity(path: Path, integrity: str) -> None:
    algorithm, _, wanted = integrity.partition("-")
    if algorithm not in ("sha256", "sha384", "sha512"):
        raise OutsideError(f"unsupported hash {algorithm!r} in the registry's answer")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).digest()
    if base64.b64encode(digest).decode() != wanted:
        path.unlink(missing_ok=True)
        raise ChecksumError(
            "the downloaded file does not match the registry's hash",
            details=(f"expected {integrity}",),
            hint="try again, or use another mirror",
        )
