"""Reports of replicas: injected credentials, the HTTPS server, the ConfigMap."""

from __future__ import annotations

import base64
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest

from danlu.errors import UsageError
from danlu.kube.errors import NotFound
from danlu.kube.resources import CONFIG_MAPS, SECRETS
from danlu.operator.progress.credentials import resolve_reports_url
from danlu.operator.progress.report import ProgressReport, ReportSource
from danlu.operator.rbac import REPORTS_SECRET
from danlu.operator.types import runtime_resource
from danlu.training.names import MAX_RESULT_BYTES, REPORTS_ANNOTATION
from danlu.training.progress import TrainingProgress
from danlu.training.train_job.runtimes import bundled_runtime
from tests.operator.operator_namespace import OperatorNamespace, jobs
from tests.ports import free_port

pytestmark = pytest.mark.anyio
BOTH = {"annotations": {REPORTS_ANNOTATION: "progress,values"}}
MOUNT = "/var/run/danlu/reports"


@dataclass
class FakeReplica:
    """The environment of a program in a replica: variables, and the files they name."""

    site: OperatorNamespace
    variables: dict[str, str]
    files: dict[str, bytes]

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.files["ca.crt"].decode())

    @property
    def token(self) -> str:
        return self.files["token"].decode()

    async def send(self, method: str, url: str, body: bytes, token: str = "") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token or self.token}"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, data=body, headers=headers, ssl=self.tls) as answer,
        ):
            return answer.status, json.loads(await answer.read() or b"{}")

    async def tell(self, percentage: int, **options: Any) -> int:
        now = "2026-01-01T00:00:00Z"
        report = {"trainerStatus": {"progressPercentage": percentage, "lastUpdatedTime": now}}
        url = self.variables["KUBEFLOW_TRAINER_SERVER_URL"]
        return (await self.send("POST", url, json.dumps(report).encode(), **options))[0]

    async def put(self, path: str, body: bytes, **options: Any) -> tuple[int, Any]:
        return await self.send(
            "PUT", f"{self.variables['DANLU_RESULTS_URL']}/{path}", body, **options
        )


async def replica(site: OperatorNamespace, name: str) -> FakeReplica:
    """A replica with the environment that a kubelet would set."""
    pod = await site.pod(name)
    container = pod["spec"]["containers"][0]
    mount = next(mount for mount in container["volumeMounts"] if mount["mountPath"] == MOUNT)
    volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"])
    name = volume["secret"]["secretName"]
    secret = await site.client.get(SECRETS, name, namespace=site.space)
    files = {name: base64.b64decode(text) for name, text in secret["data"].items()}
    variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    for variable in ("KUBEFLOW_TRAINER_SERVER_CA_CERT", "KUBEFLOW_TRAINER_SERVER_TOKEN"):
        assert variables[variable].removeprefix(f"{MOUNT}/") in files
    return FakeReplica(site, variables, files)


async def read_report_data(site: OperatorNamespace) -> dict[str, Any]:
    try:
        result = await site.client.get(CONFIG_MAPS, "job-reports", namespace=site.space)
    except NotFound:
        return {}
    return {**result.get("data", {}), **result.get("binaryData", {})}


async def percentage(site: OperatorNamespace) -> int | None:
    text = (await read_report_data(site)).get("progress", "{}")
    return msgspec.json.decode(text, type=TrainingProgress).percentage


async def until(site: OperatorNamespace, number: int) -> None:
    async def there() -> bool:
        return await percentage(site) == number

    await site.eventually(there)


@pytest.fixture
async def reporting(site: OperatorNamespace) -> AsyncIterator[OperatorNamespace]:
    async with site.operator_runs(reports_address=f"127.0.0.1:{free_port()}"):
        yield site


async def test_progress_is_stored_in_the_config_map(reporting: OperatorNamespace) -> None:
    await reporting.submit(metadata=BOTH, Worker=1)
    await reporting.wait_for_pods("job-worker-0")
    worker = await replica(reporting, "job-worker-0")
    assert await worker.tell(40) == 200
    await until(reporting, 40)
    assert await worker.tell(41) == 200
    await until(reporting, 41)
    result = await reporting.client.get(CONFIG_MAPS, "job-reports", namespace=reporting.space)
    uid = (await reporting.job())["metadata"]["uid"]
    assert result["metadata"]["ownerReferences"][0]["uid"] == uid


async def test_danlu_report_is_understood(reporting: OperatorNamespace, tmp_path: Path) -> None:
    await reporting.submit(metadata=BOTH, Worker=1)
    await reporting.wait_for_pods("job-worker-0")
    worker = await replica(reporting, "job-worker-0")
    for name, data in worker.files.items():
        (tmp_path / name).write_bytes(data)
    from danlu.replica_runtime.report import ReportSender

    sender = ReportSender(
        worker.variables["KUBEFLOW_TRAINER_SERVER_URL"],
        str(tmp_path / "token"),
        str(tmp_path / "ca.crt"),
        5.0,
    )
    sender._progress, sender._metrics, sender._has_unsent = (
        {"progressPercentage": 7},
        {"a": "1"},
        True,
    )
    await anyio.to_thread.run_sync(sender.flush)
    await until(reporting, 7)


def make_progress(*points: tuple[float, float]) -> TrainingProgress:
    return TrainingProgress(metrics={"loss": points[-1][1]}, history={"loss": points})


def test_stored_progress_includes_earlier_points_of_the_same_replica() -> None:
    leader, worker = (
        ReportSource.from_path("leader", "master-0"),
        ReportSource.from_path("replicas", "worker-0"),
    )
    first = ProgressReport.from_progress(leader, make_progress((1.0, 5.0), (2.0, 4.0)))
    second = ProgressReport.from_progress(
        leader, make_progress((2.0, 4.0), (3.0, 3.0))
    ).merge_history(first)
    read = ProgressReport.from_data(second.to_data())
    assert read == second
    assert '"history":{"loss":[[1.0,5.0],[2.0,4.0],[3.0,3.0]]}' in second.text
    assert ProgressReport.from_progress(leader, make_progress((9.0, 1.0))).merge_history(
        ProgressReport.from_progress(worker, make_progress((1.0, 5.0)))
    ).text == ('{"metrics":{"loss":1.0},"history":{"loss":[[9.0,1.0]]}}')


async def test_points_of_many_reports_are_kept(reporting: OperatorNamespace) -> None:
    await reporting.submit(metadata=BOTH, Worker=1)
    await reporting.wait_for_pods("job-worker-0")
    worker = await replica(reporting, "job-worker-0")
    url = worker.variables["KUBEFLOW_TRAINER_SERVER_URL"]
    output = {"lastUpdatedTime": "2026-01-01T00:00:00Z"}
    for number in range(5):
        points = [[number + 0.25, number], [number + 0.5, -number]]
        report = {
            "trainerStatus": {**output, "progressPercentage": number},
            "danluPoints": {"loss": points},
        }
        assert (await worker.send("POST", url, json.dumps(report).encode()))[0] == 200
    await until(reporting, 4)
    result = await reporting.client.get(CONFIG_MAPS, "job-reports", namespace=reporting.space)
    history = json.loads(result["data"]["progress"])["history"]
    assert [at for at, _ in history["loss"]] == [
        number + part for number in range(5) for part in (0.25, 0.5)
    ]


async def test_many_reports_are_few_writes(reporting: OperatorNamespace) -> None:
    if reporting.fake is None:
        pytest.skip("requests are counted on the fake")
    await reporting.submit(metadata=BOTH, Worker=1)
    await reporting.wait_for_pods("job-worker-0")
    worker = await replica(reporting, "job-worker-0")
    for number in range(30):
        assert await worker.tell(number) == 200
    await until(reporting, 29)
    writes = [
        request
        for request in reporting.fake.log
        if request.verb in ("create", "patch") and request.resource == "configmaps"
    ]
    assert len(writes) <= 4


@pytest.mark.parametrize(
    ("replicas", "first", "later"),
    [
        ({"Master": 1, "Worker": 1}, "job-master-0", "job-worker-0"),
        ({"Worker": 11}, "job-worker-2", "job-worker-10"),
    ],
    ids=["the leader", "the lower number"],
)
async def test_the_first_replica_counts_even_if_another_reported_earlier(
    reporting: OperatorNamespace, replicas: Any, first: str, later: str
) -> None:
    await reporting.submit(metadata=BOTH, **replicas)
    kinds = [(kind.lower(), index) for kind, count in replicas.items() for index in range(count)]
    await reporting.wait_for_pods(*(f"job-{kind}-{index}" for kind, index in kinds))
    other = await replica(reporting, later)
    counting = await replica(reporting, first)
    await other.tell(10)
    await until(reporting, 10)
    await counting.tell(20)
    await until(reporting, 20)
    assert await other.tell(11) == 200
    await reporting.pass_time(2.0)
    assert await percentage(reporting) == 20


async def test_values_are_kept_by_replica(reporting: OperatorNamespace) -> None:
    await reporting.submit(metadata=BOTH, Worker=2)
    await reporting.wait_for_pods("job-worker-0", "job-worker-1")
    worker = await replica(reporting, "job-worker-0")
    assert (await worker.put("worker-0/value", b"\x80\x00one"))[0] == 200
    assert (await worker.put("worker-1/raised", b"two"))[0] == 200
    assert (await worker.put("worker-0/value", b"three"))[0] == 200
    report_data = await read_report_data(reporting)
    assert base64.b64decode(report_data["value.worker-0"]) == b"three"
    assert base64.b64decode(report_data["raised.worker-1"]) == b"two"


async def test_results_that_are_too_large_are_rejected_with_advice(
    reporting: OperatorNamespace,
) -> None:
    await reporting.submit(metadata=BOTH, Worker=2)
    await reporting.wait_for_pods("job-worker-0", "job-worker-1")
    worker = await replica(reporting, "job-worker-0")
    assert (await worker.put("worker-0/value", os.urandom(MAX_RESULT_BYTES - 1000)))[0] == 200
    code, status = await worker.put("worker-1/value", b"x" * 2000)
    assert (code, status["code"]) == (413, 413)
    assert "volume" in status["message"]
    assert (await worker.put("worker-0/value", b"x" * (MAX_RESULT_BYTES + 1)))[0] == 413
    assert (await worker.put("worker-0/value", os.urandom(MAX_RESULT_BYTES)))[0] == 200


async def test_a_wrong_token_is_rejected(reporting: OperatorNamespace) -> None:
    await reporting.submit(metadata=BOTH, Worker=1)
    await reporting.submit(name="other", metadata=BOTH, Worker=1)
    await reporting.wait_for_pods("job-worker-0", "other-worker-0")
    worker, other = [await replica(reporting, f"{name}-worker-0") for name in ("job", "other")]
    for token in (other.token, "x", "é"):
        assert await worker.tell(50, token=token) == 401
        assert (await worker.put("worker-0/value", b"x", token=token))[0] == 401
    url = worker.variables["KUBEFLOW_TRAINER_SERVER_URL"]
    assert (await worker.send("POST", url.replace("/job/", "/nobody/"), b"{}"))[0] == 401
    assert await read_report_data(reporting) == {}


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "worker-0/value", b"x", 405),
        ("PUT", "worker-0/other", b"x", 404),
        ("PUT", "../x", b"x", 404),
        ("PUT", "worker-x/value", b"x", 404),
    ],
)
async def test_invalid_reports_are_rejected(
    reporting: OperatorNamespace, method: str, path: str, body: bytes, code: int
) -> None:
    await reporting.submit(metadata=BOTH, Worker=1)
    await reporting.wait_for_pods("job-worker-0")
    worker = await replica(reporting, "job-worker-0")
    url = f"{worker.variables['DANLU_RESULTS_URL']}/{path}"
    assert (await worker.send(method, url, body))[0] == code
    url = worker.variables["KUBEFLOW_TRAINER_SERVER_URL"]
    assert (await worker.send("POST", url, b'{"trainerStatus": 7}'))[0] == 422


async def test_reports_of_an_earlier_job_of_the_name_are_not_this_one_s(
    reporting: OperatorNamespace,
) -> None:
    old = {
        "name": "job-reports",
        "namespace": reporting.space,
        "labels": {REPORTS_ANNOTATION: "true"},
    }
    data = {"value.worker-0": base64.b64encode(b"old").decode()}
    await reporting.client.create(
        CONFIG_MAPS, CONFIG_MAPS.to_manifest({"metadata": old, "binaryData": data})
    )
    await reporting.submit(metadata=BOTH, Worker=1)
    await reporting.wait_for_pods("job-worker-0")
    worker = await replica(reporting, "job-worker-0")
    await worker.tell(1)
    await until(reporting, 1)
    assert "value.worker-0" not in await read_report_data(reporting)


async def test_a_config_map_that_is_not_the_jobs_is_not_changed(
    reporting: OperatorNamespace,
) -> None:
    other = {"name": "job-reports", "namespace": reporting.space}
    document = CONFIG_MAPS.to_manifest({"metadata": other, "data": {"mine": "1"}})
    await reporting.client.create(CONFIG_MAPS, document)
    await reporting.submit(metadata=BOTH, Worker=1)
    await reporting.wait_for_pods("job-worker-0")
    worker = await replica(reporting, "job-worker-0")
    code, status = await worker.put("worker-0/value", b"x")
    assert (code, status["message"].endswith("does not belong to this job")) == (409, True)
    assert await worker.tell(1) == 200
    await reporting.pass_time(2.0)
    assert await read_report_data(reporting) == {"mine": "1"}


async def test_a_secret_that_is_not_the_jobs_is_not_changed(reporting: OperatorNamespace) -> None:
    other = {"name": "job-reports", "namespace": reporting.space}
    document = SECRETS.to_manifest({"metadata": other, "stringData": {"mine": "1"}})
    result = await reporting.client.create(SECRETS, document)
    await reporting.submit(metadata=BOTH, Worker=1)
    output = await reporting.wait_for_event("FailedCreatePod")
    assert "Secret job-reports already exists" in output
    found = await reporting.client.get(SECRETS, "job-reports", namespace=reporting.space)
    assert found == result


async def test_a_job_that_reuses_a_name_has_a_new_token(
    reporting: OperatorNamespace,
) -> None:
    await reporting.submit(metadata=BOTH, Worker=1)
    await reporting.wait_for_pods("job-worker-0")
    first = await replica(reporting, "job-worker-0")
    await reporting.client.delete(jobs("PyTorchJob"), "job", namespace=reporting.space)
    await reporting.wait_for_pods()
    await reporting.submit(metadata=BOTH, Worker=1)
    await reporting.wait_for_pods("job-worker-0")
    second = await replica(reporting, "job-worker-0")
    assert first.token != second.token
    assert await second.tell(5, token=first.token) == 401
    assert await second.tell(5) == 200
    await until(reporting, 5)


async def test_progress_of_a_train_job_is_in_its_status(reporting: OperatorNamespace) -> None:
    runtimes = runtime_resource("TrainingRuntime")
    metadata = {"name": "team", "namespace": reporting.space}
    spec = {**(bundled_runtime("torch-distributed") or {})["spec"]}
    await reporting.client.create(
        runtimes, runtimes.to_manifest({"metadata": metadata, "spec": spec})
    )
    train_jobs = jobs("TrainJob")
    job = {"runtimeRef": {"kind": "TrainingRuntime", "name": "team"}, "trainer": {}}
    metadata = {"name": "job", "namespace": reporting.space}
    await reporting.client.create(
        train_jobs, train_jobs.to_manifest({"metadata": metadata, "spec": job})
    )

    async def has_pod() -> bool:
        return bool(await reporting.pods())

    await reporting.eventually(has_pod)
    (name,) = await reporting.pods()
    assert await (await replica(reporting, name)).tell(40) == 200

    async def is_published() -> bool:
        return "trainerStatus" in await reporting.status("TrainJob")

    await reporting.eventually(is_published)
    status = await reporting.status("TrainJob")
    assert status["trainerStatus"]["progressPercentage"] == 40
    await reporting.end(name)
    await reporting.wait_for_state("Complete", "TrainJob")
    assert (await reporting.status("TrainJob"))["trainerStatus"] == status["trainerStatus"]


async def test_a_job_that_requests_no_reports_gets_no_credentials(
    reporting: OperatorNamespace,
) -> None:
    await reporting.submit(Worker=1)
    await reporting.wait_for_pods("job-worker-0")
    pod = await reporting.pod("job-worker-0")
    assert MOUNT not in json.dumps(pod["spec"])
    with pytest.raises(NotFound):
        await reporting.client.get(SECRETS, "job-reports", namespace=reporting.space)


async def test_a_second_operator_has_the_same_key(site: OperatorNamespace) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with site.operator_runs(reports_address=address):
        await site.submit(metadata=BOTH, Worker=1)
        await site.wait_for_pods("job-worker-0")
    worker = await replica(site, "job-worker-0")
    async with site.operator_runs(reports_address=address) as manager:

        async def ready() -> bool:
            return manager.unready_reason == ""

        await site.eventually(ready)
        assert await worker.tell(3) == 200
        await until(site, 3)


async def test_no_secret_is_logged(
    reporting: OperatorNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await reporting.submit(metadata=BOTH, Worker=1)
        await reporting.wait_for_pods("job-worker-0")
        worker = await replica(reporting, "job-worker-0")
        await worker.tell(1, token="wrong-token")
        await worker.put("worker-0/value", b"returned")
    own = await reporting.client.get(SECRETS, REPORTS_SECRET, namespace=reporting.space)
    for secret in (worker.token, "wrong-token", "returned", *own["data"].values()):
        assert secret not in caplog.text


def test_how_replicas_reach_the_server_must_be_known() -> None:
    assert resolve_reports_url("10.0.0.1:9", "") == "https://10.0.0.1:9"
    assert resolve_reports_url(":9", "https://name:1/") == "https://name:1"
    for address in (":9", "0.0.0.0:9", "[::]:9"):
        with pytest.raises(UsageError, match="report server"):
            resolve_reports_url(address, "")
