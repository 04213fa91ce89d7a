"""Environments of a build file: settings for their start, and manual changes."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Danlu
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.needs("root"), pytest.mark.timeout(600)]

BUILD = """
def build():
    base(os="debian12")
    install.python()
    runtime.init(["echo prepared >/tmp/prepared"])
    runtime.daemon([["python3", "-m", "http.server", "{port}", "--bind", "127.0.0.1"]])
    runtime.expose({port}, service="files")
    runtime.environ({{"MODE": "test"}})
"""


@pytest.fixture
def project(tmp_path: Path, danlu: Danlu) -> Iterator[Path]:
    directory = tmp_path / "changed-by-hand"
    directory.mkdir()
    yield directory
    danlu("down", "--grace", "0", cwd=directory)


def list_packages(danlu: Danlu, project: Path) -> tuple[str, str]:
    """Return the distributions of Python and the packages of the distribution inside."""
    query = "dpkg-query -W -f '${binary:Package} ${Version}\\n'"
    commands = ("pip freeze --all", query)
    freeze, packages = (
        danlu("exec", "--", "sh", "-c", command, cwd=project).stdout for command in commands
    )
    return freeze, packages


def test_changes_by_hand_can_be_built(danlu: Danlu, project: Path) -> None:
    port = free_port()
    (project / "build.envd").write_text(BUILD.format(port=port))
    danlu("up", "-d", cwd=project)

    def responds() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/build.envd", timeout=60) as page:
                return b"def build" in page.read()
        except OSError:
            return False

    wait_for(responds)
    script = """
    set -e
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends jq >/dev/null
    pip install -q rich
    mkdir /etc/tool && echo "$MODE" >/etc/tool/mode
    rm /etc/issue
    cat /tmp/prepared
    """
    assert danlu("exec", "--", "sh", "-c", script, cwd=project).stdout == "prepared\n"
    by_hand = list_packages(danlu, project)
    content = danlu("commit", "--write", cwd=project).stdout
    assert 'install.apt_packages(["jq"])' in content
    (copy,) = project.glob("environment-files/*/etc/tool/mode")
    assert copy.read_text() == "test\n"
    danlu("up", "-d", "--recreate", cwd=project)
    assert list_packages(danlu, project) == by_hand
    check = "cat /etc/tool/mode; ls /etc/issue || echo removed"
    assert danlu("exec", "--", "sh", "-c", check, cwd=project).stdout == "test\nremoved\n"
    assert danlu("commit", cwd=project).stdout == ""
