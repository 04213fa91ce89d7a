"""The README, the tutorials and the guides work as written: files are written, commands run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from danlu.util.paths import Paths
from tests.conftest import remove_tree
from tests.e2e.page_runner import (
    CLUSTER,
    MACHINE,
    PAGES,
    REGISTRY,
    SERVED_PORT,
    create_home,
    create_variables,
    page_name,
    read_page,
    run_page,
)
from tests.e2e.page_script import Block, read_blocks
from tests.engines import ENGINES, engine_variables
from tests.oci.registries import debian_registry
from tests.ports import free_port
from tests.remote.machine import CONTEXT, create_machine
from tests.test_repository import ROOT

#: Commands that come before those of a page: what its reader has. A file for each page.
SETUPS = Path(__file__).with_name("pages")

#: Pages without a command that a test runs, each with the reason. Build files are evaluated by
#: tests/test_documentation.py.
UNEXECUTED = {
    "guides/cuda": "it has no commands; its packages are gigabytes",
    "guides/faq": "it has no commands",
    "guides/from-ciao": "tests/notebook/test_pages.py runs its cells in a notebook",
    "guides/from-envd": "its commands need the internet: tests/e2e/test_envd_repository.py",
    "guides/from-kubeflow-sdk": "tests/notebook/test_pages.py runs its Python",
    "guides/gpu": "it needs a GPU; its options are tested in tests/engine/gpu",
    "guides/languages": "its command needs Posit's RStudio Server",
    "guides/macos": "its image is on the internet: tests/remote/test_machine_container.py",
    "guides/mirrors": "it has no commands, only settings",
    "tutorials/notebook": "tests/notebook/test_pages.py runs it with PyTorch and Jupyter",
    "guides/paddle": "it needs PaddlePaddle's launcher: examples/paddle/verify",
    "guides/python-packages": "it has no command blocks",
    "guides/python-versions": "it has no command blocks",
    "guides/registries-of-clouds": "it needs accounts of clouds: tests/cli/test_cloud_login.py",
    "guides/rootless": "it has no command blocks",
    "guides/train": "it has no command blocks",
    "guides/troubleshooting": "it has no command blocks",
    "guides/ui": "its commands run until Ctrl-C: tests/ui",
    "guides/vscode": "it has no command blocks",
}

#: The first pages that people read; `make test-all` runs the others, too.
FIRST = {
    "README",
    "index",
    "guides/environments",
    "tutorials/first-environment",
    "tutorials/first-training",
}

#: Programs that pages need. Container engines and the registry are started for the page.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "tutorials/first-environment": ("docker-registry",),
    "guides/ci": ("docker-registry",),
    "guides/devcontainer": ("docker-registry",),
    "guides/docker": ("docker", "dockerd", "podman"),
    "guides/jupyter": ("root",),
    "guides/platforms": ("docker-registry",),
    "guides/registries": ("docker-registry",),
    "guides/remote": ("root", "sshd", "ssh", "busybox"),
    "tutorials/first-session": ("root", "ssh"),
    "guides/sagemaker": ("docker", "dockerd", "root"),
    "guides/ssh": ("root", "ssh", "scp", "sftp", "rsync"),
}

NAMES = [page_name(page) for page in PAGES]


def list_cases() -> Sequence[object]:
    """List the pages to run, and again with their slow blocks those that have some."""
    cases = []
    for name in NAMES:
        blocks = [block for block in read_page(name) if block.is_commands and not block.needs]
        marks = [pytest.mark.needs(*PROGRAMS.get(name, ()))] if name in PROGRAMS else []
        if any(not block.slow for block in blocks):
            slow = [] if name in FIRST else [pytest.mark.slow]
            cases.append(pytest.param(name, False, id=name, marks=[*marks, *slow]))
        if any(block.slow for block in blocks):
            cases.append(
                pytest.param(name, True, id=f"{name}-slow", marks=[*marks, pytest.mark.slow])
            )
    return cases


@pytest.fixture
def environ(real_home: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    with create_home(real_home) as home:
        yield create_variables(home, tmp_path)


@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "with_slow"), list_cases())
def test_a_page_works_as_written(
    name: str, with_slow: bool, tmp_path: Path, environ: dict[str, str]
) -> None:
    setup = SETUPS / f"{Path(name).name}.sh"
    blocks = [block for block in read_page(name) if with_slow or not block.slow]
    hosts: dict[str, str] = {}
    with ExitStack() as servers:
        for program in PROGRAMS.get(name, ()):
            if program in ENGINES:
                environ |= servers.enter_context(engine_variables(program))
            elif program == "docker-registry":
                hosts[REGISTRY] = servers.enter_context(debian_registry())
            elif program == "sshd":
                hosts[MACHINE] = servers.enter_context(connect_machine(environ))
        if name == "guides/serve":
            hosts[SERVED_PORT] = str(free_port())
        run_page(blocks, setup, tmp_path / "project", environ, hosts)


@contextmanager
def connect_machine(environ: dict[str, str]) -> Iterator[str]:
    """Yield the name of another machine, which has the images of this one but no network."""
    # A short path, because of sockets below it.
    with tempfile.TemporaryDirectory(prefix="m-") as directory:
        machine = create_machine(Path(directory))
        data = Paths.of({"HOME": str(machine.home)}).data
        remove_tree(data)
        data.mkdir()
        for shared in ("store", "cache"):
            (data / shared).symlink_to(Path(environ["DANLU_HOME"], shared).resolve())
        with Path(environ["DANLU_SSH_CONFIG"]).open("a") as file:
            file.write((machine.directory / "client_config").read_text())
        environ["XDG_RUNTIME_DIR"] = directory
        try:
            yield CONTEXT
        finally:
            machine.close()


def test_every_page_is_run_or_listed_with_a_reason() -> None:
    run = {
        name
        for name in NAMES
        # Blocks that need a cluster: tests/operator/cluster/test_pages.py.
        if any(block.is_commands and block.needs in ("", CLUSTER) for block in read_page(name))
    }
    assert set(NAMES) - run == set(UNEXECUTED)


def test_commands_are_in_blocks_of_a_shell() -> None:
    wrong = [
        (name, line)
        for name in NAMES
        for block in read_page(name)
        if not block.is_commands and not block.title
        for line in block.body.splitlines()
        if line.startswith(("$ ", "danlu "))
    ]
    assert wrong == []


def test_translations_have_the_commands_of_their_page() -> None:
    for page in (ROOT / "README.zh.md", ROOT / "docs/tutorials/notebook.zh.md"):
        original = page.with_name(page.name.replace(".zh", ""))
        mine, others = (
            [strip_comments(block) for block in read_blocks(path) if block.is_commands]
            for path in (page, original)
        )
        assert mine == others


def strip_comments(block: Block) -> list[str]:
    return [line.partition(" #")[0].rstrip() for line in block.commands]
