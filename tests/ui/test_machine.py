"""The page of this machine: who uses it, the store, and the checks of doctor."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentState
from danlu.engine.gpu.usage import GpuMeter, GpuUsage
from danlu.engine.resource_allocator import ResourceAllocator, ledger_file
from danlu.jobs.local.client import LocalJobs
from danlu.store import Store
from danlu.util.human import format_size
from danlu.util.locks import file_lock
from tests.image.test_images import image, layer
from tests.jobs.containers.engine_rig import paths_of
from tests.jobs.local.support import runs, spec, submission, wait_for_view
from tests.ui.site import make_site, serve, wait_for_part
from tests.ui.test_environments import HOSTILE, NOW, write_environment

pytestmark = pytest.mark.anyio


class TwoGpus(GpuMeter):
    """A busy GPU and one that does not say how busy it is."""

    def measure(self, indexes: object = None) -> list[GpuUsage]:
        return [
            GpuUsage(0, HOSTILE, 0.5, 10 << 30, 80 << 30),
            GpuUsage(1, "H200", None, 0, 140 << 30),
        ]


async def test_users_of_the_machine_are_measured(
    home: Path, jobs: LocalJobs, work: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DANLU_ALLOCATION_DIR", str(tmp_path / "allocations"))
    await jobs.submit(submission(work, spec("while :; do :; done")))
    await wait_for_view(jobs, runs(1))
    environment = write_environment(home, "dev")
    environment.write_state(EnvironmentState("Running", NOW, container=os.getpid()))
    site = make_site(home, jobs)
    site.machine.meter = TwoGpus()
    with file_lock(environment.lock):
        allocator = ResourceAllocator(ledger_file(), environment.directory)
        allocator.record_gpus([0])
        async with serve(site) as client:
            _, text = await client.ask("/machine")
            assert "<img" not in text
            assert ">dev</a></div>" in text  # has the GPU
            assert "free" in text
            assert "cores" in text
            # Nothing is known of the first moment.
            await wait_for_part(client, "/machine", "users", ">job</a>")
            await wait_for_part(client, "/machine", "users", "MB</td>")
    await jobs.stop("job", grace=0)


async def test_store_says_what_could_be_pruned_as_the_command_does(
    home: Path, jobs: LocalJobs
) -> None:
    with Store.open(paths_of(home).store) as store:
        image(store, layer(store, a="1"), names=("demo:1",))
        image(store, layer(store, b="x" * 300_000))
        plan = store.plan_collection(0)
        assert (plan.images, plan.layers) == (1, 1)
        assert plan.freed > 300_000
        assert len(store.images()) == 2
    async with serve(make_site(home, jobs)) as client:
        text = await wait_for_part(client, "/machine", "store", "danlu image prune --all")
        assert f"{format_size(plan.freed)} (1 image, 1 layer)" in text
    with Store.open(paths_of(home).store) as store:
        collected = store.collect(0)
        assert (collected.freed, collected.kept) == (plan.freed, plan.kept)


@pytest.mark.timeout(120)
async def test_checks_are_run_when_asked_for(
    home: Path, jobs: LocalJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANLU_HOME", str(home))
    async with serve(make_site(home, jobs)) as client:
        _, text = await client.ask("/machine")
        assert "disk space" not in text
        status, answer = await client.ask("/-/machine/doctor/check", method="POST")
        assert status == 200
        assert "checks" in json.loads(answer)["message"]
        _, text = await client.ask("/machine")
        assert ">disk space</th>" in text
        assert str(home) in text


async def test_cluster_is_said_not_to_be_shown(home: Path, jobs: LocalJobs) -> None:
    async with serve(make_site(home, jobs, where="kubernetes")) as client:
        _, text = await client.ask("/machine")
        assert "The nodes of kubernetes, and what its jobs use, are not shown." in text
