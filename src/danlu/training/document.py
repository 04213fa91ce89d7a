"""Read a manifest file: one training job, with the ConfigMaps and Secrets it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from danlu.errors import Span, UsageError
from danlu.training.framework import FieldError, Framework
from danlu.training.registry import TRAIN_JOB, find_framework, find_version, list_frameworks
from danlu.training.train_job import schema as train_job
from danlu.util.suggest import did_you_mean
from danlu.util.yaml_with_lines import SourceMap, read_yaml

_OBJECT_KINDS = ("ConfigMap", "Secret")
# Kinds that are often in a job's file, and are not needed if its replicas run on this machine.
_CLUSTER_KINDS = (
    "ClusterRole",
    "ClusterRoleBinding",
    "Deployment",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PriorityClass",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
    "StorageClass",
)
# Metadata written by an API server. In a file it is left over from `kubectl get -o yaml`.
_SERVER_FIELDS = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)


class ManifestError(UsageError):
    """A manifest is invalid. ``findings`` has all errors, ``lines`` their lines in the file."""

    def __init__(
        self,
        message: str,
        *,
        findings: Sequence[FieldError] = (),
        lines: Sequence[int] = (),
        hint: str = "",
        span: Span | None = None,
        source_line: str = "",
    ) -> None:
        self.findings = tuple(findings)
        numbers = [f"line {line}: " for line in lines] or [""] * len(findings)
        details = tuple(map(_format_finding, numbers, self.findings))
        super().__init__(message, hint=hint, span=span, source_line=source_line, details=details)


@dataclass(frozen=True, eq=False)
class ManifestDocument(Mapping[str, Any]):
    """One document of a file: a mapping that knows the lines of its fields."""

    fields: Mapping[str, Any]
    places: SourceMap

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def with_name(self, choose: Callable[[str], str]) -> ManifestDocument:
        """Return the document with the name that ``choose`` returns for its ``generateName``."""
        metadata = self.get("metadata")
        if not isinstance(metadata, Mapping):
            return self
        prefix = metadata.get("generateName")
        name = choose(prefix if isinstance(prefix, str) and not metadata.get("name") else "")
        named = {**metadata, "name": name} if name else metadata
        return ManifestDocument({**self.fields, "metadata": named}, self.places)

    def error(self, message: str, *, path: str = "", hint: str = "") -> ManifestError:
        """Return an error that points at the field ``path``."""
        span = self.places.span(path)
        line = self.places.line(span.line)
        return ManifestError(message, hint=hint, span=span, source_line=line)


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """The content of a manifest file.

    ``framework`` is that of the job's kind and version. ``objects`` are its ConfigMaps and Secrets
    by ``Kind/name``; ``runtimes`` are training runtimes; ``others`` are the names of objects that
    have no meaning without a cluster.
    """

    file: str
    job: ManifestDocument
    framework: Framework
    objects: Mapping[str, Mapping[str, Any]]
    runtimes: tuple[ManifestDocument, ...] = ()
    others: tuple[str, ...] = ()


def read_manifest_file(
    text: str, file: str, further: Sequence[tuple[str, str]] = ()
) -> ManifestFile:
    """Parse a manifest with one training job and, optionally, further objects.

    ``file`` is the name for messages. ``further`` are texts and names of files with other objects.
    Raises :class:`ManifestError` for unknown kinds and versions, and unless there is exactly one
    job; raises :class:`YamlError` for invalid YAML.
    """
    found = [
        item
        for content, name in ((text, file), *further)
        for document in _iter_documents(content, name)
        for item in _expand_list(document)
    ]
    other_kinds = _OBJECT_KINDS + _CLUSTER_KINDS + train_job.RUNTIME_KINDS
    jobs = [document for document in found if _document_kind(document) not in other_kinds]
    frameworks = [_find_framework(document) for document in jobs]
    named = [(_kind_and_name(document), document) for document in found if document not in jobs]
    objects = {
        name: document for name, document in named if _document_kind(document) in _OBJECT_KINDS
    }
    _check_each_once(named)
    return ManifestFile(
        file=file,
        job=_strip_server_fields(_single_job(jobs, file)),
        framework=frameworks[0],
        objects={name: document.fields for name, document in objects.items()},
        runtimes=tuple(
            _strip_server_fields(document) for _, document in named if _is_runtime(document)
        ),
        others=tuple(
            name for name, document in named if name not in objects and not _is_runtime(document)
        ),
    )


def invalid_job_error(
    document: Mapping[str, Any], findings: Sequence[FieldError], kind: str
) -> ManifestError:
    """Return the error with all ``findings``, and their lines if ``document`` is from a file.

    ``kind`` is what the document is called.
    """
    count = "an error" if len(findings) == 1 else f"{len(findings)} errors"
    return findings_error(document, findings, kind, f"has {count}")


def findings_error(
    document: Mapping[str, Any], findings: Sequence[FieldError], kind: str, problem: str
) -> ManifestError:
    """Return the error that a document has a ``problem`` (``has 2 errors``): its ``findings``."""
    if not isinstance(document, ManifestDocument):
        return ManifestError(f"this {kind} {problem}", findings=findings)
    span = document.places.span(findings[0].path)
    return ManifestError(
        f"the {kind} in {span.file} {problem}",
        findings=findings,
        lines=[document.places.span(finding.path).line for finding in findings],
        span=span,
        source_line=document.places.line(span.line),
    )


def describe_findings(
    document: Mapping[str, Any], findings: Sequence[FieldError]
) -> tuple[str, ...]:
    """Return a line of text for each finding, as in the error that has them."""
    return () if not findings else findings_error(document, findings, "", "").details


def _format_finding(line: str, finding: FieldError) -> str:
    hint = f" ({finding.hint})" if finding.hint else ""
    return f"{line}{finding.path}: {finding.message}{hint}"


def _iter_documents(text: str, file: str) -> Iterator[ManifestDocument]:
    for value, places in read_yaml(text, file):
        if not isinstance(value, Mapping):
            raise ManifestDocument({}, places).error(f"{file} is not a manifest: no mapping")
        yield ManifestDocument(value, places)


def _expand_list(document: ManifestDocument) -> Iterator[ManifestDocument]:
    """Yield the document, or the items of a List (``kubectl get -o yaml``)."""
    items = document.get("items")
    if document.get("kind") != "List" or not isinstance(items, list):
        yield document
        return
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise document.error("an item of the List is not a mapping", path=f"items[{index}]")
        yield ManifestDocument(item, document.places.subtree(f"items[{index}]"))


def _document_kind(document: ManifestDocument) -> str:
    for name in ("apiVersion", "kind"):
        if not isinstance(document.get(name), str) or not document[name]:
            raise document.error(f"a document of the manifest has no {name}", path=name)
    return str(document["kind"])


def _is_runtime(document: ManifestDocument) -> bool:
    return document["kind"] in train_job.RUNTIME_KINDS


def _find_framework(document: ManifestDocument) -> Framework:
    """Return the framework of a kind and version."""
    version = document["apiVersion"]
    framework = _job_framework(document)
    found = find_version(framework, version)
    if found is None:
        versions = [other.api_version for other in (framework, *framework.other_versions)]
        message = f"unsupported apiVersion '{version}' of a {framework.kind}"
        hint = f"write apiVersion: {' or '.join(versions)}"
        raise document.error(message, path="apiVersion", hint=hint)
    return found


def _job_framework(document: ManifestDocument) -> Framework:
    kind = document["kind"]
    try:
        return find_framework(kind)
    except UsageError as error:
        known = [*_known_kinds(), *_OBJECT_KINDS, *_CLUSTER_KINDS]
        # High enough that batch/v1's Job is not taken for a misspelled TFJob.
        hint = did_you_mean(kind, known, otherwise=_kinds_hint(), template="'{}'", cutoff=0.8)
        raise document.error(f"unknown kind '{kind}'", path="kind", hint=hint) from error


def _known_kinds() -> list[str]:
    return sorted(framework.kind for framework in (*list_frameworks(), TRAIN_JOB))


def _kinds_hint() -> str:
    return f"supported kinds: {', '.join(_known_kinds())}"


def _kind_and_name(document: ManifestDocument) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise document.error(f"a {document['kind']} has no name", path="metadata.name")
    return f"{document['kind']}/{name}"


def _check_each_once(named: Sequence[tuple[str, ManifestDocument]]) -> None:
    seen = set()
    for name, document in named:
        if name in seen:
            raise document.error(f"duplicate object {name}", path="metadata.name")
        seen.add(name)


def _single_job(jobs: Sequence[ManifestDocument], file: str) -> ManifestDocument:
    if not jobs:
        raise ManifestError(f"{file} contains no training job", hint=_kinds_hint())
    if len(jobs) > 1:
        names = ", ".join(str(document["kind"]) for document in jobs)
        message = f"{file} contains {len(jobs)} training jobs ({names}); only one can be run"
        raise jobs[1].error(message, path="kind", hint="put each job in its own file")
    return jobs[0]


def _strip_server_fields(job: ManifestDocument) -> ManifestDocument:
    """Return the job without what only a server writes: status, uid, timestamps."""
    fields = {name: value for name, value in job.items() if name != "status"}
    metadata = fields.get("metadata")
    if isinstance(metadata, Mapping):
        fields["metadata"] = {key: metadata[key] for key in metadata if key not in _SERVER_FIELDS}
    return ManifestDocument(fields, job.places)
