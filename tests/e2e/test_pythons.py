"""Another Python than the distribution's: a standalone build of a local mirror, end to end."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Project
from tests.e2e.standalone import add_build

pytestmark = pytest.mark.real

#: Debian 13 has Python 3.13 only; the tests run with another one.
BASE = '    base(os="debian13")\n'
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "mirror"
    monkeypatch.setenv("DANLU_MIRROR_PYTHON", str(directory))
    add_build(directory)
    return directory


@pytest.mark.slow
def test_another_python_runs_packages_with_compiled_code(project: Project, mirror: Path) -> None:
    project.write(
        # Debian's interpreter is linked with a library that uv's builds contain.
        'install.apt_packages(["libexpat1"])',
        f'install.python("{MINOR}")',
        'install.python_packages(["markupsafe"])',
        "run([\"python -c 'import markupsafe._speedups'\"])",
        base=BASE,
    )
    first = project.build()
    assert project.run("python", "-V") == f"Python {platform.python_version()}"
    code = "import sys, markupsafe._speedups as s; print(json.dumps([sys.base_prefix, s.__file__]))"
    prefix, file = json.loads(project.run("python", "-c", f"import json; {code}"))
    assert prefix == "/opt/python"
    assert file.startswith(f"/opt/venv/lib/python{MINOR}/site-packages/")
    assert str(mirror) not in (project.directory / "danlu.lock").read_text()
    # The lock and the cache are enough: no mirror, no network, the same image.
    shutil.rmtree(mirror)
    again = project.build("--frozen", "--offline", "--no-cache")
    assert again["image"]["config"] == first["image"]["config"]
