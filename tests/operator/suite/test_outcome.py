"""Jobs of every kind: their pods and Services, and how their status follows the pods."""

from __future__ import annotations

import pytest

from danlu.kube.manager import Manager
from tests.operator.site import Site

pytestmark = pytest.mark.anyio


async def test_a_job_runs_and_succeeds(site: Site, operator: Manager) -> None:
    await site.submit("PyTorchJob", Master=1, Worker=2)
    await site.until_pods("job-master-0", "job-worker-0", "job-worker-1")
    await site.until_services("job-master-0", "job-worker-0", "job-worker-1")
    assert await site.state() == "Created"
    await site.run()
    status = await site.until("Running")
    assert status["startTime"]
    await site.end()
    status = await site.until("Succeeded")
    assert status["completionTime"]
