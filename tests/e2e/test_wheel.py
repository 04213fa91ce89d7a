"""The wheel of danlu itself, as ``uv tool install`` and pip install it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def install_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as uv unpacks it, with no dependency and nothing compiled by the installer."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    tracked = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "src", "pyproject.toml", "setup.py", "README.md"],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    ).stdout
    for name in tracked.rstrip("\0").split("\0"):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(directory)]
    subprocess.run([*pip, "wheel", *build, str(source)], check=True, timeout=100)
    (wheel,) = directory.glob("*.whl")
    uv = Path(sys.executable).with_name("uv")
    target = directory / "installed"
    subprocess.run(
        [uv, "pip", "install", "-q", "--no-deps", "--offline", "--target", target, wheel],
        check=True,
        timeout=50,
    )
    return target


def test_no_module_is_compiled_at_start(install_directory: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-v", "-m", "danlu", "--help"],
        env={**os.environ, "PYTHONPATH": str(install_directory), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=install_directory,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    loaded = [
        line for line in result.stderr.splitlines() if str(install_directory / "danlu") in line
    ]
    assert any("code object from" in line and "__pycache__" in line for line in loaded)
    assert not [line for line in loaded if "code object from" in line and "__pycache__" not in line]
