"""Progress of real jobs: posted by their programs, served by their supervisors."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import ContainerImage, JobView
from danlu.training.progress import TrainingProgress
from danlu.training.types import ReplicaSpec, RestartPolicy
from danlu.util.files import remove_tree
from tests.jobs.local.conftest import home as home
from tests.jobs.local.conftest import jobs as jobs
from tests.jobs.local.support import lines_of, shell, submission, wait_for_view

pytestmark = pytest.mark.anyio

REPORT = """
import json, os, ssl, sys, urllib.request
url, rank = os.environ["KUBEFLOW_TRAINER_SERVER_URL"], int(os.environ["RANK"])
token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read().strip()
ca = os.environ.get("KUBEFLOW_TRAINER_SERVER_CA_CERT")
for done in (0, 50, 100):
    status = {"lastUpdatedTime": "2026-01-01T00:00:00Z", "progressPercentage": done - rank,
              "metrics": [{"name": "loss", "value": str(1 - done / 200)}]}
    if done - rank >= 0:
        body = json.dumps({"trainerStatus": status}).encode()
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        context = ssl.create_default_context(cafile=ca) if ca else None
        urllib.request.urlopen(request, timeout=60, context=context).close()
"""


async def test_progress_of_the_leader_is_shown_in_the_view(jobs: LocalJobs, tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(REPORT)
    workers = ReplicaSpec(2, shell(f"{sys.executable} report.py"), RestartPolicy.NEVER)
    await jobs.submit(submission(tmp_path, workers))
    views = [view async for view in jobs.watch("job")]
    assert views[-1].state == "Succeeded", await lines_of(jobs)
    last = views[-1].progress
    assert last is not None
    # 99 is what worker-1 said.
    assert (last.percentage, last.metrics) == (100, {"loss": 0.5})


NAME = "registry.example/busybox:1"
LOOK = """
echo $KUBEFLOW_TRAINER_SERVER_URL
cat $KUBEFLOW_TRAINER_SERVER_TOKEN; echo
touch $KUBEFLOW_TRAINER_SERVER_TOKEN 2>/dev/null && echo writable
echo $KUBEFLOW_TRAINER_SERVER_TOKEN
port=${KUBEFLOW_TRAINER_SERVER_URL#*//*:}
echo | nc 127.0.0.1 ${port%%/*} > /dev/null && echo reached
until [ -e /workspace/enough ]; do sleep 0.1; done
"""


@pytest.fixture
def images(home: Path) -> Iterator[dict[str, ContainerImage]]:
    from tests.jobs.containers import engine_rig

    yield {NAME: ContainerImage(engine_rig.image(home), NAME)}
    remove_tree(home / "store")


@pytest.mark.real
@pytest.mark.needs("root", "busybox")
async def test_a_container_reaches_the_progress_server_on_its_loopback(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    workers = ReplicaSpec(1, shell(LOOK, image=NAME), RestartPolicy.NEVER)
    await jobs.submit(submission(tmp_path, workers, images=images))
    url, token, directory, reached = await _four_lines(jobs)
    assert directory == "/var/run/secrets/kubeflow/trainer/token"
    assert reached == "reached"
    certificate = (tmp_path / "home/jobs/job/progress/worker-0/ca.crt").read_text()
    _post_report(url, token, certificate)
    view = await wait_for_view(jobs, lambda view: view.progress is not None)
    assert _read_percentage(view.progress) == 7
    (tmp_path / "enough").touch()
    await wait_for_view(jobs, _is_over)


def _is_over(view: JobView) -> bool:
    return view.finished


def _read_percentage(progress: TrainingProgress | None) -> int | None:
    return None if progress is None else progress.percentage


async def _four_lines(jobs: LocalJobs) -> list[str]:
    lines: list[str] = []
    async for line in jobs.logs("job", follow=True):
        lines.append(line.data.decode())
        if len(lines) == 4:
            break
    return lines


def _post_report(url: str, token: str, certificate: str) -> None:
    """From here, with what the container was given: the port is the same one."""
    import ssl

    status = {"lastUpdatedTime": "2026-01-01T00:00:00Z", "progressPercentage": 7}
    request = urllib.request.Request(
        url,
        data=json.dumps({"trainerStatus": status}).encode(),
        headers={"Authorization": f"Bearer {token}"},
        method="POST",
    )
    context = ssl.create_default_context(cadata=certificate)
    urllib.request.urlopen(request, timeout=60, context=context).close()
