"""A fake cluster with an operator and a kubelet, and small jobs for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal

from danlu.jobs.kubernetes.client import KubernetesJobs
from danlu.jobs.kubernetes.objects import job_resource
from danlu.jobs.types import JobView, LogLine, Submission
from danlu.kube.client import Client
from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import NotFound
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from danlu.kube.watch import ListOptions
from danlu.operator.crds import custom_resource_definitions
from danlu.operator.setup import build_manager, open_services
from danlu.operator.types import OperatorSettings
from danlu.training.framework import Framework
from danlu.training.manifest import read_job
from danlu.training.registry import BUILT_IN_FRAMEWORKS, TRAIN_JOB, find_framework
from danlu.training.types import ReplicaId, ReplicaType
from tests.fakes.kubernetes import FakeKubelet, FakeKubernetes
from tests.fakes.kubernetes.container_logs import ContainerLogs
from tests.fakes.kubernetes.pod_script import PodBehaviour, PodScript, SimulatedPod, run_forever
from tests.jobs.kubernetes.pod_runner import run_pod
from tests.kube.servers import ApiServer
from tests.ports import free_port

LIMIT = 60.0
SETTINGS = OperatorSettings(
    metrics_address="", health_address="", status_seconds=0.0, pace={"first": 0.05, "longest": 0.1}
)


class ConnectionProxy:
    """A proxy between a client and a server, whose connections can be cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asked: dict[tuple[asyncio.StreamWriter, asyncio.StreamWriter], bytes] = {}
        self.port = 0

    async def __aenter__(self) -> ConnectionProxy:
        await self.accept_again()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def accept_again(self) -> None:
        """Accept connections, again after :meth:`cut_and_refuse`."""
        self._server = await asyncio.start_server(self._serve_connection, "127.0.0.1", self.port)

    def cut_and_refuse(self) -> None:
        """Break all connections and take no others."""
        self._server.close()
        self.cut()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        # What was aborted is closed in the loop's next turns.
        await asyncio.sleep(0.01)

    def cut(self, about: bytes = b"") -> int:
        """Break the connections that were asked last for something, all that are encrypted; how
        many there were.
        """
        readable = any(asked.startswith(b"GET ") for asked in self._asked.values())
        chosen = [pair for pair, asked in self._asked.items() if about in asked or not readable]
        for pair in chosen:
            for writer in pair:
                writer.transport.abort()
        return len(chosen)

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connect_upstream(reader, writer)
        except asyncio.CancelledError:
            pass  # a handler that is cancelled would be told of as an error
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _connect_upstream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        existing, back = await asyncio.open_connection("127.0.0.1", self._target)
        pair = (writer, back)
        self._asked[pair] = b""

        def record_request(data: bytes) -> None:
            self._asked[pair] = data.partition(b"\r\n")[0]

        try:
            await asyncio.gather(
                self._copy_stream(reader, back, record_request), self._copy_stream(existing, writer)
            )
        finally:
            for side in pair:
                side.transport.abort()
            del self._asked[pair]

    async def _copy_stream(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        told: Callable[[bytes], object] = bytes,
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                told(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()


@dataclass
class JobNamespace:
    """A cluster, and the jobs of its namespace ``space``; ``faked`` is None for a real server."""

    faked: FakeKubernetes | None
    client: Client
    jobs: KubernetesJobs
    courses: dict[str, Callable[[SimulatedPod], PodScript]]
    wire: ConnectionProxy
    kubelet: FakeKubelet | None = None
    space: str = "default"

    @property
    def fake(self) -> FakeKubernetes:
        """The fake, for tests of it alone."""
        assert self.faked is not None
        return self.faked

    def behave(
        self, course: PodScript | Callable[[SimulatedPod], PodScript], pod: str = ""
    ) -> None:
        """Set the script of a pod, or of all other pods."""
        self.courses[pod] = course if callable(course) else (lambda _: course)

    def write(self, pod: str, text: str) -> None:
        """Write a line in the log of a pod's first container."""
        assert self.kubelet is not None
        self.kubelet.write_log(self.space, pod, text.encode())


@asynccontextmanager
async def site_of(
    *,
    operator: bool = True,
    kubelet: bool = True,
    reports: bool = False,
    clock: Clock = REAL_CLOCK,
) -> AsyncIterator[JobNamespace]:
    """Open a cluster with all kinds, optionally with an operator and a kubelet.

    With ``reports`` the operator takes progress and values; ``clock`` is the kubelet's.
    """
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(FakeKubernetes())
        server = ApiServer(ClusterConfig(server=fake.url), fake)
        site = await stack.enter_async_context(
            on_server(server, "default", kubelet=kubelet, clock=clock)
        )
        if operator:
            await stack.enter_async_context(_run_operator(site, reports=reports))
        yield site


@asynccontextmanager
async def real_site_of(server: ApiServer, space: str) -> AsyncIterator[JobNamespace]:
    """A namespace of a real server, with an operator and a simulated kubelet."""
    async with on_server(server, space) as site, _run_operator(site):
        yield site


@asynccontextmanager
async def on_server(
    server: ApiServer, space: str, *, kubelet: bool = True, clock: Clock = REAL_CLOCK
) -> AsyncIterator[JobNamespace]:
    """A namespace of a server, with the definitions of all kinds."""
    courses: dict[str, Callable[[SimulatedPod], PodScript]] = {}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(server.access, manager="tests"))
        await create_crds(client)
        port = int(server.access.server.rpartition(":")[2])
        wire = await stack.enter_async_context(ConnectionProxy(port))
        scheme = server.access.server.partition(":")[0]
        wired = replace(server.access, server=f"{scheme}://127.0.0.1:{wire.port}")
        jobs = KubernetesJobs(wired, namespace=space)
        site = JobNamespace(server.fake, client, jobs, courses, wire, space=space)
        if kubelet:
            logs = server.fake.cluster.logs if server.fake else None
            hands = kubelet_of(server.access, courses, logs, space=space, clock=clock)
            site.kubelet = await stack.enter_async_context(hands)
        yield site


def kubelet_of(
    access: ClusterConfig,
    courses: Mapping[str, Callable[[SimulatedPod], PodScript]],
    logs: ContainerLogs | None,
    *,
    space: str = "",
    clock: Clock = REAL_CLOCK,
) -> FakeKubelet:
    """A kubelet that plays ``courses`` with each pod, with short restart delays."""

    def behaviour(pod: SimulatedPod) -> PodScript:
        chosen: PodBehaviour = courses.get(pod.metadata.name) or courses.get("") or run_forever
        return chosen(pod)

    return FakeKubelet(
        access,
        behaviour=behaviour,
        back_off=0.05,
        logs=logs,
        selection=ListOptions(space),
        clock=clock,
        node=f"node-of-{space}" if space else "simulated",
    )


@asynccontextmanager
async def _run_operator(site: JobNamespace, *, reports: bool = False) -> AsyncIterator[None]:
    address = f"127.0.0.1:{free_port()}" if reports else ""
    settings = msgspec.structs.replace(SETTINGS, reports_address=address, namespace=site.space)
    async with (
        Client(site.client.config, manager="danlu-operator") as client,
        open_services(client, settings, namespace=site.space) as services,
        anyio.create_task_group() as group,
    ):
        group.start_soon(build_manager(client, settings, services=services).run)
        yield
        group.cancel_scope.cancel()


async def create_crds(client: Client) -> None:
    """Create the CRDs of all kinds, and wait until they are served."""
    existing = {crd["metadata"]["name"] for crd in (await client.list(_CRDS)).items}
    for document in custom_resource_definitions((*BUILT_IN_FRAMEWORKS, TRAIN_JOB)):
        if document["metadata"]["name"] not in existing:
            await client.create(_CRDS, document)
    for framework in (*BUILT_IN_FRAMEWORKS, TRAIN_JOB):
        with anyio.fail_after(LIMIT):
            while not await _is_available(client, framework):
                await anyio.sleep(0.05)


async def _is_available(client: Client, framework: Framework) -> bool:
    try:
        await client.list_page(job_resource(framework), limit=1)
    except NotFound:
        return False
    return True


_CRDS = CUSTOM_RESOURCE_DEFINITIONS


def job(
    name: str = "job",
    *,
    workers: int = 1,
    policy: Mapping[str, Any] | None = None,
    restart: str = "Never",
    **container: Any,
) -> Submission:
    """Return a PyTorchJob with ``workers`` workers."""
    main = {
        "name": "pytorch",
        "image": "team/env:1",
        "command": ["python", "train.py"],
        **container,
    }
    template = {"spec": {"containers": [main]}}
    worker = {"replicas": workers, "restartPolicy": restart, "template": template}
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"runPolicy": dict(policy or {}), "pytorchReplicaSpecs": {"Worker": worker}},
    }
    return Submission(read_job(document, find_framework("pytorch")), Path("/project"))


def worker(index: int = 0) -> ReplicaId:
    return ReplicaId(ReplicaType("Worker"), index)


async def wait_for_view(
    site: JobNamespace,
    wanted: Callable[[JobView], bool],
    *,
    name: str = "job",
    seconds: float = LIMIT,
) -> JobView:
    """Wait until ``wanted`` is true for the job, and return its view."""
    with anyio.fail_after(seconds):
        async for view in site.jobs.watch(name):
            if wanted(view):
                return view
    raise AssertionError(f"{name} was over before")


async def lines_of(site: JobNamespace, name: str = "job", **how: Any) -> list[LogLine]:
    with anyio.fail_after(LIMIT):
        return [line async for line in site.jobs.logs(name, **how)]


def running(count: int) -> Callable[[JobView], bool]:
    return lambda view: sum(replica.state == "Running" for replica in view.replicas) == count


class _LogsElsewhere(ContainerLogs):
    """Logs of another event loop."""

    def __init__(self, logs: ContainerLogs, portal: BlockingPortal) -> None:
        super().__init__()
        self._logs = logs
        self._portal = portal

    def write(self, uid: str, container: str, data: bytes, *, run: int, now: datetime) -> None:
        write = partial(self._logs.write, uid, container, data, run=run, now=now)
        self._portal.call(write)


@contextmanager
def open_site_in_threads(root: Path, *, reports: bool = False) -> Iterator[JobNamespace]:
    """Open a cluster whose pods run the programs of their containers below ``root``.

    It lives in a thread, so that programs of this process can use it as users do, and its kubelet
    in another one, so that what it runs can ask the cluster.
    """
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        result = site_of(kubelet=False, reports=reports)
        site = stack.enter_context(portal.wrap_async_context_manager(result))

        def course(pod: SimulatedPod) -> PodScript:
            key = (pod.metadata.namespace, pod.metadata.name)
            document, maps, secrets = portal.call(_has_kubelet_status, site.fake, key)
            existing = root / f"{pod.metadata.name}-{pod.restarts}"
            outcome = run_pod(document, maps, existing, secrets=secrets)
            return PodScript(
                run=0.0, exit_code=outcome.code, log=outcome.log, message=outcome.message
            )

        site.behave(course)
        other = stack.enter_context(start_blocking_portal())
        logs = _LogsElsewhere(site.fake.cluster.logs, portal)
        hands = kubelet_of(ClusterConfig(server=site.fake.url), site.courses, logs)
        stack.enter_context(other.wrap_async_context_manager(hands))
        yield site


def _has_kubelet_status(
    fake: FakeKubernetes, place: tuple[str, str]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A pod, and the ConfigMaps and Secrets there are, by name."""
    cluster = fake.cluster

    def list_objects_by_name(label: str) -> dict[str, Any]:
        return {
            key[1]: obj for key, obj in cluster.storage.of(cluster.kind_by_label(label)).items()
        }

    return (
        cluster.get(cluster.kind_by_label("pods"), *place),
        list_objects_by_name("configmaps"),
        list_objects_by_name("secrets"),
    )


def kubeconfig(site: JobNamespace, path: Path) -> Path:
    """A kubeconfig for the site's server, by the context ``fake``."""
    path.write_text(
        f"""\
apiVersion: v1
kind: Config
current-context: fake
clusters: [{{name: fake, cluster: {{server: "{site.fake.url}"}}}}]
users: [{{name: fake, user: {{token: none}}}}]
contexts: [{{name: fake, context: {{cluster: fake, user: fake}}}}]
"""
    )
    return path
