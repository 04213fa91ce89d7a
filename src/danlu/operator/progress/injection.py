"""Inject what a replica needs to send reports: a mounted Secret, and environment variables."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from danlu.kube.client import Client
from danlu.kube.errors import AlreadyExists, Invalid
from danlu.kube.patch import json_patch
from danlu.kube.resources import SECRETS
from danlu.kube.types import Key, Manifest
from danlu.operator.progress.credentials import ServerCredentials
from danlu.operator.types import DecoratorError
from danlu.training.frameworks.train_job import INITIALIZERS
from danlu.training.names import REPORTS_ANNOTATION, reports_config_map_name
from danlu.training.progress import CA_CERT, SERVER_URL, TOKEN, status_path
from danlu.training.registry import TRAIN_JOB
from danlu.training.rendering import JOB_ROLE, LEADER_ROLES, REPLICA_TYPE, read_replica_index
from danlu.util.lru import LRUCache

MOUNT_PATH = "/var/run/danlu/reports"
RESULTS_URL = "DANLU_RESULTS_URL"
_VOLUME = "danlu-reports"
_CA_FILE, _TOKEN_FILE = "ca.crt", "token"


def requested_reports(annotations: Mapping[str, str], api_version: str) -> frozenset[str]:
    """Return which of ``progress`` and ``values`` a job requests; a TrainJob always the first."""
    words = {word.strip() for word in annotations.get(REPORTS_ANNOTATION, "").split(",")}
    always = {"progress"} if api_version == TRAIN_JOB.api_version else set()
    return frozenset(words & {"progress", "values"} | always)


class ProgressInjector:
    """A pod decorator for jobs that request reports."""

    def __init__(self, client: Client, credentials: ServerCredentials, *, url: str) -> None:
        self._client = client
        self._credentials = credentials
        self._url = url
        # The uids of jobs whose Secret was created.
        self._created: LRUCache[str, None] = LRUCache()

    async def __call__(self, job: Manifest, pod: Manifest) -> Manifest:
        """Create the Secret of the job, and return ``pod`` with what it needs to send reports.

        Raises :class:`DecoratorError` if a Secret of that name exists and is not the job's.
        """
        metadata = job["metadata"]
        requested = requested_reports(metadata.get("annotations") or {}, job["apiVersion"])
        # As in Kubeflow Trainer, progress is that of the nodes.
        if not requested or pod["metadata"]["labels"].get(REPLICA_TYPE) in INITIALIZERS:
            return pod
        key = Key(pod["metadata"]["namespace"], metadata["name"])
        owner = _controller_owner(pod)
        if owner["uid"] not in self._created:
            await self._create_secret(key, owner)
            self._created.put(owner["uid"], None)
        return inject_reports(pod, key, requested=requested, url=self._url)

    async def _create_secret(self, job: Key, owner: Mapping[str, Any]) -> None:
        token = self._credentials.token(job, owner["uid"]).encode()
        files = {_CA_FILE: self._credentials.ca, _TOKEN_FILE: token}
        data = {name: base64.b64encode(value).decode() for name, value in files.items()}
        metadata = {
            "name": reports_config_map_name(job.name),
            "namespace": job.namespace,
            "labels": {REPORTS_ANNOTATION: "true"},
            "ownerReferences": [owner],
        }
        manifest = SECRETS.to_manifest({"metadata": metadata, "data": data})
        try:
            await self._client.create(SECRETS, manifest)
        except AlreadyExists:
            await self._take_over(job, data, owner)

    async def _take_over(self, job: Key, data: Mapping[str, str], owner: Mapping[str, Any]) -> None:
        """Update a Secret that an earlier job of this name, or an earlier process, created.

        The ``test`` operation checks the label on the server, because the operator has no
        permission to read Secrets.
        """
        name = reports_config_map_name(job.name)
        label = REPORTS_ANNOTATION.replace("/", "~1")
        operations: list[Mapping[str, Any]] = [
            {"op": "test", "path": f"/metadata/labels/{label}", "value": "true"},
            {"op": "replace", "path": "/data", "value": dict(data)},
            {"op": "add", "path": "/metadata/ownerReferences", "value": [owner]},
        ]
        try:
            await self._client.patch(SECRETS, name, json_patch(operations), namespace=job.namespace)
        except Invalid as error:
            raise DecoratorError(
                f"Secret {name} already exists and is not the job's",
                hint="rename it, or the job",
            ) from error


def inject_reports(pod: Manifest, job: Key, *, requested: frozenset[str], url: str) -> Manifest:
    """Return ``pod`` with certificate, token and URL in all containers.

    Environment variables that a container declares itself are kept.
    """
    variables = _env_vars(pod["metadata"].get("labels") or {}, job, requested=requested, url=url)
    volume = {"name": _VOLUME, "secret": {"secretName": reports_config_map_name(job.name)}}
    spec = pod["spec"]
    changed = {
        **spec,
        "volumes": [*(spec.get("volumes") or ()), volume],
        "containers": [_inject_container(container, variables) for container in spec["containers"]],
    }
    return {**pod, "spec": changed}


def _env_vars(
    labels: Mapping[str, str], job: Key, *, requested: frozenset[str], url: str
) -> dict[str, str]:
    replica = f"{labels.get(REPLICA_TYPE, '')}-{read_replica_index(labels)}"
    role = "leader" if labels.get(JOB_ROLE) in LEADER_ROLES else "replicas"
    variables = {
        SERVER_URL: f"{url}/{role}/{replica}{status_path(job.namespace, job.name)}",
        CA_CERT: f"{MOUNT_PATH}/{_CA_FILE}",
        TOKEN: f"{MOUNT_PATH}/{_TOKEN_FILE}",
    }
    if "values" in requested:
        variables[RESULTS_URL] = f"{url}/results/{job.namespace}/{job.name}"
    return variables


def _inject_container(container: Mapping[str, Any], variables: Mapping[str, str]) -> Manifest:
    env = container.get("env") or ()
    declared = {variable.get("name") for variable in env}
    added = [
        {"name": name, "value": value} for name, value in variables.items() if name not in declared
    ]
    mount = {"name": _VOLUME, "mountPath": MOUNT_PATH, "readOnly": True}
    return {
        **container,
        "env": [*env, *added],
        "volumeMounts": [*(container.get("volumeMounts") or ()), mount],
    }


def _controller_owner(pod: Manifest) -> dict[str, Any]:
    owners = pod["metadata"]["ownerReferences"]
    owner: dict[str, Any] = next(owner for owner in owners if owner.get("controller"))
    return owner
