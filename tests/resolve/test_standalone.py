"""Standalone builds of Python: the newest of a mirror, verified, or the setting to change."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from danlu.environment.lock import FunctionLock, Lock, LockedBase, LockedPython
from danlu.errors import (
    ChecksumError,
    DanluError,
    LockError,
    MachineError,
    OutsideError,
    ResolveError,
)
from danlu.graph.ops import Platform
from danlu.resolve.context import ResolveContext
from danlu.resolve.lockfile import read_lock, write_lock
from danlu.resolve.python.standalone import lock_standalone_python
from danlu.sources.pypi.python_builds import (
    PythonRequirement,
    choose_builds,
    list_release_builds,
    parse_build,
    parse_checksums,
)
from danlu.util.config import Configuration, MirrorConfig
from danlu.util.paths import Paths
from danlu.util.retry import RetryPolicy

REASON = "debian12 has no Python 3.12, only 3.11"
FAILURE = ResolveError(REASON, hint='base(os="ubuntu24.04") has Python 3.12')
X86_64, AARCH64 = 62, 183


def file_name(version: str, release: str = "20241219", machine: str = "x86_64", **more: str) -> str:
    libc, kind = more.get("libc", "gnu"), more.get("kind", "install_only_stripped")
    return f"cpython-{version}+{release}-{machine}-unknown-linux-{libc}-{kind}.tar.gz"


def make_archive(minor: str = "3.12", machine: int = X86_64) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        header = b"\x7fELF\x02\x01\x01" + bytes(11) + machine.to_bytes(2, "little") + bytes(200)
        info = tarfile.TarInfo(f"python/bin/python{minor}")
        info.size, info.mode = len(header), 0o755
        tar.addfile(info, io.BytesIO(header))
    return gzip.compress(stream.getvalue(), mtime=0)


class StandaloneLocker:
    def __init__(self, root: Path) -> None:
        self.mirror = root / "mirror"
        self.mirror.mkdir()
        self.root = root
        self.platform = Platform()
        self.libc = "glibc 2.36"
        self.urls: tuple[str, ...] = (str(self.mirror),)
        self.upgrade: tuple[str, ...] = ()
        self.offline = False

    def add(self, file: str, data: bytes | None = None, directory: str = "") -> Path:
        path = self.mirror / directory / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(make_archive() if data is None else data)
        return path

    def lock(self, version: str, old: LockedPython | None = None) -> LockedPython:
        context = ResolveContext(
            project=self.root,
            paths=Paths.of({"DANLU_HOME": str(self.root / "home")}),
            config=Configuration(mirrors={"python": MirrorConfig(urls=self.urls)}),
            platform=self.platform,
            store=cast(Any, None),
            run_in_system=cast(Any, None),
            offline=self.offline,
            upgrade=self.upgrade,
        )
        base = LockedBase("", 0, "debian", "bookworm", self.libc)
        return anyio.run(
            functools.partial(
                lock_standalone_python, version, base, old, context, declared={}, failure=FAILURE
            )
        )

    def file(self, version: str, **more: Any) -> str:
        archive = self.lock(version, **more).archive
        assert archive is not None
        return archive.path.rpartition("/")[2]


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandaloneLocker:
    for name in ("DANLU_MIRROR_PYTHON", "UV_PYTHON_INSTALL_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("danlu.sources.http._RETRY_POLICY", RetryPolicy(4, 0.001))
    return StandaloneLocker(tmp_path)


def test_the_newest_build_of_a_directory_is_locked_without_its_address(
    resolver: StandaloneLocker,
) -> None:
    resolver.add(file_name("3.12.7"))
    resolver.add(file_name("3.12.8", "20241206"))
    path = resolver.add(file_name("3.12.8"), directory="20241219")
    resolver.add(file_name("3.13.0"))
    locked = resolver.lock("3.12")
    assert (locked.version, locked.provider) == ("3.12.8", "archive")
    assert locked.executable == "/opt/python/bin/python3.12"
    assert locked.archive is not None
    assert locked.archive.path == f"20241219/{path.name}"
    assert locked.archive.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    text = write_lock(Lock({"build": FunctionLock("linux/amd64", LockedBase("", 0), locked)}))
    assert str(resolver.mirror) not in text
    assert read_lock(text, "danlu.lock").functions["build"].python == locked


def test_an_exact_version_and_its_platform_are_respected(resolver: StandaloneLocker) -> None:
    resolver.add(file_name("3.12.8"))
    resolver.add(file_name("3.12.7"))
    resolver.add(file_name("3.12.7", machine="aarch64"), make_archive(machine=AARCH64))
    resolver.add(file_name("3.12.7", libc="musl"))
    assert resolver.file("3.12.7") == file_name("3.12.7")
    resolver.platform = Platform(architecture="arm64")
    assert resolver.file("3.12") == file_name("3.12.7", machine="aarch64")
    resolver.platform, resolver.libc = Platform(), "musl 1.2"
    assert resolver.file("3.12") == file_name("3.12.7", libc="musl")


def test_a_free_threaded_build_is_another_one(resolver: StandaloneLocker) -> None:
    resolver.add(file_name("3.13.1"), make_archive("3.13"))
    free = file_name("3.13.1", kind="freethreaded-install_only_stripped")
    resolver.add(free, make_archive("3.13t"))
    assert resolver.file("3.13") == file_name("3.13.1")
    assert resolver.file("3.13t") == free
    assert resolver.lock("3.13t").executable == "/opt/python/bin/python3.13t"


def test_a_locked_build_is_kept_until_an_upgrade(resolver: StandaloneLocker) -> None:
    path = resolver.add(file_name("3.12.7"))
    old = resolver.lock("3.12")
    path.unlink()
    resolver.add(file_name("3.12.8"))
    assert resolver.lock("3.12", old).version == "3.12.7"
    resolver.upgrade = ("cpython",)
    assert resolver.lock("3.12", old).version == "3.12.8"


def test_a_directory_needs_no_network(resolver: StandaloneLocker) -> None:
    resolver.add(file_name("3.12.8"))
    resolver.offline = True
    assert resolver.lock("3.12").version == "3.12.8"


@pytest.fixture
def web(resolver: StandaloneLocker) -> Iterator[str]:
    class QuietFileHandler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(QuietFileHandler, directory=str(resolver.mirror))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://user:secret@127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def find_release(version: str) -> tuple[str, str]:
    """Return the release and the file name of a version in uv's list."""
    builds = anyio.run(list_release_builds)
    (build, *_) = choose_builds(builds, PythonRequirement(version, "x86_64", "gnu"))
    return build.release, build.file


def test_a_mirror_over_http_is_used_for_the_builds_in_uvs_list(
    resolver: StandaloneLocker, web: str
) -> None:
    resolver.urls = (web,)
    release, file = find_release("3.12.8")
    data = resolver.add(file, directory=release).read_bytes()
    sums = f"{hashlib.sha256(data).hexdigest()}  {file}\n"
    (resolver.mirror / release / "SHA256SUMS").write_text(sums)
    assert resolver.lock("3.12.8").version == "3.12.8"


def test_a_mirror_over_http_can_list_other_builds(resolver: StandaloneLocker, web: str) -> None:
    resolver.urls = (web,)
    file = file_name("3.12.99")
    data = resolver.add(file, directory="20241219").read_bytes()
    sums = f"{hashlib.sha256(data).hexdigest()} *20241219/{file}\n"
    (resolver.mirror / "SHA256SUMS").write_text(sums)
    assert resolver.lock("3.12.99").version == "3.12.99"


def fail(resolver: StandaloneLocker, version: str) -> DanluError:
    with pytest.raises(DanluError) as failure:
        resolver.lock(version)
    error = failure.value
    assert "secret" not in " ".join((error.message, error.hint, *error.details))
    return error


def test_other_bytes_than_published_are_a_checksum_error(
    resolver: StandaloneLocker, web: str
) -> None:
    resolver.urls = (web,)
    release, file = find_release("3.12.8")
    resolver.add(file, directory=release)
    (resolver.mirror / release / "SHA256SUMS").write_text(f"{'0' * 64}  {file}\n")
    error = fail(resolver, "3.12.8")
    assert isinstance(error, ChecksumError)
    assert "[mirrors.python]" in error.hint


def test_a_version_that_no_mirror_has_names_the_settings(resolver: StandaloneLocker) -> None:
    error = fail(resolver, "3.12")
    assert isinstance(error, MachineError)
    assert error.message == f"{REASON}, and no mirror has a standalone build of Python 3.12"
    assert "[mirrors.python]" in error.hint
    assert "UV_PYTHON_INSTALL_MIRROR" in error.hint
    assert error.hint.startswith('base(os="ubuntu24.04") has Python 3.12; or set a mirror')


@pytest.mark.parametrize(
    ("version", "hint"), [("3.99", "3.13, 3.14"), ("3.12.77", "nearest version is 3.12.")]
)
def test_a_version_that_does_not_exist_is_refused_with_those_that_do(
    resolver: StandaloneLocker, version: str, hint: str
) -> None:
    error = fail(resolver, version)
    assert isinstance(error, ResolveError)
    assert hint in error.hint


@pytest.mark.parametrize("offline", [False, True])
def test_a_mirror_that_is_down_is_an_outside_error(
    resolver: StandaloneLocker, offline: bool
) -> None:
    resolver.urls = ("http://user:secret@127.0.0.1:9",)
    resolver.offline = offline
    error = fail(resolver, "3.12")
    assert isinstance(error, OutsideError)
    assert error.message.startswith(f"{REASON}, and a standalone build of Python 3.12 cannot be")
    assert error.exit_code == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (make_archive(machine=AARCH64), "for another platform than x86_64"),
        (make_archive("3.11"), "contains no python/bin/python3.12"),
        (make_archive()[:-20], "cannot unpack"),
        (b"<html>not found</html>", "cannot unpack"),
    ],
)
def test_archives_that_do_not_match_their_name_are_refused(
    resolver: StandaloneLocker, data: bytes, message: str
) -> None:
    resolver.add(file_name("3.12.8"), data)
    error = fail(resolver, "3.12")
    assert isinstance(error, OutsideError)
    assert message in error.message


def test_a_lock_with_an_invalid_archive_is_refused(resolver: StandaloneLocker) -> None:
    resolver.add(file_name("3.12.8"))
    locked = resolver.lock("3.12")
    text = write_lock(Lock({"build": FunctionLock("linux/amd64", LockedBase("", 0), locked)}))
    with pytest.raises(LockError, match="invalid path"):
        read_lock(text.replace("20241219/cpython", "../../cpython"), "danlu.lock")


@pytest.mark.parametrize(
    "file",
    [
        "cpython-3.12.8+20241219-x86_64-unknown-linux-gnu-debug-full.tar.zst",
        "cpython-3.12.8+20241219-x86_64-apple-darwin-install_only.tar.gz",
        "pypy-3.10.14-linux-x86_64-gnu.tar.gz",
        "../cpython-3.12.8+20241219-x86_64-unknown-linux-gnu-install_only.tar.gz",
    ],
)
def test_files_other_than_standalone_builds_for_linux_are_ignored(file: str) -> None:
    assert parse_build(file) is None


def test_a_stripped_build_is_preferred_and_a_prerelease_only_on_request() -> None:
    names = [
        file_name("3.12.8"),
        file_name("3.12.8", kind="install_only"),
        file_name("3.14.0rc2"),
    ]
    builds = [build for name in names if (build := parse_build(name)) is not None]
    chosen = choose_builds(builds, PythonRequirement("3.12", "x86_64", "gnu"))
    assert [build.file for build in chosen] == names[:2]
    assert not choose_builds(builds, PythonRequirement("3.14", "x86_64", "gnu"))
    assert choose_builds(builds, PythonRequirement("3.14.0rc2", "x86_64", "gnu"))


def test_checksum_files_are_read_in_both_formats() -> None:
    digest = "ab" * 32
    text = f"{digest}  a.tar.gz\n{digest} *dir/b.tar.gz\nnot a line\n"
    assert parse_checksums(text) == {"a.tar.gz": digest, "b.tar.gz": digest}
