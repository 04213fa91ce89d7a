"""Generated conda packages, and channels of them whose index rattler writes."""

from __future__ import annotations

import asyncio
import bz2
import configparser
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import zstandard

#: What packages are built for: long, so that any prefix fits in a binary.
PLACEHOLDER = "/opt/placeholder_" + "x" * 100


class CondaFile(msgspec.Struct, frozen=True):
    """A file of a package; ``prefix`` is ``text`` or ``binary`` if it holds the placeholder."""

    content: bytes = b""
    mode: int = 0o644
    link: str = ""
    prefix: str = ""


def write_package(
    channel: Path,
    name: str,
    version: str = "1.0",
    build: str = "0",
    files: Mapping[str, CondaFile] = {},
    *,
    depends: Sequence[str] = (),
    noarch: str = "",
    entry_points: Sequence[str] = (),
    listed: Sequence[str] | None = None,
    extra: Mapping[str, Any] = {},
    legacy: bool = False,
    subdir: str = "",
) -> Path:
    """Write a package into ``channel``; ``listed`` are the paths it claims to have.

    ``extra`` are further fields of its index; a ``legacy`` package is a ``.tar.bz2``.
    """
    subdir = subdir or ("noarch" if noarch else "linux-64")
    index = {
        "name": name,
        "version": version,
        "build": build,
        "build_number": 0,
        "depends": list(depends),
        "subdir": subdir,
        "timestamp": 1_700_000_000_000,
        **({"noarch": noarch} if noarch else {}),
        **extra,
    }
    names = list(files) if listed is None else listed
    paths = [_describe_path(path, files.get(path, CondaFile())) for path in names]
    info = {
        "info/index.json": CondaFile(json.dumps(index).encode()),
        "info/paths.json": CondaFile(json.dumps({"paths": paths, "paths_version": 1}).encode()),
    }
    if noarch == "python":
        link = {"noarch": {"type": "python", "entry_points": list(entry_points)}}
        link["package_metadata_version"] = 1  # type: ignore[assignment]
        info["info/link.json"] = CondaFile(json.dumps(link).encode())
    directory = channel / subdir
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{version}-{build}"
    if legacy:
        path = directory / f"{stem}.tar.bz2"
        path.write_bytes(bz2.compress(_make_tar({**info, **files})))
        return path
    path = directory / f"{stem}.conda"
    with zipfile.ZipFile(path, "w") as archive:
        # ZipInfo has a fixed time: the same files give the same archive.
        archive.writestr(zipfile.ZipInfo("metadata.json"), '{"conda_pkg_format_version": 2}')
        for part, members in (("info", info), ("pkg", files)):
            member = zipfile.ZipInfo(f"{part}-{stem}.tar.zst")
            archive.writestr(member, zstandard.compress(_make_tar(members)))
    return path


def _describe_path(path: str, file: CondaFile) -> dict[str, Any]:
    entry: dict[str, Any] = {"_path": path, "path_type": "softlink" if file.link else "hardlink"}
    if not file.link:
        entry["sha256"] = hashlib.sha256(file.content).hexdigest()
        entry["size_in_bytes"] = len(file.content)
    if file.prefix:
        entry |= {"prefix_placeholder": PLACEHOLDER, "file_mode": file.prefix}
    return entry


def _make_tar(files: Mapping[str, CondaFile]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, file in files.items():
            member = tarfile.TarInfo(name)
            member.mode = file.mode
            member.mtime = 1_600_000_000
            if file.link:
                member.type, member.linkname = tarfile.SYMTYPE, file.link
            else:
                member.size = len(file.content)
            archive.addfile(member, io.BytesIO(file.content))
    return buffer.getvalue()


def index_channel(channel: Path) -> str:
    """Write the index of ``channel``; return its address."""
    from rattler.index import index_fs

    for subdir in ("noarch", "linux-64", "linux-aarch64"):
        (channel / subdir).mkdir(parents=True, exist_ok=True)
    # In a thread: an asynchronous test has a running loop.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(index_fs(channel, force=True))).result()
    return channel.as_uri()


#: Debian's interpreter has the usual directory for packages only in a virtual environment.
_SITE_CUSTOMIZE = b"""\
import site, sys
if sys.prefix == sys.base_prefix:
    site.addsitedir(f"{sys.prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
"""


def write_interpreter(channel: Path, root: Path, version: str) -> Path:
    """Write conda's ``python`` from a distribution's files below ``root`` (``usr/bin`` …)."""
    minor = ".".join(version.split(".")[:2])
    files: dict[str, CondaFile] = {}
    for path in sorted((root / "usr" / "lib" / f"python{minor}").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = str(path.relative_to(root / "usr"))
            files[name] = CondaFile(path.read_bytes(), path.stat().st_mode & 0o777)
    files[f"lib/python{minor}/sitecustomize.py"] = CondaFile(_SITE_CUSTOMIZE)
    program = (root / "usr" / "bin" / f"python{minor}").read_bytes()
    files[f"bin/python{minor}"] = CondaFile(program, 0o755)
    files["bin/python"] = files["bin/python3"] = CondaFile(link=f"python{minor}")
    return write_package(channel, "python", version, "0_cpython", files)


def write_wheel_package(channel: Path, wheel: Path, *, depends: Sequence[str] = ()) -> Path:
    """Write a pure Python package with the files of a wheel."""
    name, version = wheel.name.split("-")[:2]
    with zipfile.ZipFile(wheel) as archive:
        files = {
            f"site-packages/{member}": CondaFile(archive.read(member))
            for member in archive.namelist()
            if not member.endswith("/")
        }
    points = configparser.ConfigParser(delimiters="=")
    points.optionxform = str  # type: ignore[assignment,method-assign]
    points.read_string(
        next(
            (file.content for path, file in files.items() if path.endswith("entry_points.txt")), b""
        ).decode()
    )
    scripts = points.items("console_scripts") if points.has_section("console_scripts") else ()
    return write_package(
        channel,
        name,
        version,
        "py_0",
        files,
        depends=["python >=3.8", *depends],
        noarch="python",
        entry_points=[f"{script} = {target}" for script, target in scripts],
    )
