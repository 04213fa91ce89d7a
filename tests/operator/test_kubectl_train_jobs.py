"""A TrainJob from beginning to end with the real kubectl, on the fake and on a real server."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest

from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.operator.installation import list_runtimes, render_documents
from tests.operator.clients.kubeconfigs import kubeconfig
from tests.operator.clients.kubectl import find_kubectl
from tests.operator.operator_namespace import OperatorNamespace
from tests.operator.test_sdk import run_simulated_kubelet

pytestmark = [pytest.mark.anyio, pytest.mark.real]
JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  runtimeRef: {name: torch-distributed}
  suspend: true
  trainer: {numNodes: 2, command: [torchrun, train.py]}
"""


@pytest.fixture
def clock() -> Clock:
    """The time of kubectl's process, which no test can hold."""
    return REAL_CLOCK


class Kubectl:
    """kubectl in the namespace of a test."""

    def __init__(self, site: OperatorNamespace, home: Path) -> None:
        config = kubeconfig(site.access, home / "config", namespace=site.space)
        self._command = [find_kubectl(), f"--kubeconfig={config}"]
        self._home = home

    async def run(self, *arguments: str, text: str = "", fails: bool = False) -> str:
        """Return the output, or the errors of a command that has to fail."""
        result = await anyio.run_process(
            [*self._command, *arguments],
            input=text.encode(),
            # The fake sends no initial events with a watch.
            env={"HOME": str(self._home), "KUBE_FEATURE_WatchListClient": "false"},
            check=False,
        )
        assert (result.returncode != 0) == fails, result.stderr.decode()
        return (result.stderr if fails else result.stdout).decode()

    async def wait_for(self, condition: str) -> str:
        return await self.run(
            "wait", f"--for=condition={condition}", "trainjob/digits", "--timeout=60s"
        )


async def test_a_train_job_is_created_suspended_resumed_read_and_deleted(
    site: OperatorNamespace, tmp_path: Path
) -> None:
    kubectl = Kubectl(site, tmp_path)
    # The fake publishes no schemas.
    validation = "true" if site.fake is None else "false"
    apply = ("apply", f"--validate={validation}", "-f", "-")
    await kubectl.run(*apply, text=render_documents(list_runtimes(), form="yaml"))
    listed = await kubectl.run("get", "clustertrainingruntimes", "-o", "name")
    assert "clustertrainingruntime.trainer.kubeflow.org/torch-distributed" in listed.split()
    async with site.operator_runs(), run_simulated_kubelet(site):
        await kubectl.run(*apply, text=JOB)
        await kubectl.wait_for("Suspended")
        if site.fake is None:  # which prints no columns
            head, line = (await kubectl.run("get", "trainjobs")).splitlines()
            assert head.split() == ["NAME", "STATE", "AGE"]
            assert line.split()[:2] == ["digits", "Suspended"]
        resume = '{"spec": {"suspend": false}}'
        await kubectl.run("patch", "trainjob/digits", "--type=merge", "-p", resume)
        await kubectl.wait_for("Complete")
        first = "batch.kubernetes.io/job-completion-index=0,jobset.sigs.k8s.io/jobset-name=digits"
        assert await kubectl.run("logs", "-l", first, "-c", "node") == "epoch 1\n"
        status = msgspec.json.decode(await kubectl.run("get", "trainjob/digits", "-o", "json"))
        conditions = [each["type"] for each in status["status"]["conditions"]]
        assert conditions == ["Suspended", "Complete"]
        assert "SuccessfulCreatePod" in await kubectl.run("get", "events", "-o", "yaml")
        await kubectl.run("delete", "trainjob", "digits")
        if site.fake is not None:  # a real server has a garbage collector only if it is installed
            await site.wait_for_collection()
