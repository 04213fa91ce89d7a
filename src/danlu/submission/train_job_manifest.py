"""Prepare a TrainJob for a cluster: its manifest is sent with nothing changed but what options set.

Its runtime may be the cluster's, so it is the server that checks and defaults it. What is in the
runtime's templates cannot be changed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from danlu.errors import UsageError
from danlu.submission.options import TrainOptions
from danlu.training.document import ManifestDocument, ManifestFile
from danlu.training.names import KUEUE_QUEUE_LABEL
from danlu.training.pod_template import escape_references


def list_cluster_manifests(
    document: ManifestDocument, documents: ManifestFile, options: TrainOptions
) -> tuple[Mapping[str, Any], ...]:
    """Return the runtimes of a file, and the TrainJob with what the options set.

    Raises :class:`UsageError` for options that a TrainJob on a cluster cannot have, and
    :class:`~danlu.training.document.ManifestError` for one without a name or spec.
    """
    for field, path in (("metadata", "metadata.name"), ("spec", "spec")):
        value = document.get(field)
        if not isinstance(value, Mapping) or (field == "metadata" and not value.get("name")):
            raise document.error(f"a TrainJob has no {path}", path=field)
    refused = {
        "--gpu 0": options.gpu == 0,
        "--grace": options.grace is not None,
        "--finish-timeout": options.finish_timeout is not None,
    }
    given = [flag for flag, value in refused.items() if value]
    if given:
        raise UsageError(
            f"{', '.join(given)} cannot be combined with a TrainJob on a cluster",
            hint="its pods are those of its runtime: edit that, or add spec.runtimePatches",
        )
    job = {**document, "spec": dict(document["spec"])}
    if options.queue:
        metadata = document["metadata"]
        labels = {**(metadata.get("labels") or {}), KUEUE_QUEUE_LABEL: options.queue}
        job["metadata"] = {**metadata, "labels": labels}
        # Whether Kueue itself would suspend it depends on its configuration.
        job["spec"]["suspend"] = True
    manifests = (*(runtime.fields for runtime in documents.runtimes), job)
    if not options.environment:
        return manifests
    variables = options.environment
    env = (job["spec"].get("trainer") or {}).get("env") or ()
    kept = [entry for entry in env if entry.get("name") not in variables]
    added = [{"name": name, "value": escape_references(text)} for name, text in variables.items()]
    return set_trainer_fields(manifests, "-e", env=[*added, *kept])


def set_trainer_fields(
    manifests: Sequence[Mapping[str, Any]], flag: str, **fields: Any
) -> tuple[Mapping[str, Any], ...]:
    """Return the manifests with fields of ``spec.trainer`` of the last one, the TrainJob.

    Raises :class:`UsageError`, naming the ``flag``, for a TrainJob without one.
    """
    *runtimes, job = manifests
    trainer = job["spec"].get("trainer")
    if not isinstance(trainer, Mapping):
        # With an empty one the runtime's ML policy would set variables.
        raise UsageError(
            f"{flag} sets a field of spec.trainer, which the TrainJob does not have",
            hint="add `trainer: {}` to its manifest",
        )
    spec = {**job["spec"], "trainer": {**trainer, **fields}}
    return (*runtimes, {**job, "spec": spec})


def to_plain_manifest(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as plain JSON values."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(document)))
    return plain
