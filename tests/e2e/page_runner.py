"""Pages of the documentation and their reader: where commands run, and with which variables."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import remove_tree
from tests.e2e.page_script import Block, read_blocks, render_script
from tests.programs import SYSTEM_PATH
from tests.test_repository import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "docs/index.md",
    *(
        page
        for directory in ("tutorials", "guides")
        for page in sorted((ROOT / "docs" / directory).glob("*.md"))
        if ".zh." not in page.name
    ),
]
#: What blocks that are run on a cluster need.
CLUSTER = "a Kubernetes cluster"
#: Patterns of the hosts in pages, for which tests have others.
REGISTRY = r"registry\.example(\.com)?"
MACHINE = r"me@gpu-box"
#: The port of the guide to serving.
SERVED_PORT = r"\b8080\b"


def read_page(name: str) -> list[Block]:
    page = next(page for page in PAGES if page_name(page) == name)
    return list(read_blocks(page))


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix().removesuffix(".md").removeprefix("docs/")


@contextmanager
def create_home(real_home: Path) -> Iterator[Path]:
    """Yield a DANLU_HOME with the shared store: jobs, environments and settings are the page's."""
    home = Path(tempfile.mkdtemp(dir=real_home))
    for shared in ("store", "cache"):
        (real_home / shared).mkdir(exist_ok=True)
        (home / shared).symlink_to(real_home / shared)
    yield home
    remove_tree(home)


def create_variables(home: Path, directory: Path) -> dict[str, str]:
    """Create variables of the page's reader: a home directory, danlu and OpenSSH's clients."""
    user = directory / "home"
    user.mkdir()
    for entry in Path.home().iterdir():  # settings of pip, npm and git
        if entry.name.startswith(".") and entry.name not in (".ssh", ".docker", ".local"):
            (user / entry.name).symlink_to(entry)
    programs = directory / "bin"
    programs.mkdir()
    for name in ("ssh", "scp", "sftp"):
        program = shutil.which(name, path=SYSTEM_PATH)
        wrapper = programs / name
        wrapper.write_text(f'#!/bin/sh\nexec {program} -F "$DANLU_SSH_CONFIG" "$@"\n')
        wrapper.chmod(0o755)
    (user / ".ssh").mkdir(mode=0o700)
    (user / ".ssh/config").touch(mode=0o600)
    return {
        **os.environ,
        "DANLU_HOME": str(home),
        "DANLU_SSH_CONFIG": str(user / ".ssh/config"),
        "HOME": str(user),
        "PAGE_OUTPUT": str(directory / "output"),
        "PATH": f"{programs}:{Path(sys.executable).parent}:{SYSTEM_PATH}",
        "ROOT": str(ROOT),
    }


def run_page(
    blocks: Iterable[Block],
    setup: Path,
    project: Path,
    environ: Mapping[str, str],
    hosts: Mapping[str, str],
) -> None:
    """Run the blocks of a page after the script ``setup``, and take down its environments.

    ``hosts`` are the test's hosts by the pattern (such as ``REGISTRY``) of those of the page.
    """
    project.mkdir()
    script = render_script(iter(blocks), setup.read_text() if setup.exists() else "")
    for pattern, host in hosts.items():
        script = re.sub(pattern, host, script)
    result = subprocess.run(
        ["bash", "-c", script],
        cwd=project,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    take_down(environ, project)
    assert result.returncode == 0, result.stdout[-3000:]


def take_down(environ: Mapping[str, str], project: Path) -> None:
    """Remove the environments of a page. Its jobs end with the page."""
    for name in run_danlu("ps", "-q", environ=environ, cwd=project).split():
        run_danlu("down", "--grace", "0", name, environ=environ, cwd=project)


def run_danlu(*arguments: str, environ: Mapping[str, str], cwd: Path) -> str:
    command = [str(Path(sys.executable).with_name("danlu")), *arguments]
    result = subprocess.run(
        command, env=environ, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True
    )
    return result.stdout
