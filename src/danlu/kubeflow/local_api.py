"""What Kubeflow's SDK asks of a cluster, answered from the jobs of this machine.

The methods are those of ``CustomObjectsApi`` and ``CoreV1Api`` of the package ``kubernetes`` that
the SDK calls, with their names and arguments; they return the same objects.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from kubeflow.trainer.constants import constants
from kubeflow_trainer_api import models
from kubernetes.client import ApiException

from danlu.api.jobs import RunOptions, train_target
from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.backends import list_views
from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import JobView, LogLine, ReplicaView
from danlu.submission.options import TrainOptions
from danlu.submission.run import run_in_portal
from danlu.training.frameworks.train_job import FRAMEWORK, INITIALIZERS, LAUNCHER, NODE
from danlu.training.pod_template import pod_spec
from danlu.training.train_job.runtimes import RUNTIME_NAMES, bundled_runtime, name_bundled_runtime
from danlu.training.train_job.schema import API_VERSION
from danlu.training.types import ConditionType, Job, ReplicaId
from danlu.util.yaml_with_lines import read_yaml

T = TypeVar("T")
Fields = Mapping[str, Any]

NAMESPACE = "default"
#: The label of a job with the name of its runtime.
RUNTIME_LABEL = "runtime"

_KINDS = {
    constants.CLUSTER_TRAINING_RUNTIME_PLURAL: "ClusterTrainingRuntime",
    constants.TRAINING_RUNTIME_PLURAL: "TrainingRuntime",
    constants.TRAINJOB_PLURAL: FRAMEWORK.kind,
}
_DEVICES = (
    constants.CPU_LABEL,
    constants.GPU_LABEL,
    constants.GPU_MIG_PREFIX,
    constants.TPU_LABEL,
)
_CONDITIONS = {
    ConditionType.SUCCEEDED: constants.TRAINJOB_COMPLETE,
    ConditionType.FAILED: constants.TRAINJOB_FAILED,
}


@dataclass(frozen=True)
class Response(Generic[T]):
    """What the SDK gets for a request: with ``async_req`` it waits, and then reads the fields."""

    value: T

    def get(self, timeout: float) -> T:
        """Return the response."""
        return self.value

    def to_dict(self) -> T:
        """Return the response as the objects of ``CoreV1Api`` do."""
        return self.value


@dataclass(frozen=True)
class LocalApi:
    """The objects of one client.

    ``options`` are those of new jobs. ``outbox`` is a directory for a job that is submitted, and
    its ``files`` are sent with it.
    """

    options: TrainOptions
    settings: Settings
    outbox: Path = Path()

    @property
    def files(self) -> Path:
        """The directory of the files to send, which may not exist."""
        return self.outbox / "files"

    @property
    def _jobs(self) -> LocalJobs:
        return LocalJobs(self.settings.paths)

    # -- runtimes -----------------------------------------------------------------------------

    def _own_runtimes(self) -> list[Fields]:
        """Return the runtimes of the user's files."""
        files = [self.options.directory / file for file in self.options.further_files]
        return [
            value for file in files for value, _ in read_yaml(file.read_text("utf-8"), str(file))
        ]

    def _list_runtimes(self, kind: str) -> list[Fields]:
        bundled = [bundled_runtime(name) for name in RUNTIME_NAMES]
        runtimes = [*self._own_runtimes(), *filter(None, bundled)]
        own = [runtime for runtime in runtimes if runtime["kind"] == kind]
        # Of several with one name the first: that of the user's file.
        return list({item["metadata"]["name"]: item for item in reversed(own)}.values())[::-1]

    def runs_on_host(self, runtime: str, image: str | None) -> bool:
        """Return whether a job with this runtime, and perhaps an image, runs as processes."""
        if self.options.host_python:
            return True
        names = [item["metadata"]["name"] for item in self._own_runtimes()]
        return not (self.options.env or self.options.image or image or runtime in names)

    # -- custom objects -----------------------------------------------------------------------

    def list_cluster_custom_object(
        self, group: str, version: str, plural: str, **_: Any
    ) -> Response[Fields]:
        """List the runtimes that are for all namespaces."""
        return self.list_namespaced_custom_object(group, version, NAMESPACE, plural)

    def list_namespaced_custom_object(
        self, group: str, version: str, namespace: str, plural: str, **_: Any
    ) -> Response[Fields]:
        """List the TrainJobs or runtimes."""
        kind = _KINDS[plural]
        found = self._list_jobs() if kind == FRAMEWORK.kind else self._list_runtimes(kind)
        return Response({"apiVersion": API_VERSION, "kind": f"{kind}List", "items": found})

    def get_cluster_custom_object(
        self, group: str, version: str, plural: str, name: str, **_: Any
    ) -> Response[Fields]:
        """Return a runtime that is for all namespaces."""
        return self.get_namespaced_custom_object(group, version, NAMESPACE, plural, name)

    def get_namespaced_custom_object(
        self, group: str, version: str, namespace: str, plural: str, name: str, **_: Any
    ) -> Response[Fields]:
        """Return a TrainJob or a runtime."""
        kind = _KINDS[plural]
        if kind == FRAMEWORK.kind:
            return Response(self._read_job(name))
        for runtime in self._list_runtimes(kind):
            if runtime["metadata"]["name"] == name:
                return Response(runtime)
        listed = ", ".join(RUNTIME_NAMES)
        raise ApiException(404, f"{kind} {name} not found; danlu has {listed}")

    def create_namespaced_custom_object(
        self, group: str, version: str, namespace: str, plural: str, body: Fields
    ) -> None:
        """Start a TrainJob."""
        manifest = self.outbox / "trainjob.json"
        # The SDK makes a float of any quantity; an API server would write 1 for 1.0.
        canonical = json.loads(json.dumps(body), parse_float=lambda text: f"{float(text):g}")
        manifest.write_text(json.dumps(canonical), encoding="utf-8")
        runtime = body["spec"]["runtimeRef"]["name"]
        image = (body["spec"].get("trainer") or {}).get("image")
        options = msgspec.structs.replace(
            self.options,
            host_python=self.runs_on_host(runtime, image),
            files=self.files if self.files.exists() else None,
            labels={RUNTIME_LABEL: runtime},
        )
        run = RunOptions(log=None, every=False, detach=True)
        train_target(str(manifest), (), {}, options, run)

    def delete_namespaced_custom_object(
        self, group: str, version: str, namespace: str, plural: str, name: str
    ) -> None:
        """Stop a TrainJob and delete it."""
        _call(self._remove, name)

    # -- pods, events and logs ----------------------------------------------------------------

    def list_namespaced_pod(
        self, namespace: str, label_selector: str, **_: Any
    ) -> Response[Response[Fields]]:
        """List the pods of the TrainJob that the selector names first."""
        name = label_selector.partition(",")[0].partition("=")[2]
        view, job = self._find_job(name)
        # The SDK lists them in this order; a launcher is its first node.
        replicas = sorted(view.replicas, key=lambda replica: replica.id.type != LAUNCHER)
        pods = [_describe_pod(view, replica, job) for replica in replicas]
        return Response(Response({"items": pods}))

    def list_namespaced_event(self, namespace: str, **_: Any) -> Response[Any]:
        """List the events of all TrainJobs."""
        items = [
            {
                "metadata": {"name": f"{view.name}.{number}", "namespace": NAMESPACE},
                "involvedObject": {"kind": FRAMEWORK.kind, "name": view.name},
                "reason": event.reason,
                "message": event.message,
                "type": event.type,
                "firstTimestamp": event.time,
            }
            for view in self._list_views()
            for number, event in enumerate(_call(self._jobs.events, view.name))
        ]
        return Response(models.IoK8sApiCoreV1EventList.from_dict({"items": items}))

    async def read_logs(self, name: str, step: str, *, follow: bool) -> AsyncIterator[LogLine]:
        """Yield the lines of a step of a job."""
        job = (await self._jobs.submission(name)).job
        view = await self._jobs.view(name)
        replicas = [each.id for each in view.replicas if _name_step(job, each.id) == step]
        if replicas:
            async for line in self._jobs.logs(name, replicas=replicas, follow=follow):
                yield line

    # -- jobs ---------------------------------------------------------------------------------

    def _list_views(self) -> list[JobView]:
        return [view for view in _call(list_views, self._jobs) if view.kind == FRAMEWORK.kind]

    def _list_jobs(self) -> list[Fields]:
        found = []
        for view in self._list_views():
            try:
                found.append(self._read_job(view.name))
            except UsageError:
                continue  # deleted since it was listed
        return found

    def _find_job(self, name: str) -> tuple[JobView, Job]:
        view = _call(self._jobs.view, name)
        if view.kind != FRAMEWORK.kind:
            raise UsageError(f"job {name} is a {view.kind}, not a {FRAMEWORK.kind}")
        return view, _call(self._jobs.submission, name).job

    def _read_job(self, name: str) -> Fields:
        view, job = self._find_job(name)
        runtime = view.labels.get(RUNTIME_LABEL, "")
        names = [item["metadata"]["name"] for item in self._own_runtimes()]
        if runtime not in (*names, *RUNTIME_NAMES):
            # It is of a file that this client was not given, or the job is not of a client.
            runtime = name_bundled_runtime(job.options["policy"])
        nodes = job.replica_count(NODE) + bool(job.options.get("runLauncherAsNode"))
        return {
            "apiVersion": API_VERSION,
            "kind": FRAMEWORK.kind,
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "creationTimestamp": view.created,
                "labels": dict(job.labels),
                "annotations": dict(job.annotations),
            },
            "spec": {
                "runtimeRef": {"name": runtime},
                "trainer": {"numNodes": nodes},
            },
            "status": {"conditions": _describe_conditions(view)},
        }

    async def _remove(self, name: str) -> None:
        await self._jobs.stop(name)
        await self._jobs.remove(name)


def _call(function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    return run_in_portal(partial(function, *arguments))


def _describe_conditions(view: JobView) -> list[Fields]:
    """Return the conditions of a TrainJob: only its end."""
    ends: list[Fields] = [
        {
            "type": _CONDITIONS[condition.type],
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": condition.last_transition_time,
        }
        for condition in view.status.conditions
        if condition.type in _CONDITIONS
    ]
    if view.state == "Lost":
        lost = {"type": constants.TRAINJOB_FAILED, "status": "True", "reason": "Lost"}
        ends.append({**lost, "message": "its supervisor died", "lastTransitionTime": view.created})
    return ends


def _describe_container(container: Fields) -> Fields:
    """Return what the SDK reads: the devices. It fails if it knows none of the limits."""
    limits = (container.get("resources") or {}).get("limits") or {}
    known = {name: value for name, value in limits.items() if name.startswith(_DEVICES)}
    return {"name": container["name"], "resources": {"limits": known} if known else None}


def _name_step(job: Job, replica: ReplicaId) -> str:
    """Return the name that the SDK gives a replica: a launcher is the first of the nodes."""
    if replica.type in INITIALIZERS:
        return str(replica.type)
    index = 0 if replica.type == LAUNCHER else job.replica_count(LAUNCHER) + replica.index
    return f"{NODE}-{index}"


def _describe_phase(view: JobView, replica: ReplicaView) -> str:
    """Return the phase of a replica's pod, which has fewer of them."""
    if replica.state == "Stopped":
        return "Succeeded" if view.state == ConditionType.SUCCEEDED else "Failed"
    return "Pending" if replica.state == "Waiting" else replica.state


def _describe_pod(view: JobView, replica: ReplicaView, job: Job) -> Fields:
    containers = pod_spec(job.replicas[replica.id.type].template)["containers"]
    return {
        "metadata": {
            "name": replica.host,
            "namespace": NAMESPACE,
            "labels": {
                constants.JOBSET_NAME_LABEL: view.name,
                constants.JOBSET_RJOB_NAME_LABEL: str(replica.id.type),
                constants.JOB_INDEX_LABEL: str(replica.id.index),
            },
        },
        "spec": {"containers": [_describe_container(item) for item in containers]},
        "status": {"phase": _describe_phase(view, replica)},
    }
