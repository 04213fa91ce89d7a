"""A submission as the documents that are created on a cluster; pure but for the files it sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from danlu.errors import UsageError
from danlu.jobs.kubernetes.parcels import Parcel, files_below, packed
from danlu.jobs.types import Submission
from danlu.kube.types import Document
from danlu.training.cluster import REPORTS, SUBMITTED_LABELS, TIED, code_name, lease_name
from danlu.training.framework import Framework, Template
from danlu.training.frameworks.pods import (
    containers,
    extended,
    main_container,
    with_containers,
    with_spec,
)
from danlu.training.manifest import write_job
from danlu.training.registry import framework_of
from danlu.training.types import Job

__all__ = ["CODE_WORDS", "Ready", "prepared"]

_CODE, _FILES = "code", "files"
_CODE_MOUNT, _FILES_MOUNT = "/run/danlu-code", "/run/danlu-files"
_WORKING = "/workspace"
_TERMINATION = "/dev/termination-log"

CODE_WORDS = ("sh", "-c", f'cp -RL {_CODE_MOUNT}/* . && exec "$0" "$@"')
"""What a program begins with that finds the code that was sent in its working directory: a copy of
it, which it may write to."""

_LABEL = "metadata.labels['training.kubeflow.org/replica-{}']"


class Ready(msgspec.Struct, frozen=True):
    """What is to be created, in this order: the manifest's other objects, code, the job.

    ``lease`` is the name of the Lease that the submitter renews, empty for none.
    """

    framework: Framework
    job: Document
    objects: tuple[Document, ...] = ()
    code: Document | None = None
    lease: str = ""


def prepared(submission: Submission, *, namespace: str, pull_secret: str = "") -> Ready:
    """The documents of a submission in ``namespace``.

    Raises :class:`UsageError` for a manifest of another namespace, for what is too large to be
    sent, and for containers of no image.
    """
    job = submission.job
    framework = framework_of(job.kind)
    if job.namespace not in ("default", namespace):
        raise UsageError(
            f"the manifest is of the namespace {job.namespace}, and jobs go to {namespace}",
            hint=f"say it: --on kubernetes:CONTEXT/{job.namespace}",
        )
    files = files_below(submission.files) if submission.files is not None else {}
    parcel = packed({_CODE: submission.code, _FILES: files})
    changed = _Changed(submission, framework, parcel, pull_secret)
    document = write_job(changed.job(namespace), framework)
    document["metadata"]["namespace"] = namespace
    return Ready(
        framework,
        document,
        tuple(_placed(one, namespace) for one in submission.objects.values()),
        None if parcel.empty else _code(job.name, namespace, parcel),
        lease_name(job.name) if submission.tied else "",
    )


def _placed(document: Mapping[str, Any], namespace: str) -> Document:
    metadata = {**(document.get("metadata") or {}), "namespace": namespace}
    version = "v1" if document.get("kind") in ("ConfigMap", "Secret") else ""
    return {"apiVersion": version, **document, "metadata": metadata}


def _code(name: str, namespace: str, parcel: Parcel) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": code_name(name),
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "danlu"},
        },
        "data": dict(parcel.data),
        "binaryData": dict(parcel.binary),
    }


class _Changed:
    """A submission's job as it goes to a cluster."""

    def __init__(
        self, submission: Submission, framework: Framework, parcel: Parcel, pull_secret: str
    ) -> None:
        self._submission = submission
        self._framework = framework
        self._parcel = parcel
        self._pull_secret = pull_secret

    def job(self, namespace: str) -> Job:
        job = self._submission.job
        replicas = {
            type: msgspec.structs.replace(spec, template=self._template(spec.template))
            for type, spec in job.replicas.items()
        }
        return msgspec.structs.replace(
            job,
            uid="",
            namespace=namespace,
            replicas=replicas,
            annotations={**job.annotations, **self._annotations()},
        )

    def _annotations(self) -> dict[str, str]:
        submission = self._submission
        found = {REPORTS: "progress,values" if self._asks_values else "progress"}
        if submission.tied:
            found[TIED] = lease_name(submission.job.name)
        if submission.labels:
            found[SUBMITTED_LABELS] = msgspec.json.encode(submission.labels).decode()
        return found

    @property
    def _asks_values(self) -> bool:
        return self._submission.value != "none" or self._submission.files is not None

    def _template(self, template: Template) -> Template:
        template = self._with_images(template)
        template = with_spec(
            template, {"containers": [self._surrounded(one) for one in containers(template)]}
        )
        main = main_container(template, self._framework.container)
        template = with_containers(template, self._main(main), main)
        volumes = self._volumes()
        if volumes:
            template = with_spec(template, extended(_spec(template), "volumes", *volumes))
        if self._pull_secret:
            secret = {"name": self._pull_secret}
            template = with_spec(template, extended(_spec(template), "imagePullSecrets", secret))
        return template

    def _with_images(self, template: Template) -> Template:
        images = self._submission.images
        changed = {
            field: [
                {**one, "image": images[one["image"]].name} if one.get("image") in images else one
                for one in _spec(template).get(field) or ()
            ]
            for field in ("initContainers", "containers")
            if _spec(template).get(field)
        }
        return with_spec(template, changed)

    def _surrounded(self, container: Mapping[str, Any]) -> Mapping[str, Any]:
        """With the submission's variables, below those that it has."""
        known = {one.get("name") for one in container.get("env") or ()}
        added = [
            {"name": name, "value": value}
            for name, value in self._submission.environment.items()
            if name not in known
        ]
        return {**container, "env": [*added, *(container.get("env") or ())]} if added else container

    # -- the main container -----------------------------------------------------------------------

    def _main(self, container: Mapping[str, Any]) -> Mapping[str, Any]:
        mounts = []
        if self._parcel.items[_FILES]:
            mounts.append({"name": "danlu-files", "mountPath": _FILES_MOUNT, "readOnly": True})
        if self._parcel.items[_CODE]:
            container = self._with_code(container)
            working = container["workingDir"]
            mounts.append({"name": "danlu-code", "mountPath": _CODE_MOUNT, "readOnly": True})
            mounts.append({"name": "danlu-workspace", "mountPath": working})
        variables = self._variables(container)
        if variables:
            container = {**container, "env": [*variables, *(container.get("env") or ())]}
        return extended(container, "volumeMounts", *mounts) if mounts else container

    def _with_code(self, container: Mapping[str, Any]) -> Mapping[str, Any]:
        command = container.get("command") or ()
        working = container.get("workingDir") or _WORKING
        # Whose image says what it runs waits for others to tell it: it has the directory.
        words = [*CODE_WORDS, *command] if command else []
        return {
            **container,
            **({"command": words} if words else {}),
            "workingDir": working,
        }

    def _variables(self, container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        if self._parcel.items[_FILES]:
            found.append({"name": "DANLU_FILES", "value": _FILES_MOUNT})
        if not self._asks_values:
            return found
        path = container.get("terminationMessagePath") or _TERMINATION
        return [
            *found,
            _of_label("DANLU_REPLICA_TYPE", "type"),
            _of_label("DANLU_REPLICA_INDEX", "index"),
            {"name": "DANLU_REPLICA", "value": "$(DANLU_REPLICA_TYPE)-$(DANLU_REPLICA_INDEX)"},
            {"name": "DANLU_VALUE_OF", "value": self._asked()},
            {"name": "DANLU_TERMINATION_FILE", "value": path},
        ]

    def _asked(self) -> str:
        if self._submission.value == "leader":
            return str(self._framework.leader(self._submission.job))
        return self._submission.value

    def _volumes(self) -> Sequence[Mapping[str, Any]]:
        name = code_name(self._submission.job.name)
        items = self._parcel.items
        found: list[Mapping[str, Any]] = [
            {"name": f"danlu-{word}", "configMap": {"name": name, "items": list(items[word])}}
            for word in (_CODE, _FILES)
            if items[word]
        ]
        if items[_CODE]:
            found.append({"name": "danlu-workspace", "emptyDir": {}})
        return found


def _spec(template: Template) -> Mapping[str, Any]:
    return template.get("spec") or {}


def _of_label(name: str, word: str) -> Mapping[str, Any]:
    reference = {"fieldPath": _LABEL.format(word)}
    return {"name": name, "valueFrom": {"fieldRef": reference}}
