"""``danlu up`` that is interrupted while it creates an environment."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.settings import load_settings
from danlu.environments import up
from danlu.environments.manage import list_environment_views
from danlu.environments.spec import UpOptions
from danlu.store import Store
from danlu.util.paths import Paths
from tests.jobs.containers.engine_rig import image, paths_of

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(60)]


@pytest.mark.parametrize("spawned", [True, False])
def test_an_environment_stays_if_its_supervisor_was_spawned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spawned: bool
) -> None:
    paths = paths_of(tmp_path / "home")
    with Store.open(paths.store) as store:
        store.tag("box:1", image(tmp_path / "home"))
    locks = []

    def interrupt_start(environment: EnvironmentDirectory, paths: Paths) -> bool:
        if spawned:
            # As a supervisor, which inherits the lock and first loads its modules.
            locks.append(environment.lock.open("w"))
            fcntl.flock(locks[0], fcntl.LOCK_EX)
        raise KeyboardInterrupt

    monkeypatch.setattr(up, "start_supervisor", interrupt_start)
    with pytest.raises(KeyboardInterrupt):
        up.start_environment(
            tmp_path,
            settings=load_settings(paths),
            options=UpOptions(name="digits"),
            progress=lambda event: None,
            image="box:1",
        )
    names = [view.name for view in list_environment_views(paths)]
    assert names == (["digits"] if spawned else [])
    for lock in locks:
        lock.close()
