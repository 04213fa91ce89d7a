"""What jobs count: each once, whoever restarts in between."""

from __future__ import annotations

import pytest

from danlu.kube.metrics import Metrics
from tests.operator.site import Site

pytestmark = pytest.mark.anyio


def numbers(metrics: Metrics) -> dict[str, str]:
    """The counters of jobs that are not 0, by their word."""
    found = {}
    for line in metrics.text().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("training_operator_jobs_"):
            word = name.removeprefix("training_operator_jobs_").partition("_total")[0]
            found[word] = value
    return found


async def test_a_job_is_counted_once_though_its_operator_is_restarted(fake_site: Site) -> None:
    site = fake_site
    async with site.operator_runs() as first:
        await site.submit("PyTorchJob", Worker=1, policy="OnFailure")
        await site.until_pods("job-worker-0")
        await site.run()
        await site.until("Running")
        before = await site.uid("job-worker-0")
        await site.end("job-worker-0", code=1)
        await site.until_made_again("job-worker-0", before)
        assert numbers(first.metrics) == {"created": "1", "restarted": "1"}
        labels = f'{{job_namespace="{site.space}",framework="pytorch"}}'
        assert f"training_operator_jobs_created_total{labels} 1" in first.metrics.text()
    async with site.operator_runs() as second:
        await site.end("job-worker-0")
        await site.until("Succeeded")
        assert numbers(second.metrics) == {"successful": "1"}
        assert "danlu_job_seconds_count" in second.metrics.text()
        await site.change({"spec": {"runPolicy": {"ttlSecondsAfterFinished": 0}}})
        await site.eventually(site.is_gone)

        async def told() -> bool:
            return numbers(second.metrics) == {"successful": "1", "deleted": "1"}

        await site.eventually(told)
