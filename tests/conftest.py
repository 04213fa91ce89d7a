"""Fixtures for all tests: when real tests can run, and a DANLU_HOME whose bases are built once."""

from __future__ import annotations

import gc
import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from danlu.engine.settings import Settings
from danlu.lang import starlark, subprocess_eval
from danlu.sources.pypi.uv import Uv, UvCommand, find_uv
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from tests.programs import has_program, lacking
from tests.skip_report import pytest_terminal_summary

__all__ = ["ROOT", "lacking", "pytest_terminal_summary"]

ROOT = Path(__file__).resolve().parent.parent
REAL_LIMIT = 600
"""Seconds a real test may take where it does not say so itself."""

# Hypothesis times inputs and tests, which depends on what else the machine does. The inputs are the
# same in every run, so that a failure is the change's; slow tests choose others each time.
settings.register_profile(
    "any-machine",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any-machine")


# Collecting creates 700,000 objects that all stay. Looking for garbage among them again and again
# takes a third of the time.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among the objects of the tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def fork_evaluations() -> Iterator[None]:
    """Evaluate Starlark in forked children, although a process of pytest-xdist has two threads.

    The other one only reads what to run next. A new interpreter for each file takes ten times as
    long; the tests of limits start both kinds of child.
    """
    assert starlark  # loaded once here, not in each child
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess_eval, "has_one_thread", lambda: True)
        yield


@pytest.fixture(autouse=True, scope="session")
def share_interpreter_facts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let each cache of uv begin with what uv finds out about this Python by starting it."""
    shared = tmp_path_factory.mktemp("uv")
    command = [str(find_uv()), "pip", "freeze", "-q", "--python", sys.executable, "--no-config"]
    subprocess.run([*command, "--cache-dir", str(shared)], check=True, capture_output=True)
    prepare = Uv.prepare

    def prepare_with_facts(uv: Uv, *arguments: Any, **options: Any) -> UvCommand:
        uv.cache.mkdir(parents=True, exist_ok=True)
        for facts in shared.glob("interpreter-*"):
            with suppress(FileExistsError):
                (uv.cache / facts.name).symlink_to(facts)
        return prepare(uv, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Uv, "prepare", prepare_with_facts)
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(name="settings")
def empty_settings(tmp_path: Path) -> Settings:
    """Settings with an empty home."""
    return Settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}), Configuration())


def _subordinate_ids(file: str) -> bool:
    names = {getpass.getuser(), str(os.getuid())}
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return False
    return any(line.split(":")[0] in names for line in lines)


def missing_for_real() -> str:
    """Why real tests cannot run here, or nothing."""
    if sys.platform != "linux":
        return "real tests need Linux"
    if not (has_program("runc") or has_program("crun")):
        return "no OCI runtime (runc or crun) found: make setup"
    if not has_program("apt-get"):
        return "apt-get not found: bases are built from packages of the Debian family"
    if os.geteuid() != 0:
        if not (has_program("newuidmap") and has_program("newgidmap")):
            return "an ordinary user needs newuidmap: make setup"
        if not (_subordinate_ids("/etc/subuid") and _subordinate_ids("/etc/subgid")):
            return "this account has no subordinate ids: make setup"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give real tests a longer limit, and skip those that cannot run, with the reason."""
    reason = missing_for_real()
    for item in items:
        lack = lacking(*(name for mark in item.iter_markers("needs") for name in mark.args))
        if lack:
            item.add_marker(pytest.mark.skip(reason=lack))
        if not any(item.get_closest_marker(name) for name in ("real", "training")):
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(REAL_LIMIT))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


_HOME = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Set what all processes of this run share: its home, and signals that end programs."""
    # No test writes to the SSH configuration of the developer.
    os.environ["DANLU_SSH_CONFIG"] = "off"
    # Upkeep would compete with the tests for the machine; its own tests start it.
    os.environ["DANLU_UPKEEP"] = "off"
    # Shells let their background commands ignore SIGINT, nohup SIGHUP; so would programs in tests.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    output = getattr(config, "workerinput", {}).get("real_home")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    config.stash[_HOME] = Path(output or cache / "danlu-tests" / str(os.getpid()))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the home to a worker process of pytest-xdist."""
    node.workerinput["real_home"] = str(node.config.stash[_HOME])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the home in the process that created it."""
    if not hasattr(config, "workerinput") and config.stash[_HOME].exists():
        remove_tree(config.stash[_HOME])


@pytest.fixture(scope="session")
def real_home(request: pytest.FixtureRequest) -> Path:
    """A ``DANLU_HOME`` shared by the real tests of one run, so that a base is made once.

    It is in the user's cache directory, not in ``/tmp``, which may be memory. With
    ``DANLU_TEST_HOME`` it is that directory, and kept: for working on one test.
    """
    kept = os.environ.get("DANLU_TEST_HOME")
    if kept:
        return Path(kept)
    home = request.config.stash[_HOME]
    home.mkdir(parents=True, exist_ok=True)
    return home


def remove_tree(tree: Path) -> None:
    """Remove ``tree``, with what other ids of an ordinary user's namespace own in it."""
    if os.geteuid() == 0:
        shutil.rmtree(tree, ignore_errors=True)
        return
    command = ["unshare", "--map-auto", "--map-root-user", "--user", "rm", "-rf", str(tree)]
    subprocess.run(command, check=False, capture_output=True)


Danlu = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def danlu(real_home: Path) -> Danlu:
    """The real program with the shared home: ``danlu("build", "-f", "build.envd", cwd=...)``."""
    return program_in(real_home)


def program_in(home: Path, limit: float = REAL_LIMIT) -> Danlu:
    """The real program with the home ``home``, whose commands may take ``limit`` seconds."""

    def run(
        *arguments: str, cwd: Path, check: bool = True, timeout: float = limit
    ) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "DANLU_HOME": str(home)}
        program = Path(sys.executable).with_name("danlu")
        result = subprocess.run(
            [str(program), *arguments],
            cwd=cwd,
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and result.returncode:
            pytest.fail(
                f"danlu {' '.join(arguments)}: {result.returncode}\n{result.stdout}{result.stderr}"
            )
        return result

    return run


@pytest.fixture
def open_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``mpirun`` be Open MPI's, also if Debian's alternatives or PATH prefer another one."""
    info = shutil.which("ompi_info")
    if info is None:
        return
    program = shutil.which("mpirun.openmpi") or Path(info).with_name("mpirun")
    chosen = tmp_path / "open-mpi" / "mpirun"
    chosen.parent.mkdir()
    chosen.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    chosen.chmod(0o755)
    monkeypatch.setenv("PATH", f"{chosen.parent}:{os.environ['PATH']}")


@pytest.fixture
def mpi_directory() -> Iterator[str]:
    """A directory for Open MPI's session, with a short path because of its sockets.

    By default all of a user's sessions share one, which an ending ``mpirun`` removes while
    another one starts in it.
    """
    with tempfile.TemporaryDirectory(prefix="mpi-") as directory:
        yield directory
