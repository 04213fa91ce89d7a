"""Copy files of another image, or of another build function's result: paths, links and patterns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.builder.embedded.ops.copy_image import _copy_source
from danlu.errors import UsageError
from danlu.graph.ops import CopyImage


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image's tree at a path with a symbolic link in it, next to a file of the host."""
    (tmp_path / "host").write_text("secret")
    root = tmp_path / "real"
    (root / "dist").mkdir(parents=True)
    for name in ("a-1.whl", "b-1.whl", "log.txt"):
        (root / "dist" / name).write_text(name)
    (root / "current").symlink_to("/dist")
    (root / "dist/latest").symlink_to("/dist/b-1.whl")
    (root / "out").symlink_to(f"../../..{tmp_path}/host")
    (root / "absolute").symlink_to(tmp_path / "host")
    (root / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to(root)
    return tmp_path / "link"


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    (tmp_path / "staged").mkdir()
    return tmp_path / "staged"


def copy(image: Path, staged: Path, source: str, target: str) -> dict[str, str]:
    """Copy, and return the contents of the copied files by path."""
    op = CopyImage(source, target, os.getuid(), os.getgid(), 0)
    _copy_source(image, op, staged)
    files = (path for path in staged.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(staged)): path.read_text() for path in files}


@pytest.mark.parametrize(
    ("source", "target", "copied"),
    [
        ("/dist/a-1.whl", "/opt/", ["opt/a-1.whl"]),
        ("dist/a-1.whl", "/opt/new", ["opt/new"]),
        ("/dist/*.whl", "/opt", ["opt/a-1.whl", "opt/b-1.whl"]),
        ("/dist/*.whl", "/opt/", ["opt/a-1.whl", "opt/b-1.whl"]),
        ("/current/?-1.whl", "/opt", ["opt/a-1.whl", "opt/b-1.whl"]),
        ("/current", "/opt", ["opt/a-1.whl", "opt/b-1.whl", "opt/log.txt"]),
        ("/dist/latest", "/opt/", ["opt/latest"]),
        ("/../../dist/a-1.whl", "/../../opt/", ["opt/a-1.whl"]),
    ],
)
def test_files_are_found_through_links_and_patterns(
    image: Path, staged: Path, source: str, target: str, copied: list[str]
) -> None:
    assert sorted(copy(image, staged, source, target)) == copied


@pytest.mark.parametrize("source", ["/out", "/absolute", "/missing", "/dist/*.txt.gz", "/no/*"])
def test_links_never_lead_to_files_of_the_host(image: Path, staged: Path, source: str) -> None:
    with pytest.raises(UsageError, match="not found in the image"):
        copy(image, staged, source, "/opt")
    assert not list(staged.iterdir())


def test_links_that_form_a_loop_are_an_error(image: Path, staged: Path) -> None:
    with pytest.raises(UsageError, match="form a loop"):
        copy(image, staged, "/loop", "/opt")
