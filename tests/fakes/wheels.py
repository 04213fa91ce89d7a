"""Generated wheels for tests, also invalid ones."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["make_level_wheels", "make_wheel", "sha256_of"]


def sha256_of(path: Path) -> str:
    """The hash of a file, hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def make_wheel(
    directory: Path,
    name: str,
    version: str = "1.0",
    files: Mapping[str, str | bytes] | None = None,
    *,
    tag: str = "py3-none-any",
    entry_points: str = "",
    data: Mapping[str, str | bytes] | None = None,
    requires: Sequence[str] = (),
    unlisted: Sequence[str] = (),
    more_rows: Sequence[tuple[str, str, str]] = (),
    executable: Sequence[str] = (),
    modes: Mapping[str, int] | None = None,
    metadata_name: str = "",
    label: str = "",
) -> Path:
    """A wheel with ``files`` in site-packages and ``data`` in its ``.data`` directory.

    ``label`` is that of a variant (PEP 825).
    """
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    contents: dict[str, bytes] = {}
    value = {
        **(files or {}),
        **{f"{stem}.data/{path}": text for path, text in (data or {}).items()},
    }
    for path, content in value.items():
        contents[path] = content.encode() if isinstance(content, str) else content
    metadata = f"Metadata-Version: 2.1\nName: {metadata_name or name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    contents[f"{info}/METADATA"] = metadata.encode()
    contents[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    )
    if entry_points:
        contents[f"{info}/entry_points.txt"] = entry_points.encode()
    contents[f"{info}/RECORD"] = _render_record(contents, info, unlisted, more_rows)
    executables = {path for path in contents if path in executable or "/scripts/" in path}
    usual = {path: 0o755 if path in executables else 0o644 for path in contents}
    target = directory / f"{'-'.join(filter(None, (stem, tag, label)))}.whl"
    _write_wheel(target, contents, {**usual, **(modes or {})})
    return target


def _render_record(
    contents: Mapping[str, bytes],
    info: str,
    unlisted: Sequence[str],
    more_rows: Sequence[tuple[str, str, str]],
) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for path, content in contents.items():
        if path not in unlisted:
            writer.writerow((path, _record_hash(content), len(content)))
    writer.writerows(more_rows)
    writer.writerow((f"{info}/RECORD", "", ""))
    return text.getvalue().encode()


def _write_wheel(target: Path, contents: Mapping[str, bytes], modes: Mapping[str, int]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for path, content in contents.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (modes[path] | 0o100000) << 16
            archive.writestr(entry, content)


def make_level_wheels(directory: Path, name: str, levels: Mapping[str, str]) -> None:
    """Make a wheel of ``name`` for all processors, and one with each label, which is for a level.

    The module has the label as ``LEVEL``.
    """
    for label in ("", *levels):
        make_wheel(directory, name, files={f"{name}.py": f"LEVEL = {label!r}\n"}, label=label)
    variants = {label: {"x86_64": {"level": [level]}} for label, level in levels.items()}
    description = {
        "$schema": "https://variants-schema.wheelnext.dev/peps/825/v0.1.1.json",
        "default-priorities": {"namespace": ["x86_64"]},
        "providers": {"x86_64": {"builtin": "x86_64"}},
        "variants": variants,
    }
    (directory / f"{name}-1.0-variants.json").write_text(json.dumps(description))
