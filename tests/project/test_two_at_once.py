"""Two commands that update one project at the same moment: neither loses what the other wrote."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.settings import Settings, load_settings
from danlu.environment.lock import FunctionLock, LockedBase
from danlu.environment.requirements import digest_base_inputs
from danlu.environment.types import Environment
from danlu.errors import UsageError
from danlu.graph.ops import DebPackage
from danlu.graph.progress import Event, Message
from danlu.project import build_cache, build_image, packages
from danlu.project import lock as lock_command
from danlu.project.build_request import BuildOptions, BuildRequest
from danlu.project.packages import PYTHON, change_packages
from danlu.project.project import Project
from danlu.resolve import resolve as resolve_module
from danlu.resolve.lockfile import read_lock
from danlu.sandbox import userns
from danlu.sandbox.emulation import host_platform
from danlu.store import Store
from danlu.util.paths import Paths

FILE = """\
def build():
    base(os="debian12")

def test():
    base(os="debian12")
"""


class Waiting:
    """A progress handler that says when its command waits for another one."""

    def __init__(self) -> None:
        self.began = threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Message) and event.text.startswith("waiting for another danlu"):
            self.began.set()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(userns, "enter", lambda paths: None)
    return load_settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    (path / "build.envd").write_text(FILE)
    return path


def open_project(directory: Path, settings: Settings, function: str = "build") -> Project:
    name = f"build.envd:{function}"
    return Project.open(name, directory=directory, paths=settings.paths)


def make_lock(environment: Environment) -> FunctionLock:
    deb = DebPackage("bash", "1.0", "amd64", "0" * 64, 1000, "bookworm", "pool/bash.deb")
    base = LockedBase(
        inputs=digest_base_inputs(environment, host_platform()),
        epoch=1,
        distribution="debian12",
        codename="bookworm",
        libc="glibc 2.36",
        packages=(deb,),
    )
    return FunctionLock(platform=str(host_platform()), base=base)


def test_locks_of_two_functions_are_both_kept(
    directory: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Waiting()
    resolving = threading.Event()

    async def resolve(environment: Environment, *_: object) -> FunctionLock:
        if environment.name == "build":
            resolving.set()
            assert second.began.wait(60), "the second command does not wait for the first"
        return make_lock(environment)

    monkeypatch.setattr(resolve_module, "resolve", resolve)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(
            lock_command.lock,
            open_project(directory, settings),
            settings=settings,
            progress=lambda event: None,
        )
        assert resolving.wait(60)
        project = open_project(directory, settings, "test")
        lock_command.lock(project, settings=settings, progress=second)
        first.result()
    lock = read_lock((directory / "danlu.lock").read_text(), "danlu.lock")
    assert set(lock.functions) == {"build", "test"}


def run_two_additions(
    directory: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    update: Callable[[Project], object],
) -> None:
    """Add `numpy`, and `six` while the lock is updated for `numpy`."""
    second = Waiting()
    resolving = threading.Event()

    def update_lock(project: Project, *_: Any) -> object:
        if "numpy" in (directory / "build.envd").read_text() and not resolving.is_set():
            resolving.set()
            assert second.began.wait(60), "the second command does not wait for the first"
            return update(project)
        return None

    monkeypatch.setattr(packages, "update_project_lock", update_lock)

    def add(name: str, progress: Callable[[Event], None]) -> None:
        project = open_project(directory, settings)
        change_packages(project, PYTHON, added=[name], settings=settings, progress=progress)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(add, "numpy", lambda event: None)
        assert resolving.wait(60)
        add("six", second)
        first.result()


def test_additions_of_two_packages_are_both_kept(
    directory: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_two_additions(directory, settings, monkeypatch, lambda project: None)
    assert 'name=["numpy", "six"]' in (directory / "build.envd").read_text()


def test_a_failed_addition_takes_nothing_back_but_its_own(
    directory: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(project: Project) -> None:
        raise UsageError("no such package")

    with pytest.raises(UsageError, match="no such package"):
        run_two_additions(directory, settings, monkeypatch, fail)
    text = (directory / "build.envd").read_text()
    assert "six" in text
    assert "numpy" not in text


def test_a_failed_addition_leaves_an_edit_of_the_user(
    directory: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit_and_fail(project: Project, *_: Any) -> None:
        (directory / "build.envd").write_text("edited")
        raise UsageError("no such package")

    monkeypatch.setattr(packages, "update_project_lock", edit_and_fail)
    project = open_project(directory, settings)
    with pytest.raises(UsageError, match="no such package"):
        change_packages(
            project, PYTHON, added=["numpy"], settings=settings, progress=lambda event: None
        )
    assert (directory / "build.envd").read_text() == "edited"


def test_an_image_is_recorded_with_the_lock_that_it_was_built_from(
    directory: Path, settings: Settings
) -> None:
    project = open_project(directory, settings)
    environment = project.environment()
    project.lock_file.write(project.lock.replace_function("build", make_lock(environment)))
    request = BuildRequest(project, settings, BuildOptions(), lambda event: None)
    lock_request = build_image.make_lock_request(request, environment)
    before = project.lock_path.read_text()
    with Store.open(settings.paths.store) as store:
        image = store.put_image(b"{}", [])
        project.lock_path.write_text(f"{before}# of another process\n")
        build_image._record_project(lock_request, store, image)
        assert find_image(store, directory, settings) is None
        project.lock_path.write_text(before)
        assert find_image(store, directory, settings) == image.digest


def find_image(store: Store, directory: Path, settings: Settings) -> str | None:
    """Return the digest of the image that a new process would find."""
    found = build_cache.lookup(store, open_project(directory, settings))
    return None if found is None else found.digest
