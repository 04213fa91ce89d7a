"""Turn a submission into the manifests to create on a cluster; pure except for reading files.

Files are sent in a ConfigMap, whose keys must not contain slashes. They are numbered, and the
``items`` of volumes restore their paths.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec

from danlu.errors import UsageError
from danlu.graph.processor_level import render_node_terms
from danlu.jobs.trackers import needs_wandb_run, tracker_variables
from danlu.jobs.types import Submission
from danlu.kube.types import Manifest
from danlu.training.framework import Framework, PodTemplate
from danlu.training.manifest import write_job
from danlu.training.names import (
    LABELS_ANNOTATION,
    REPORTS_ANNOTATION,
    SUBMITTER_LEASE_ANNOTATION,
    code_config_map_name,
    submitter_lease_name,
)
from danlu.training.pod_template import (
    append_to,
    change_containers,
    change_templates,
    escape_references,
    find_main_container,
    list_containers,
    pod_spec,
    replace_container,
    replace_spec,
    require_node_terms,
)
from danlu.training.registry import find_job_framework
from danlu.training.types import Job
from danlu.util.human import format_size

MAX_BYTES = 900 << 10
"""Maximum size of all files together: a ConfigMap holds 1 MiB, including keys and metadata."""

_CODE, _FILES = "code", "files"
_CODE_MOUNT, _FILES_MOUNT = "/run/danlu-code", "/run/danlu-files"
_CHECKPOINTS_MOUNT = "/run/danlu-checkpoints"
_DEFAULT_WORKDIR = "/workspace"
_TERMINATION_LOG = "/dev/termination-log"

COPY_CODE_COMMAND = ("sh", "-c", f'cp -RL {_CODE_MOUNT}/* . && exec "$0" "$@"')
"""Prefix of a command that first copies the sent code to its working directory, writable there."""

_PICKLE_VARIABLE = {"name": "DANLU_RESULT_FORM", "value": "pickle"}
_REPLICA_LABEL = "metadata.labels['training.kubeflow.org/replica-{}']"
_FILE_MODE, _EXECUTABLE_MODE = 0o644, 0o755
_MAX_LISTED = 5


class PreparedJob(msgspec.Struct, frozen=True):
    """The manifests to create, in this order: other objects, runtimes, code, the job.

    ``lease`` is the name of the Lease that the submitter renews; empty for none.
    """

    framework: Framework
    job: Manifest
    objects: tuple[Manifest, ...] = ()
    code: Manifest | None = None
    lease: str = ""
    runtimes: tuple[Manifest, ...] = ()


def prepare_job(
    submission: Submission, *, namespace: str, pull_secret: str = "", checkpoint_claim: str = ""
) -> PreparedJob:
    """Return the manifests of a submission to ``namespace``.

    The job's checkpoints are in the directory of its name on the volume of ``checkpoint_claim``.

    Raises :class:`UsageError` for a manifest with a different namespace, and for files that are too
    large to be sent.
    """
    job, manifests = submission.job, submission.manifests
    framework = find_job_framework(job)
    for given in (job.namespace, *(each["metadata"].get("namespace") for each in manifests)):
        if given not in ("default", namespace, None):
            raise UsageError(
                f"the manifest's namespace is {given}, but jobs are submitted to {namespace}",
                hint=f"use --on kubernetes:CONTEXT/{given}",
            )
    objects = tuple(_set_namespace(document, namespace) for document in submission.objects.values())
    if manifests:
        *runtimes, manifest = (_set_namespace(each, namespace) for each in manifests)
        metadata = manifest["metadata"]
        if added := _annotate_labels(submission):
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **added}
        return PreparedJob(framework, manifest, objects, runtimes=tuple(runtimes))
    files = list_files(submission.files) if submission.files is not None else {}
    config_map = pack_files({_CODE: submission.code, _FILES: files})
    rewriter = _JobRewriter(submission, framework, config_map, pull_secret, checkpoint_claim)
    manifest = write_job(rewriter.rewrite(namespace), framework)
    manifest["metadata"]["namespace"] = namespace
    return PreparedJob(
        framework,
        manifest,
        objects,
        None if config_map.is_empty else _build_config_map(job.name, namespace, config_map),
        submitter_lease_name(job.name) if submission.tied else "",
    )


def _annotate_labels(submission: Submission) -> dict[str, str]:
    labels = submission.labels
    return {LABELS_ANNOTATION: msgspec.json.encode(labels).decode()} if labels else {}


def _set_namespace(document: Mapping[str, Any], namespace: str) -> Manifest:
    metadata = {**(document.get("metadata") or {}), "namespace": namespace}
    version = "v1" if document.get("kind") in ("ConfigMap", "Secret") else ""
    return {"apiVersion": version, **document, "metadata": metadata}


def _build_config_map(name: str, namespace: str, config_map: FileConfigMap) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": code_config_map_name(name),
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "danlu"},
        },
        "data": dict(config_map.data),
        "binaryData": dict(config_map.binary),
    }


class _JobRewriter:
    """Adds to a job what it needs on a cluster: images, variables, code and annotations."""

    def __init__(
        self,
        submission: Submission,
        framework: Framework,
        config_map: FileConfigMap,
        pull_secret: str,
        checkpoint_claim: str,
    ) -> None:
        self._submission = submission
        self._framework = framework
        self._config_map = config_map
        self._pull_secret = pull_secret
        self._checkpoint_claim = checkpoint_claim

    def rewrite(self, namespace: str) -> Job:
        job = change_templates(self._submission.job, self._rewrite_template)
        return msgspec.structs.replace(
            job,
            uid="",
            namespace=namespace,
            annotations={**job.annotations, **self._build_annotations()},
        )

    def _build_annotations(self) -> dict[str, str]:
        submission = self._submission
        reports = "progress,values" if self._wants_values else "progress"
        annotations = {REPORTS_ANNOTATION: reports}
        if submission.tied:
            annotations[SUBMITTER_LEASE_ANNOTATION] = submitter_lease_name(submission.job.name)
        return {**annotations, **_annotate_labels(submission)}

    @property
    def _wants_values(self) -> bool:
        return self._submission.value != "none" or self._submission.files is not None

    def _rewrite_template(self, template: PodTemplate) -> PodTemplate:
        template = self._require_nodes(template)
        template = change_containers(template, self._replace_image)
        containers = [self._add_environment(container) for container in list_containers(template)]
        template = replace_spec(template, {"containers": containers})
        main = find_main_container(template, self._framework.container)
        template = replace_container(template, self._rewrite_main(main), main)
        volumes = self._build_volumes()
        if volumes:
            template = replace_spec(template, append_to(pod_spec(template), "volumes", *volumes))
        if self._pull_secret:
            secret = {"name": self._pull_secret}
            spec = append_to(pod_spec(template), "imagePullSecrets", secret)
            template = replace_spec(template, spec)
        return template

    def _require_nodes(self, template: PodTemplate) -> PodTemplate:
        """Let pods start only on nodes whose processors have what the images need."""
        names = {container.get("image", "") for container in list_containers(template)}
        images = [image for name, image in self._submission.images.items() if name in names]
        for image in images:
            if image.architecture:
                terms = render_node_terms(image.architecture, image.level)
                template = replace_spec(template, require_node_terms(pod_spec(template), terms))
        return template

    def _replace_image(self, container: Mapping[str, Any]) -> Mapping[str, Any]:
        image = self._submission.images.get(container.get("image", ""))
        return container if image is None else {**container, "image": image.name}

    def _add_environment(self, container: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the submission's variables, unless the container already has them."""
        env = container.get("env") or ()
        names = {entry.get("name") for entry in env}
        added = [
            {"name": name, "value": escape_references(value)}
            for name, value in self._submission.environment.items()
            if name not in names
        ]
        return {**container, "env": [*added, *env]} if added else container

    # -- the main container -----------------------------------------------------------------------

    def _rewrite_main(self, container: Mapping[str, Any]) -> Mapping[str, Any]:
        mounts = []
        if self._config_map.items[_FILES]:
            mounts.append({"name": "danlu-files", "mountPath": _FILES_MOUNT, "readOnly": True})
        if self._config_map.items[_CODE]:
            container = self._with_code(container)
            workdir = container["workingDir"]
            mounts.append({"name": "danlu-code", "mountPath": _CODE_MOUNT, "readOnly": True})
            mounts.append({"name": "danlu-workspace", "mountPath": workdir})
        container = self._add_tracker_variables(container)
        variables = self._exchange_env(container)
        if self._checkpoint_claim:
            mounts.append({"name": "danlu-checkpoints", "mountPath": _CHECKPOINTS_MOUNT})
            directory = f"{_CHECKPOINTS_MOUNT}/{self._submission.job.name}"
            variables.append({"name": "DANLU_CHECKPOINT_DIR", "value": directory})
        if variables:
            container = {**container, "env": [*variables, *(container.get("env") or ())]}
        return append_to(container, "volumeMounts", *mounts) if mounts else container

    def _add_tracker_variables(self, container: Mapping[str, Any]) -> Mapping[str, Any]:
        env = container.get("env") or ()
        given = {str(entry.get("name")): str(entry.get("value", "")) for entry in env}
        trackers = tracker_variables(self._submission, given)
        added: list[Mapping[str, Any]] = [
            {"name": name, "value": escape_references(value)}
            for name, value in trackers.items()
            if name not in given
        ]
        job = self._submission.job
        if needs_wandb_run(job, self._framework, job.replicas, given):
            value = f"{token_hex(8)}-$(DANLU_REPLICA_TYPE)-$(DANLU_REPLICA_INDEX)"
            known = () if self._wants_values else _REPLICA_VARIABLES
            added = [*known, *added, {"name": "WANDB_RUN_ID", "value": value}]
        changed = (
            {**entry, "value": trackers[entry["name"]]} if entry.get("name") in trackers else entry
            for entry in env
        )
        return {**container, "env": [*added, *changed]} if trackers or added else container

    def _with_code(self, container: Mapping[str, Any]) -> Mapping[str, Any]:
        command = container.get("command") or ()
        workdir = container.get("workingDir") or _DEFAULT_WORKDIR
        # Without a command the image's own runs, as in MPI workers, which wait for commands of the
        # launcher. There is nothing to prepend to.
        words = [*COPY_CODE_COMMAND, *command] if command else []
        return {
            **container,
            **({"command": words} if words else {}),
            "workingDir": workdir,
        }

    def _exchange_env(self, container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the variables of the protocol with ``danlu.replica_runtime``."""
        variables: list[Mapping[str, Any]] = []
        if self._config_map.items[_FILES]:
            variables.append({"name": "DANLU_FILES", "value": _FILES_MOUNT})
        if not self._wants_values:
            return variables
        path = container.get("terminationMessagePath") or _TERMINATION_LOG
        return [
            *variables,
            *_REPLICA_VARIABLES,
            {"name": "DANLU_REPLICA", "value": "$(DANLU_REPLICA_TYPE)-$(DANLU_REPLICA_INDEX)"},
            {"name": "DANLU_VALUE_OF", "value": self._value_source()},
            {"name": "DANLU_TERMINATION_FILE", "value": path},
            *([_PICKLE_VARIABLE] if self._submission.trusted else []),
        ]

    def _value_source(self) -> str:
        if self._submission.value == "leader":
            return str(self._framework.leader(self._submission.job))
        return self._submission.value

    def _build_volumes(self) -> Sequence[Mapping[str, Any]]:
        name = code_config_map_name(self._submission.job.name)
        items = self._config_map.items
        volumes: list[Mapping[str, Any]] = [
            {"name": f"danlu-{tree}", "configMap": {"name": name, "items": list(items[tree])}}
            for tree in (_CODE, _FILES)
            if items[tree]
        ]
        if items[_CODE]:
            volumes.append({"name": "danlu-workspace", "emptyDir": {}})
        if self._checkpoint_claim:
            claim = {"claimName": self._checkpoint_claim}
            volumes.append({"name": "danlu-checkpoints", "persistentVolumeClaim": claim})
        return volumes


def _env_from_label(name: str, label: str) -> Mapping[str, Any]:
    reference = {"fieldPath": _REPLICA_LABEL.format(label)}
    return {"name": name, "valueFrom": {"fieldRef": reference}}


_REPLICA_VARIABLES = (
    _env_from_label("DANLU_REPLICA_TYPE", "type"),
    _env_from_label("DANLU_REPLICA_INDEX", "index"),
)


# -- files in a ConfigMap -------------------------------------------------------------------------


class FileConfigMap(msgspec.Struct, frozen=True):
    """The content of a ConfigMap, and the items of the volume of each tree of files in it."""

    data: Mapping[str, str] = {}
    binary: Mapping[str, str] = {}
    items: Mapping[str, tuple[Mapping[str, Any], ...]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there are no files."""
        return not any(self.items.values())


def pack_files(trees: Mapping[str, Mapping[str, Path]]) -> FileConfigMap:
    """Pack several trees, each a mapping of relative paths to files, into one ConfigMap.

    Raises :class:`UsageError`, naming the largest files, if they exceed :data:`MAX_BYTES`, and for
    files that cannot be read.
    """
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    items: dict[str, tuple[Mapping[str, Any], ...]] = {}
    sizes: dict[str, int] = {}
    for tree, files in trees.items():
        entries = []
        for number, (path, source) in enumerate(sorted(files.items())):
            key, content = f"{tree}-{number:04}", _read_content(source)
            sizes[path] = len(content)
            _add_content(content, key, data, binary)
            # Modes of copies, which belong to the container's user, who may then write to them.
            mode = _EXECUTABLE_MODE if os.access(source, os.X_OK) else _FILE_MODE
            entries.append({"key": key, "path": path, "mode": mode})
        items[tree] = tuple(entries)
    _check_total_size(sizes)
    return FileConfigMap(data, binary, items)


def _add_content(content: bytes, key: str, data: dict[str, str], binary: dict[str, str]) -> None:
    try:
        # Text is stored as such, so that people can read what was sent.
        data[key] = content.decode()
    except UnicodeDecodeError:
        binary[key] = base64.b64encode(content).decode()


def _read_content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot send {path} with the job: {error.strerror}") from error


def _check_total_size(sizes: Mapping[str, int]) -> None:
    total = sum(sizes.values())
    if total <= MAX_BYTES:
        return
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_MAX_LISTED]
    raise UsageError(
        f"the {len(sizes)} files to send with the job are too large: {format_size(total)}, but a"
        f" ConfigMap holds {format_size(MAX_BYTES)}",
        details=tuple(f"{name}: {format_size(sizes[name])}" for name in largest),
        hint="copy them into the image with io.copy in the build file, and pass it with --env",
    )


def list_files(directory: Path) -> dict[str, Path]:
    """Return all files below a directory, by relative path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path for path in files}
