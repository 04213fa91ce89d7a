"""The documents of a manifest file: one training job, and the ConfigMaps and Secrets beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from danlu.errors import Span, UsageError
from danlu.lang.finding import suggestion
from danlu.training.framework import Finding, Framework
from danlu.training.yamltext import Places, dump_yaml, read_yaml

__all__ = [
    "API_VERSION",
    "Document",
    "Documents",
    "ManifestError",
    "dump_yaml",
    "read_documents",
]

API_VERSION = "kubeflow.org/v1"

_OBJECTS = ("ConfigMap", "Secret")
# Kinds that often stand beside a job and mean nothing where its replicas run on one machine.
_OTHERS = (
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
# What a server writes into an object: in a file it is somebody's copy, and nothing is asked by it.
_SERVERS = (
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
    """A manifest that asks for nothing danlu could run, with all ``findings``.

    ``lines`` are theirs in the file, one each, where it is known.
    """

    def __init__(
        self,
        message: str,
        *,
        findings: Sequence[Finding] = (),
        lines: Sequence[int] = (),
        hint: str = "",
        span: Span | None = None,
        source_line: str = "",
    ) -> None:
        self.findings = tuple(findings)
        numbers = [f"line {line}: " for line in lines] or [""] * len(findings)
        details = tuple(map(_told, numbers, self.findings))
        super().__init__(message, hint=hint, span=span, source_line=source_line, details=details)


@dataclass(frozen=True, eq=False)
class Document(Mapping[str, Any]):
    """One document of a file: a mapping that knows the lines of its fields."""

    fields: Mapping[str, Any]
    places: Places

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def error(self, message: str, *, path: str = "", hint: str = "") -> ManifestError:
        """An error at the field ``path``."""
        span = self.places.span(path)
        line = self.places.line(span.line)
        return ManifestError(message, hint=hint, span=span, source_line=line)


@dataclass(frozen=True, kw_only=True)
class Documents:
    """What a manifest file holds.

    ``objects`` are its ConfigMaps and Secrets by ``Kind/name``; ``others`` names (in the same way)
    the objects that mean nothing without a cluster.
    """

    file: str
    job: Document
    objects: Mapping[str, Mapping[str, Any]]
    others: tuple[str, ...] = ()


def read_documents(text: str, file: str) -> Documents:
    """Read a manifest of one training job and, if it has them, further objects.

    ``file`` is its name as the user knows it. Raises :class:`ManifestError` for kinds and versions
    nobody knows, for no job and for several, and :class:`YamlError` for what is no YAML.
    """
    found = [one for document in _mappings(text, file) for one in _flattened(document)]
    jobs = [document for document in found if _kind(document) not in _OBJECTS + _OTHERS]
    for document in jobs:
        _check_job_kind(document)
    named = [(_title(document), document) for document in found if document not in jobs]
    objects = {name: document for name, document in named if _kind(document) in _OBJECTS}
    _check_each_once(named)
    return Documents(
        file=file,
        job=_as_written(_only(jobs, file)),
        objects={name: document.fields for name, document in objects.items()},
        others=tuple(name for name, _ in named if name not in objects),
    )


def _told(line: str, finding: Finding) -> str:
    hint = f" ({finding.hint})" if finding.hint else ""
    return f"{line}{finding.path}: {finding.message}{hint}"


def _mappings(text: str, file: str) -> Iterator[Document]:
    for value, places in read_yaml(text, file):
        if not isinstance(value, Mapping):
            raise Document({}, places).error(f"{file} is no manifest: it has no fields")
        yield Document(value, places)


def _flattened(document: Document) -> Iterator[Document]:
    """The document, or the items of the List that it is (``kubectl get -o yaml``)."""
    items = document.get("items")
    if document.get("kind") != "List" or not isinstance(items, list):
        yield document
        return
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise document.error("an item of the List has no fields", path=f"items[{index}]")
        yield Document(item, document.places.below(f"items[{index}]"))


def _kind(document: Document) -> str:
    for name in ("apiVersion", "kind"):
        if not isinstance(document.get(name), str) or not document[name]:
            raise document.error(f"a document of the manifest has no {name}", path=name)
    return str(document["kind"])


def _check_job_kind(document: Document) -> None:
    """That its kind is a framework's and its version ours."""
    kind, version = document["kind"], document["apiVersion"]
    if kind == "TrainJob":
        hint = f"TrainJob is Kubeflow Trainer's second version; danlu runs {', '.join(_kinds())}"
        raise document.error("danlu does not run a TrainJob", path="kind", hint=hint)
    framework = _framework(document)
    if version != API_VERSION:
        message = f"a {framework.kind} of apiVersion '{version}' is not known"
        hint = f"write apiVersion: {API_VERSION}"
        raise document.error(message, path="apiVersion", hint=hint)


def _framework(document: Document) -> Framework:
    from danlu.training.registry import framework_of

    kind = document["kind"]
    try:
        return framework_of(kind)
    except UsageError as error:
        hint = suggestion(kind, [*_kinds(), *_OBJECTS, *_OTHERS]) or f"kinds: {', '.join(_kinds())}"
        raise document.error(f"unknown kind '{kind}'", path="kind", hint=hint) from error


def _kinds() -> list[str]:
    from danlu.training.registry import frameworks

    return sorted(framework.kind for framework in frameworks())


def _title(document: Document) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        raise document.error(f"a {document['kind']} has no name", path="metadata.name")
    return f"{document['kind']}/{name}"


def _check_each_once(named: Sequence[tuple[str, Document]]) -> None:
    seen = set()
    for name, document in named:
        if name in seen:
            raise document.error(f"{name} is there twice", path="metadata.name")
        seen.add(name)


def _only(jobs: Sequence[Document], file: str) -> Document:
    if not jobs:
        kinds = ", ".join(_kinds())
        raise ManifestError(f"{file} has no training job", hint=f"a job is one of: {kinds}")
    if len(jobs) > 1:
        names = ", ".join(str(document["kind"]) for document in jobs)
        message = f"{file} has {len(jobs)} training jobs ({names}); one is run at a time"
        raise jobs[1].error(message, path="kind", hint="give each job a file of its own")
    return jobs[0]


def _as_written(job: Document) -> Document:
    """The job without what only a server writes: its status, its uid, its times."""
    fields = {name: value for name, value in job.items() if name != "status"}
    metadata = fields.get("metadata")
    if isinstance(metadata, Mapping):
        fields["metadata"] = {key: metadata[key] for key in metadata if key not in _SERVERS}
    return Document(fields, job.places)
