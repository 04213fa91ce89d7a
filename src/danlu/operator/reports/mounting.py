"""Replicas are told where to report: a Secret of their job, mounted, and variables that name it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from danlu.kube.client import Client
from danlu.kube.failures import AlreadyExists, Invalid
from danlu.kube.patches import json_patch
from danlu.kube.resources import SECRETS
from danlu.kube.types import Document, Key
from danlu.operator.reports.keys import Keys
from danlu.operator.types import DecoratorFailed
from danlu.training.cluster import REPORTS, reports_name
from danlu.training.progress import CA_CERT, SERVER_URL, TOKEN, status_path
from danlu.training.rendering import JOB_ROLE, REPLICA_INDEX, REPLICA_TYPE
from danlu.util.recent import Recent

__all__ = ["MOUNT", "RESULTS_URL", "ReportMounts", "asked_for", "with_reports"]

MOUNT = "/var/run/danlu/reports"
RESULTS_URL = "DANLU_RESULTS_URL"
_VOLUME = "danlu-reports"
_CA, _TOKEN = "ca.crt", "token"


def asked_for(annotations: Mapping[str, str]) -> frozenset[str]:
    """What of ``progress`` and ``values`` a job wants to be taken from its replicas."""
    words = {one.strip() for one in annotations.get(REPORTS, "").split(",")}
    return frozenset(words & {"progress", "values"})


class ReportMounts:
    """A pod decorator: what a replica needs to report, where its job asks for that."""

    def __init__(self, client: Client, keys: Keys, *, url: str) -> None:
        self._client = client
        self._keys = keys
        self._url = url
        self._made: Recent[str, None] = Recent()

    async def __call__(self, job: Document, pod: Document) -> Document:
        """``pod`` with the address of reports, once the Secret of its job is there.

        Raises :class:`DecoratorFailed` where another Secret has its name.
        """
        metadata = job["metadata"]
        wanted = asked_for(metadata.get("annotations") or {})
        if not wanted:
            return pod
        key = Key(pod["metadata"]["namespace"], metadata["name"])
        owner = _owner(pod)
        if owner["uid"] not in self._made:
            await self._write(key, owner)
            self._made.put(owner["uid"], None)
        return with_reports(pod, key, wanted=wanted, url=self._url)

    async def _write(self, job: Key, owner: Mapping[str, Any]) -> None:
        texts = {_CA: self._keys.ca, _TOKEN: self._keys.token(job, owner["uid"]).encode()}
        data = {name: base64.b64encode(value).decode() for name, value in texts.items()}
        name = reports_name(job.name)
        metadata = {
            "name": name,
            "namespace": job.namespace,
            "labels": {REPORTS: "true"},
            "ownerReferences": [owner],
        }
        try:
            await self._client.create(
                SECRETS, SECRETS.document({"metadata": metadata, "data": data})
            )
        except AlreadyExists:
            await self._take_over(job, data, owner)

    async def _take_over(self, job: Key, data: Mapping[str, str], owner: Mapping[str, Any]) -> None:
        """That of an earlier job of this name, or ours from before we were started again.

        Whose it is is asked of the server in the same request: Secrets are not ours to read.
        """
        name = reports_name(job.name)
        label = REPORTS.replace("/", "~1")
        changes: list[Mapping[str, Any]] = [
            {"op": "test", "path": f"/metadata/labels/{label}", "value": "true"},
            {"op": "replace", "path": "/data", "value": dict(data)},
            {"op": "add", "path": "/metadata/ownerReferences", "value": [owner]},
        ]
        try:
            await self._client.patch(SECRETS, name, json_patch(changes), namespace=job.namespace)
        except Invalid as error:
            raise DecoratorFailed(
                f"the Secret {name} is there already and is somebody else's",
                hint="rename it, or the job",
            ) from error


def with_reports(pod: Document, job: Key, *, wanted: frozenset[str], url: str) -> Document:
    """``pod`` whose containers find certificate, token and address; variables of its own stay."""
    variables = _variables(pod["metadata"].get("labels") or {}, job, wanted=wanted, url=url)
    volume = {"name": _VOLUME, "secret": {"secretName": reports_name(job.name)}}
    spec = pod["spec"]
    changed = {
        **spec,
        "volumes": [*(spec.get("volumes") or ()), volume],
        "containers": [_told(one, variables) for one in spec["containers"]],
    }
    return {**pod, "spec": changed}


def _variables(
    labels: Mapping[str, str], job: Key, *, wanted: frozenset[str], url: str
) -> dict[str, str]:
    replica = f"{labels.get(REPLICA_TYPE, '')}-{labels.get(REPLICA_INDEX, '')}"
    role = "leader" if labels.get(JOB_ROLE) == "master" else "replicas"
    found = {
        SERVER_URL: f"{url}/{role}/{replica}{status_path(job.namespace, job.name)}",
        CA_CERT: f"{MOUNT}/{_CA}",
        TOKEN: f"{MOUNT}/{_TOKEN}",
    }
    if "values" in wanted:
        found[RESULTS_URL] = f"{url}/results/{job.namespace}/{job.name}"
    return found


def _told(container: Mapping[str, Any], variables: Mapping[str, str]) -> Document:
    own = {one.get("name") for one in container.get("env") or ()}
    added = [{"name": name, "value": value} for name, value in variables.items() if name not in own]
    mount = {"name": _VOLUME, "mountPath": MOUNT, "readOnly": True}
    return {
        **container,
        "env": [*(container.get("env") or ()), *added],
        "volumeMounts": [*(container.get("volumeMounts") or ()), mount],
    }


def _owner(pod: Document) -> dict[str, Any]:
    owners = pod["metadata"]["ownerReferences"]
    found: dict[str, Any] = next(one for one in owners if one.get("controller"))
    return found
