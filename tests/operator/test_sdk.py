"""Kubeflow's SDKs for both generations, unmodified, on the fake and on a real server.

Programs of its users go on as they are, and so do the operator's own end-to-end tests.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.kube.watch import ListOptions
from danlu.operator.installation import list_runtimes
from danlu.operator.types import runtime_resource
from tests.fakes.kubernetes import FakeKubelet
from tests.fakes.kubernetes.pod_script import PodScript
from tests.notebook.environments import NotSatisfiable, make
from tests.operator.clients.kubeconfigs import kubeconfig
from tests.operator.operator_namespace import OperatorNamespace, jobs

pytestmark = [pytest.mark.anyio, pytest.mark.real]
CLIENTS = Path(__file__).parent / "clients"


@pytest.fixture(scope="session")
def sdk() -> Path:
    """The environment of the SDK, created once."""
    return install_client("kubeflow-sdk", "kubeflow-training==1.9.4")


def install_client(name: str, package: str) -> Path:
    try:
        return make(name, [package])
    except NotSatisfiable as error:
        pytest.skip(f"cannot install {package}: {error}")


@pytest.fixture
def clock() -> Clock:
    """The time of the SDK's process, which no test can hold."""
    return REAL_CLOCK


@pytest.fixture
def config(site: OperatorNamespace, tmp_path: Path) -> Path:
    return kubeconfig(site.access, tmp_path / "config", namespace=site.space)


async def test_jobs_are_created_followed_and_deleted(
    site: OperatorNamespace, sdk: Path, config: Path
) -> None:
    async with site.operator_runs(), run_simulated_kubelet(site):
        client = await run_client(sdk, "train.py", config, site.space)
    assert client.keys() == {"PyTorchJob", "TFJob", "XGBoostJob", "function"}
    for output in client.values():
        assert output["state"][-1] == "Succeeded"
        assert output["succeeded"] is True
        assert "epoch 1" in str(output["logs"])
    torch = client["PyTorchJob"]
    assert torch["reasons"][-1] == "PyTorchJobSucceeded"
    assert torch["pods"] == ["py-master-0", "py-worker-0", "py-worker-1"]
    assert torch["master"] == ["py-master-0"]
    assert torch["listed"] == ["py"]
    assert torch["replicas"]["Master"] == 1
    assert client["TFJob"]["pods"] == ["tf-ps-0", "tf-worker-0", "tf-worker-1"]
    assert client["XGBoostJob"]["master"] == ["xgb-master-0"]
    assert client["function"]["pods"] == ["function-master-0", "function-worker-0"]
    for kind in ("PyTorchJob", "TFJob", "XGBoostJob"):
        assert await site.names(jobs(kind)) == []


@pytest.mark.slow
async def test_the_end_to_end_tests_of_kubeflows_operator_pass(
    site: OperatorNamespace, sdk: Path, config: Path
) -> None:
    async with site.operator_runs(), run_simulated_kubelet(site):
        client = await run_client(sdk, "e2e.py", config, site.space)
    managed, changed = client.pop("managed"), client["changed"]
    assert managed["listed"] == ["ours", "theirs"]
    assert "Failed to create PyTorchJob" in managed["refused"]
    assert managed["theirs"] == []
    assert "Suspended" in changed["suspended"]
    assert "Running" not in changed["suspended"]
    for name, result in {**client, "ours": managed["ours"]}.items():
        flags = {
            flag: result[flag]
            for flag in ("created", "succeeded", "running", "restarting", "failed")
        }
        assert flags == {
            "created": True,
            "succeeded": True,
            "running": False,
            "restarting": False,
            "failed": False,
        }, name
        assert result["conditions"] >= 2, name
        assert "epoch 1" in str(result["logs"]), name
    pods = {name: result["pods"] for name, result in client.items()}
    assert pods == {
        "changed": ["changed-master-0", "changed-worker-0"],
        "PyTorchJob": ["pytorchjob-master-0", "pytorchjob-worker-0"],
        "TFJob": ["tfjob-worker-0"],
        "XGBoostJob": ["xgboostjob-master-0", "xgboostjob-worker-0"],
        "MPIJob": ["mpijob-launcher", "mpijob-worker-0"],
        "PaddleJob": ["paddlejob-worker-0", "paddlejob-worker-1"],
        "JAXJob": ["jaxjob-worker-0", "jaxjob-worker-1"],
        "from a function": ["from-func-master-0", "from-func-worker-0", "from-func-worker-1"],
        "from an image": ["from-image-master-0"],
    }


async def test_train_jobs_are_trained_followed_and_deleted(
    site: OperatorNamespace, config: Path
) -> None:
    sdk = install_client("kubeflow-trainer", "kubeflow==0.5.0")
    await create_runtimes(site)
    async with site.operator_runs(), run_simulated_kubelet(site, seconds=6.0):
        client = await run_client(sdk, "trainer.py", config, site.space)
    pods = [step.pop(2) for step in client["steps"]]
    assert client["steps"] == [["node-0", "Succeeded", "2"], ["node-1", "Succeeded", "2"]]
    assert [pod.rpartition("-")[0] for pod in pods] == ["digits-node-0-0", "digits-node-0-1"]
    assert "torch-distributed" in client.pop("runtimes")
    assert {*client["seen"]} <= {"Created", "Running", "Complete"}
    assert client["seen"][-1] == "Running", "a job is only shown as running without conditions"
    assert client["logs"] == client["followed"] == ["epoch 1"]
    assert "SuccessfulCreatePod" in client["events"]
    assert (client["status"], client["nodes"]) == ("Complete", 2)
    assert (client["listed"], client["left"]) == (["digits"], [])


async def create_runtimes(site: OperatorNamespace) -> None:
    """Create those of the installation, once for a server."""
    runtimes = runtime_resource("ClusterTrainingRuntime")
    for runtime in list_runtimes():
        await site.client.create_or_patch(runtimes, dict(runtime))


def run_simulated_kubelet(site: OperatorNamespace, *, seconds: float = 2.0) -> FakeKubelet:
    """Return a kubelet whose containers write a line and end well."""
    course = PodScript(run=seconds, log="epoch 1\n")
    return FakeKubelet(
        site.access,
        behaviour=lambda pod: course,
        selection=ListOptions(site.space),
        logs=site.fake.cluster.logs if site.fake is not None else None,
    )


async def run_client(sdk: Path, program: str, config: Path, space: str) -> dict[str, Any]:
    """Return the output of the user's program."""
    result = await anyio.run_process(
        [str(sdk / "bin" / "python"), str(CLIENTS / program), str(config), space],
        env={"PATH": os.environ["PATH"], "HOME": str(config.parent)},
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()[-3000:]
    document: dict[str, Any] = json.loads(result.stdout.decode().splitlines()[-1])
    return document
