"""Manifest files: their documents, and the errors for invalid files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from danlu.errors import UsageError
from danlu.training.document import ManifestDocument, ManifestError, read_manifest_file
from danlu.training.manifest import read_job
from danlu.util.yaml_with_lines import dump_yaml
from tests.training.manifests import KINDS, framework, manifest

JOB = dump_yaml(manifest())
CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a.txt: hello}\n"
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {key: x}\n"
CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n"


def join_documents(*documents: str) -> str:
    return "---\n".join(documents)


def parse_error(text: str) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        read_manifest_file(text, "job.yaml")
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_parsed(kind: str) -> None:
    document = read_manifest_file(dump_yaml(manifest(kind)), "job.yaml")
    assert dict(document.job) == manifest(kind)
    assert (dict(document.objects), document.others) == ({}, ())


def test_objects_around_the_job_are_accepted_in_any_order() -> None:
    document = read_manifest_file(join_documents(CONFIG, CLAIM, JOB, "", SECRET), "job.yaml")
    assert document.job["kind"] == "PyTorchJob"
    assert list(document.objects) == ["ConfigMap/settings", "Secret/token"]
    assert document.objects["ConfigMap/settings"]["data"] == {"a.txt": "hello"}
    assert document.others == ("PersistentVolumeClaim/data",)


def test_items_of_a_list_are_documents() -> None:
    items = [manifest(), {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}]
    text = dump_yaml({"apiVersion": "v1", "kind": "List", "items": items})
    document = read_manifest_file(text, "all.yaml")
    assert list(document.objects) == ["Secret/s"]
    line = document.job.places.span("spec.pytorchReplicaSpecs[Worker].replicas").line
    assert text.split("\n")[line - 1].strip() == "replicas: 2"


def test_server_fields_are_dropped() -> None:
    document = manifest()
    document["metadata"] |= {"uid": "1", "creationTimestamp": None, "labels": {"a": "b"}}
    document["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    data = read_manifest_file(dump_yaml(document), "job.yaml").job
    assert dict(data["metadata"]) == {"name": "job", "labels": {"a": "b"}}
    assert not read_job(data, framework("PyTorchJob")).status.finished


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("PytorchJbo", "did you mean 'PyTorchJob'?"),
        ("ConfigMapp", "did you mean 'ConfigMap'?"),
        ("PersistentVolumClaim", "did you mean 'PersistentVolumeClaim'?"),
        ("Frobnicator", f"supported kinds: {', '.join(sorted([*KINDS, 'TrainJob']))}"),
    ],
)
def test_unknown_kind_is_an_error_with_line_and_suggestion(kind: str, hint: str) -> None:
    error = parse_error(JOB.replace("PyTorchJob", kind))
    assert error.message == f"unknown kind '{kind}'"
    assert error.hint == hint
    assert (str(error.span), error.source_line) == ("job.yaml:2:1", f"kind: {kind}")


def test_an_older_version_of_a_train_job_is_an_error() -> None:
    error = parse_error("apiVersion: kubeflow.org/v2alpha1\nkind: TrainJob\n")
    assert error.message == "unsupported apiVersion 'kubeflow.org/v2alpha1' of a TrainJob"
    assert error.hint == "write apiVersion: trainer.kubeflow.org/v1alpha1"


@pytest.mark.parametrize("version", ["kubeflow.org/v1beta1", "v1", "kubeflow.org/v2beta1"])
def test_unsupported_api_version_is_an_error(version: str) -> None:
    error = parse_error(JOB.replace("kubeflow.org/v1", version))
    assert error.message == f"unsupported apiVersion '{version}' of a PyTorchJob"
    assert error.hint == "write apiVersion: kubeflow.org/v1"
    assert str(error.span) == "job.yaml:1:1"


@pytest.mark.parametrize("text", ["", "\n\n", "---\n", "# nothing\n", "---\n---\n", CONFIG])
def test_file_without_a_job_is_an_error(text: str) -> None:
    error = parse_error(text)
    assert error.message == "job.yaml contains no training job"
    assert error.hint == f"supported kinds: {', '.join(sorted([*KINDS, 'TrainJob']))}"
    assert error.exit_code == 2


def test_second_job_is_an_error_with_its_line() -> None:
    error = parse_error(join_documents(JOB, CONFIG, JOB))
    assert error.message == (
        "job.yaml contains 2 training jobs (PyTorchJob, PyTorchJob); only one can be run"
    )
    assert error.hint == "put each job in its own file"
    assert error.span is not None
    assert error.span.line > JOB.count("\n")


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("just words\n", "job.yaml is not a manifest: no mapping", "job.yaml:1:1"),
        ("- a\n- b\n", "job.yaml is not a manifest: no mapping", "job.yaml:1:1"),
        ("a: 1\n", "a document of the manifest has no apiVersion", "job.yaml:1:1"),
        ("apiVersion: v1\n", "a document of the manifest has no kind", "job.yaml:1:1"),
        ("apiVersion: v1\nkind: 3\n", "a document of the manifest has no kind", "job.yaml:2:1"),
        ("apiVersion: v1\nkind: Secret\n", "a Secret has no name", "job.yaml:1:1"),
        (join_documents(SECRET, JOB, SECRET), "duplicate object Secret/token", ""),
        (
            "apiVersion: v1\nkind: List\nitems: [a]\n",
            "an item of the List is not a mapping",
            "job.yaml:3:9",
        ),
    ],
)
def test_invalid_manifest_is_an_error_with_line_and_column(
    text: str, message: str, place: str
) -> None:
    error = parse_error(text)
    assert error.message == message
    assert not place or str(error.span) == place


def test_document_is_a_mapping_with_line_numbers() -> None:
    document = read_manifest_file(join_documents(CONFIG, JOB), "job.yaml").job
    assert isinstance(document, ManifestDocument)
    assert len(document) == 4
    lines = join_documents(CONFIG, JOB).split("\n")
    image = "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].image"
    assert lines[document.places.span(image).line - 1].strip() == "image: example/train:1"
    missing = "spec.pytorchReplicaSpecs[worker].template.spec.volumes[3].name"
    assert lines[document.places.span(missing).line - 1].strip() == "spec:"


def test_findings_have_line_numbers() -> None:
    text = JOB.replace("replicas: 2", "replicas: -2").replace("name: job", "name: Job")
    document = read_manifest_file(text, "job.yaml").job
    with pytest.raises(ManifestError) as caught:
        read_job(document, framework("PyTorchJob"))
    error = caught.value
    number = text.split("\n").index("      replicas: -2") + 1
    assert error.message == "the PyTorchJob in job.yaml has 2 errors"
    assert error.details == (
        "line 4: metadata.name: invalid job name 'Job' (use lower-case letters, digits and '-';"
        " start with a letter, don't end with '-')",
        f"line {number}: spec.pytorchReplicaSpecs[Worker].replicas: must not be negative: -2"
        " (0 or more)",
    )
    assert (str(error.span), error.source_line) == ("job.yaml:4:3", "  name: Job")
    assert len(error.findings) == 2


def test_findings_without_a_file_have_no_line_numbers() -> None:
    document = manifest() | {"kind": "TFJob"}
    with pytest.raises(ManifestError) as caught:
        read_job(document, framework("PyTorchJob"))
    assert caught.value.message == "this PyTorchJob has an error"
    assert caught.value.details == ("kind: cannot be 'TFJob' (write PyTorchJob)",)
    assert caught.value.span is None


@pytest.mark.parametrize("wrong", ["a: [", "a: 1\na: 2\n", "a: !!python/object:os.system x\n"])
def test_yaml_library_errors_are_wrapped(wrong: str) -> None:
    with pytest.raises(UsageError):
        read_manifest_file(wrong, "job.yaml")


KIND_SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "small": str.lower,
    "capital": str.upper,
}


@pytest.mark.parametrize("spelling", KIND_SPELLINGS)
def test_mxnet_job_is_an_alias_of_mx_job(spelling: str) -> None:
    document = manifest("MXJob") | {"kind": KIND_SPELLINGS[spelling]("MXNetJob")}
    data = read_manifest_file(dump_yaml(document), "job.yaml").job
    job = read_job(data, framework("MXJob"))
    assert job == read_job(manifest("MXJob"), framework("MXJob"))
    assert job.kind == "MXJob"
