"""A small Debian package archive with tiny packages, which a real dpkg installs."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["AptArchive", "ArchivePackage", "minimal_packages"]


@dataclass(frozen=True, slots=True)
class ArchivePackage:
    """One package: ``fields`` are further control fields (``Depends``), ``files`` path -> text."""

    name: str
    version: str = "1.0"
    architecture: str = "all"
    fields: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Its path in the archive."""
        version = self.version.partition(":")[2] or self.version
        file = f"{self.name}_{version}_{self.architecture}.deb"
        return f"pool/main/{self.name[0]}/{self.name}/{file}"


class AptArchive:
    """An archive of one distribution below ``root``; the caller serves that directory."""

    def __init__(self, root: Path, *, origin: str = "Debian") -> None:
        self.root = root
        self.origin = origin
        self._suites: dict[str, dict[str, str]] = {}
        self._writes = 0

    def add(self, suite: str, *packages: ArchivePackage) -> None:
        """Add packages to a suite, and rewrite its lists."""
        stanzas = self._suites.setdefault(suite, {})
        for package in packages:
            stanzas[f"{package.name} {package.version}"] = self._build_package(package)
        self._write_suite(suite)

    def remove(self, suite: str, package: ArchivePackage, *, file: bool = True) -> None:
        """Remove a package from a suite, and its file from the pool."""
        del self._suites[suite][f"{package.name} {package.version}"]
        if file:
            (self.root / package.path).unlink()
        self._write_suite(suite)

    def sources_line(self, suite: str, *, uri: str = "") -> str:
        """A line for ``sources.list`` that trusts this archive unsigned."""
        return f"deb [trusted=yes] {uri or self.root.as_uri()} {suite} main\n"

    def _build_package(self, package: ArchivePackage) -> str:
        control = (
            f"Package: {package.name}\nVersion: {package.version}\n"
            f"Architecture: {package.architecture}\nMaintainer: danlu <danlu@example.org>\n"
            "Priority: optional\nSection: misc\n"
            + "".join(f"{name}: {value}\n" for name, value in package.fields.items())
            + "Description: a package for tests\n"
        )
        file = self.root / package.path
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory() as name:
            tree = Path(name)
            _write_files(tree, {"DEBIAN/control": control, **package.files}, 0o644)
            _write_files(
                tree, {f"DEBIAN/{script}": text for script, text in package.scripts.items()}, 0o755
            )
            tree.chmod(0o755)
            command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(file)]
            subprocess.run(command, check=True, capture_output=True)
        data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        return control + f"Filename: {package.path}\nSize: {len(data)}\nSHA256: {digest}\n"

    def _write_suite(self, suite: str) -> None:
        directory = self.root / "dists" / suite
        sums = []
        for architecture in ("amd64", "arm64"):
            # Packages of all architectures are listed with each (Debian repository format).
            path = f"main/binary-{architecture}/Packages"
            text = "\n".join(
                stanza
                for stanza in self._suites[suite].values()
                if any(f"\nArchitecture: {name}\n" in stanza for name in (architecture, "all"))
            )
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text)
            digest = hashlib.sha256(text.encode()).hexdigest()
            sums.append(f" {digest} {len(text.encode())} {path}\n")
        release = directory / "Release"
        release.write_text(
            f"Origin: {self.origin}\nLabel: {self.origin}\nSuite: {suite}\nCodename: {suite}\n"
            "Date: Sat, 01 Jun 2024 12:00:00 UTC\nArchitectures: amd64 arm64\nComponents: main\n"
            f"SHA256:\n{''.join(sums)}"
        )
        # HTTP compares times in whole seconds: each writing is a minute after the last.
        self._writes += 1
        when = 1_717_243_200 + 60 * self._writes
        for file in (release, *directory.rglob("Packages")):
            os.utime(file, (when, when))


def _write_files(tree: Path, files: Mapping[str, str], mode: int) -> None:
    for name, text in files.items():
        path = tree / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)


def minimal_packages() -> list[ArchivePackage]:
    """The packages that :func:`danlu.resolve.system.resolve_base` asks for, as empty shells."""
    essential = {"Essential": "yes"}
    return [
        ArchivePackage("base-files", "12.4", "amd64", essential),
        ArchivePackage("dpkg", "1.21", "amd64", {**essential, "Pre-Depends": "libc6 (>= 2.30)"}),
        ArchivePackage("libc6", "2.36-9", "amd64"),
        ArchivePackage("apt", "2.6.1", "amd64"),
        ArchivePackage("passwd", "1:4.13", "amd64"),
    ]
