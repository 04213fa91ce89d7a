"""The page of environments: what runs, how to get in, start and stop."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    EnvironmentSpec,
    EnvironmentState,
    PortForward,
    ServiceSpec,
    ServiceState,
)
from danlu.environment.runtime_settings import JupyterSettings
from danlu.environments.jupyter import add_jupyter
from danlu.jobs.local.client import LocalJobs
from danlu.util.locks import file_lock
from tests.conftest import Danlu
from tests.engine.conftest import box_home, danlu, project
from tests.jobs.local.support import local_jobs
from tests.ports import free_port
from tests.ui.site import make_site, serve, wait_for_part

__all__ = ["box_home", "danlu", "project"]

pytestmark = pytest.mark.anyio

HOSTILE = "<img src=x onerror=alert(1)>\x1b]0;title\x07\"'"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def write_environment(home: Path, name: str, *, token: str = "") -> EnvironmentDirectory:
    """An environment whose texts are hostile; it runs while its lock is held."""
    environment = EnvironmentDirectory(home / "environments" / name)
    environment.directory.mkdir(parents=True)
    spec = EnvironmentSpec(
        name,
        image="sha256:" + "a" * 64,
        created=NOW,
        project=f"/work/{HOSTILE}",
        services=(ServiceSpec(HOSTILE, ("true",)),),
        ports=(PortForward(80, 8080, HOSTILE, HOSTILE), PortForward(81, 8081, "0.0.0.0")),
    )
    if token:
        spec = add_jupyter(spec, JupyterSettings(token=token), None)
    environment.write_spec(spec)
    states = (ServiceState(HOSTILE, exit_code=1, restarts=2, reason=HOSTILE),)
    environment.write_state(
        EnvironmentState("Running", NOW, reason=HOSTILE, warnings=(HOSTILE,), services=states)
    )
    return environment


@pytest.mark.real
@pytest.mark.needs("busybox")
@pytest.mark.timeout(120)
async def test_environment_is_stopped_and_started_from_the_page(
    box_home: Path, danlu: Danlu, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANLU_HOME", str(box_home))
    port = free_port()
    danlu("up", "--image", "box:1", "-d", "-n", "dev", "-p", f"{port}:80", cwd=project)
    listed = json.loads(danlu("ps", "--format", "json", cwd=project).stdout)[0]
    path = "/environments"
    async with serve(make_site(box_home, local_jobs(box_home))) as client:
        _, text = await client.ask(path)
        assert "ssh dev.danlu" in text
        assert f'href="http://{listed["ports"][0]["address"]}:{port}"' in text
        assert f'href="/images/{listed["image"]}"' in text

        async def act(action: str, name: str = "dev") -> tuple[int, str]:
            status, answer = await client.ask(f"/-{path}/{name}/{action}", method="POST")
            return status, json.loads(answer)["message"]

        assert await act("stop") == (200, "stopped dev")
        await wait_for_part(client, path, "table", "Start")
        assert json.loads(danlu("ps", "--format", "json", cwd=project).stdout)[0]["phase"] == (
            "Stopped"
        )
        assert await act("start") == (200, "started dev")
        await wait_for_part(client, path, "table", f":{port}")
        assert await act("stop", "other") == (409, "environment other not found")
        assert await act("remove") == (409, "unknown action remove")
        status, _ = await client.ask(
            f"/-{path}/dev/stop", method="POST", headers={"Origin": "http://evil.example"}
        )
        assert status == 403


async def test_token_of_jupyter_is_only_in_the_link_of_the_signed_in(
    home: Path, jobs: LocalJobs
) -> None:
    environment = write_environment(home, "dev", token="secret-of-jupyter")
    async with serve(make_site(home, jobs), signed_in=False) as client:
        with file_lock(environment.lock):
            for path in ("/environments", "/-/live/environments"):
                status, text = await client.ask(path)
                assert status == 401
                assert "secret-of-jupyter" not in text
            await client.sign_in()
            _, text = await client.ask("/environments")
            assert text.count("secret-of-jupyter") == 1
            link = text[text.index("JupyterLab</a>") - 200 : text.index("JupyterLab</a>")]
            assert "token=secret-of-jupyter" in link
            assert 'rel="noreferrer noopener"' in link
        await wait_for_part(client, "/environments", "table", "Stopped")
        assert "secret-of-jupyter" not in (await client.ask("/environments"))[1]


async def test_hostile_and_damaged_environments_are_shown_as_text(
    home: Path, jobs: LocalJobs
) -> None:
    environment = write_environment(home, "dev")
    damaged = EnvironmentDirectory(home / "environments" / "damaged")
    damaged.upper.mkdir(parents=True)
    damaged.spec_file.write_text("{<img src=x>")
    async with serve(make_site(home, jobs)) as client:
        with file_lock(environment.lock):
            status, text = await client.ask("/environments")
    assert status == 200
    assert "<img" not in text
    assert "\x1b" not in text
    assert "http://127.0.0.1:8081" in text
    assert 'href="http://&lt;' not in text
    assert "Damaged" in text
    assert "danlu down damaged" in text


async def test_context_shows_only_its_environments(home: Path, jobs: LocalJobs) -> None:
    write_environment(home, "dev")
    async with serve(make_site(home, jobs, where="kubernetes")) as client:
        _, text = await client.ask("/environments")
        assert "No environments in kubernetes" in text
