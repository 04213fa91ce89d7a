"""Manifests to jobs and back: ``kubeflow.org/v1``, read whole or refused with every finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from danlu.training.conversion import build_job, job_document, read_status, status_document
from danlu.training.document import (
    Document,
    Documents,
    ManifestError,
    dump_yaml,
    read_documents,
)
from danlu.training.framework import Finding, Framework
from danlu.training.types import Job
from danlu.training.validation import validate, validate_change

__all__ = [
    "Document",
    "Documents",
    "ManifestError",
    "dump_yaml",
    "read_documents",
    "read_job",
    "read_status",
    "status_document",
    "validate",
    "validate_change",
    "write_job",
]


def read_job(document: Mapping[str, Any], framework: Framework) -> Job:
    """The job that ``document`` asks for, defaults filled in.

    Raises :class:`ManifestError` with all that is wrong, and with the lines of the file where
    ``document`` is one that :func:`read_documents` gave.
    """
    findings = validate(document, framework)
    if findings:
        raise _refused(document, findings, framework)
    return build_job(document, framework)


def write_job(job: Job, framework: Framework | None = None) -> dict[str, Any]:
    """A manifest that reads back as the same job, ``deleting`` aside.

    ``framework`` is that of its kind, looked up where it is not given.
    """
    if framework is None:
        from danlu.training.registry import framework_of

        framework = framework_of(job.kind)
    return job_document(job, framework)


def _refused(
    document: Mapping[str, Any], findings: Sequence[Finding], framework: Framework
) -> ManifestError:
    count = "an error" if len(findings) == 1 else f"{len(findings)} errors"
    if not isinstance(document, Document):
        return ManifestError(f"this {framework.kind} has {count}", findings=findings)
    span = document.places.span(findings[0].path)
    return ManifestError(
        f"the {framework.kind} in {span.file} has {count}",
        findings=findings,
        lines=[document.places.span(finding.path).line for finding in findings],
        span=span,
        source_line=document.places.line(span.line),
    )
