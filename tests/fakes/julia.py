"""A Julia package server as a directory: a registry, packages and artifacts, hashed by Git."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import NAMESPACE_DNS, uuid5

#: Packages that are part of Julia.
_STANDARD = {
    "Dates": "ade2ca70-3891-5945-98fb-dc099432e06a",
    "Pkg": "44cfe95a-1eb2-52ea-b672-e2afdf69b78f",
}

REGISTRY = "23338594-aafe-5451-b93e-139f81909106"


def make_uuid(name: str) -> str:
    """The UUID of a package of this server."""
    return _STANDARD.get(name) or str(uuid5(NAMESPACE_DNS, f"{name}.example.org"))


def hash_files(files: Mapping[str, str]) -> str:
    """Git's own hash of a tree; files below ``bin`` are programs."""
    with TemporaryDirectory() as name:
        root = Path(name)
        for path, text in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if path.startswith("bin/") else 0o644)

        def git(*arguments: str) -> str:
            command = ["git", "-C", name, "-c", "core.fileMode=true", *arguments]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        git("init", "-q")
        git("add", "--all", "--force")
        return git("write-tree").strip()


def pack_files(files: Mapping[str, str]) -> bytes:
    """A compressed tar as package servers have it: without a directory around the files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            member.mode = 0o755 if path.startswith("bin/") else 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


class JuliaServer:
    """Packages below ``root``; the caller serves that directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tables: dict[str, dict[str, str]] = {}

    def publish(
        self,
        name: str,
        version: str = "1.0.0",
        *,
        files: Mapping[str, str] | None = None,
        needs: Mapping[str, str] | None = None,
        weak: Mapping[str, str] | None = None,
        yanked: bool = False,
    ) -> str:
        """Add a version; ``needs`` are ranges by name, also of ``julia``; return its hash."""
        needs, weak, uuid = needs or {}, weak or {}, make_uuid(name)
        dependencies = [other for other in needs if other != "julia"]
        project = [f'name = "{name}"', f'uuid = "{uuid}"', f'version = "{version}"', "[deps]"]
        project += [f'{other} = "{make_uuid(other)}"' for other in dependencies]
        content = {
            "Project.toml": "\n".join(project) + "\n",
            f"src/{name}.jl": f"module {name}\nend\n",
            **(files or {}),
        }
        tree = self.store(f"package/{uuid}", content)
        self._write_table(name, "Package", [f'name = "{name}"', f'uuid = "{uuid}"'])
        fields = [f'["{version}"]', f'git-tree-sha1 = "{tree}"', *["yanked = true"][:yanked]]
        self._write_table(name, "Versions", fields)
        for prefix, listing in (("", needs), ("Weak", weak)):
            names = [f'{item} = "{make_uuid(item)}"' for item in listing if item != "julia"]
            ranges = [f'{item} = "{spec}"' for item, spec in listing.items() if spec != "*"]
            bound = version.partition("+")[0]
            self._write_table(name, f"{prefix}Deps", [f'["{bound}"]', *names] if names else [])
            self._write_table(name, f"{prefix}Compat", [f'["{bound}"]', *ranges] if ranges else [])
        self.write_registry()
        return tree

    def store(self, place: str, files: Mapping[str, str]) -> str:
        """Put a tree below ``package/UUID`` or ``artifact``; return its hash."""
        tree = hash_files(files)
        file = self.root / place / tree
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pack_files(files))
        return tree

    def write_registry(self, **changes: str) -> None:
        """Write the registry, with other texts for some of its files."""
        names = sorted(self._tables)
        listing = [f'{make_uuid(name)} = {{ name = "{name}", path = "{name}" }}' for name in names]
        files = {"Registry.toml": "\n".join(['name = "Test"', "[packages]", *listing]) + "\n"}
        for name, tables in self._tables.items():
            files |= {f"{name}/{table}.toml": text for table, text in tables.items()}
        tree = self.store(f"registry/{REGISTRY}", files | changes)
        (self.root / "registries").write_text(f"/registry/{REGISTRY}/{tree}\n")

    def _write_table(self, name: str, table: str, lines: list[str]) -> None:
        tables = self._tables.setdefault(name, {})
        if table == "Package":
            tables[table] = ""
        if lines:
            tables[table] = tables.get(table, "") + "\n".join(lines) + "\n"
