"""Parse and write manifests (``kubeflow.org/v1``). Errors report everything that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from danlu.training.conversion import job_to_manifest, read_status, status_to_manifest
from danlu.training.document import (
    ManifestDocument,
    ManifestError,
    ManifestFile,
    read_manifest_file,
)
from danlu.training.framework import FieldError, Framework
from danlu.training.types import Job
from danlu.training.validation import parse_document, validate, validate_change
from danlu.training.yaml_with_lines import dump_yaml

__all__ = [
    "ManifestDocument",
    "ManifestError",
    "ManifestFile",
    "check_job",
    "dump_yaml",
    "read_job",
    "read_manifest_file",
    "read_status",
    "status_to_manifest",
    "validate",
    "validate_change",
    "write_job",
]


def read_job(document: Mapping[str, Any], framework: Framework) -> Job:
    """Return the job that a manifest describes, with defaults filled in.

    Raises :class:`ManifestError` with all errors, and with their lines if ``document`` comes from
    :func:`read_manifest_file`.
    """
    return _check_document(document, framework)


def check_job(job: Job, framework: Framework) -> Job:
    """Return a job that does not come from a manifest; raises :class:`ManifestError`."""
    return _check_document(job_to_manifest(job, framework), framework, job)


def _check_document(
    document: Mapping[str, Any], framework: Framework, job: Job | None = None
) -> Job:
    job, findings = parse_document(document, framework, job)
    if job is None or findings:
        raise _manifest_error(document, findings, framework)
    return job


def write_job(job: Job, framework: Framework | None = None) -> dict[str, Any]:
    """Return a manifest that parses to the same job again, except for ``deleting``.

    ``framework`` is that of the job's kind; it is looked up if not given.
    """
    if framework is None:
        from danlu.training.registry import find_framework

        framework = find_framework(job.kind)
    return job_to_manifest(job, framework)


def _manifest_error(
    document: Mapping[str, Any], findings: Sequence[FieldError], framework: Framework
) -> ManifestError:
    count = "an error" if len(findings) == 1 else f"{len(findings)} errors"
    if not isinstance(document, ManifestDocument):
        return ManifestError(f"this {framework.kind} has {count}", findings=findings)
    span = document.places.span(findings[0].path)
    return ManifestError(
        f"the {framework.kind} in {span.file} has {count}",
        findings=findings,
        lines=[document.places.span(finding.path).line for finding in findings],
        span=span,
        source_line=document.places.line(span.line),
    )
