"""Files of manifests: which documents they hold, and what is said of files that are none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from danlu.errors import UsageError
from danlu.training.manifest import Document, ManifestError, dump_yaml, read_documents, read_job
from tests.training.manifests import KINDS, framework, manifest

JOB = dump_yaml(manifest())
CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a.txt: hello}\n"
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {key: x}\n"
CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n"


def joined(*documents: str) -> str:
    return "---\n".join(documents)


def refused(text: str) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        read_documents(text, "job.yaml")
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read(kind: str) -> None:
    found = read_documents(dump_yaml(manifest(kind)), "job.yaml")
    assert dict(found.job) == manifest(kind)
    assert (dict(found.objects), found.others) == ({}, ())


def test_objects_stand_beside_the_job_in_any_order() -> None:
    found = read_documents(joined(CONFIG, CLAIM, JOB, "", SECRET), "job.yaml")
    assert found.job["kind"] == "PyTorchJob"
    assert list(found.objects) == ["ConfigMap/settings", "Secret/token"]
    assert found.objects["ConfigMap/settings"]["data"] == {"a.txt": "hello"}
    assert found.others == ("PersistentVolumeClaim/data",)


def test_the_items_of_a_list_are_documents() -> None:
    items = [manifest(), {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}]
    text = dump_yaml({"apiVersion": "v1", "kind": "List", "items": items})
    found = read_documents(text, "all.yaml")
    assert list(found.objects) == ["Secret/s"]
    line = found.job.places.span("spec.pytorchReplicaSpecs[Worker].replicas").line
    assert text.split("\n")[line - 1].strip() == "replicas: 2"


def test_what_a_server_wrote_is_left_out() -> None:
    document = manifest()
    document["metadata"] |= {"uid": "1", "creationTimestamp": None, "labels": {"a": "b"}}
    document["status"] = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    found = read_documents(dump_yaml(document), "job.yaml").job
    assert dict(found["metadata"]) == {"name": "job", "labels": {"a": "b"}}
    assert not read_job(found, framework("PyTorchJob")).status.finished


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("PytorchJbo", "did you mean 'PyTorchJob'?"),
        ("ConfigMapp", "did you mean 'ConfigMap'?"),
        ("PersistentVolumClaim", "did you mean 'PersistentVolumeClaim'?"),
        ("Frobnicator", f"kinds: {', '.join(sorted(KINDS))}"),
    ],
)
def test_an_unknown_kind_is_an_error_at_its_line_with_the_nearest(kind: str, hint: str) -> None:
    error = refused(JOB.replace("PyTorchJob", kind))
    assert error.message == f"unknown kind '{kind}'"
    assert error.hint == hint
    assert (str(error.span), error.source_line) == ("job.yaml:2:1", f"kind: {kind}")


def test_a_train_job_is_named_for_what_it_is() -> None:
    error = refused("apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\n")
    assert error.message == "danlu does not run a TrainJob"
    assert "second version" in error.hint
    assert "PyTorchJob" in error.hint


@pytest.mark.parametrize("version", ["kubeflow.org/v1beta1", "v1", "kubeflow.org/v2beta1"])
def test_another_version_is_an_error_that_says_which(version: str) -> None:
    error = refused(JOB.replace("kubeflow.org/v1", version))
    assert error.message == f"a PyTorchJob of apiVersion '{version}' is not known"
    assert error.hint == "write apiVersion: kubeflow.org/v1"
    assert str(error.span) == "job.yaml:1:1"


@pytest.mark.parametrize("text", ["", "\n\n", "---\n", "# nothing\n", "---\n---\n", CONFIG])
def test_a_file_without_a_job_is_an_error(text: str) -> None:
    error = refused(text)
    assert error.message == "job.yaml has no training job"
    assert error.hint == f"a job is one of: {', '.join(sorted(KINDS))}"
    assert error.exit_code == 2


def test_several_jobs_are_an_error_at_the_second() -> None:
    error = refused(joined(JOB, CONFIG, JOB))
    assert error.message == (
        "job.yaml has 2 training jobs (PyTorchJob, PyTorchJob); one is run at a time"
    )
    assert error.hint == "give each job a file of its own"
    assert error.span is not None
    assert error.span.line > JOB.count("\n")


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("just words\n", "job.yaml is no manifest: it has no fields", "job.yaml:1:1"),
        ("- a\n- b\n", "job.yaml is no manifest: it has no fields", "job.yaml:1:1"),
        ("a: 1\n", "a document of the manifest has no apiVersion", "job.yaml:1:1"),
        ("apiVersion: v1\n", "a document of the manifest has no kind", "job.yaml:1:1"),
        ("apiVersion: v1\nkind: 3\n", "a document of the manifest has no kind", "job.yaml:2:1"),
        ("apiVersion: v1\nkind: Secret\n", "a Secret has no name", "job.yaml:1:1"),
        (joined(SECRET, JOB, SECRET), "Secret/token is there twice", ""),
        (
            "apiVersion: v1\nkind: List\nitems: [a]\n",
            "an item of the List has no fields",
            "job.yaml:3:9",
        ),
    ],
)
def test_what_is_no_manifest_is_an_error_with_its_place(
    text: str, message: str, place: str
) -> None:
    error = refused(text)
    assert error.message == message
    assert not place or str(error.span) == place


def test_a_document_is_a_mapping_that_knows_its_lines() -> None:
    found = read_documents(joined(CONFIG, JOB), "job.yaml").job
    assert isinstance(found, Document)
    assert len(found) == 4
    lines = joined(CONFIG, JOB).split("\n")
    image = "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].image"
    assert lines[found.places.span(image).line - 1].strip() == "image: example/train:1"
    missing = "spec.pytorchReplicaSpecs[worker].template.spec.volumes[3].name"
    assert lines[found.places.span(missing).line - 1].strip() == "spec:"


def test_findings_have_the_lines_of_the_file() -> None:
    text = JOB.replace("replicas: 2", "replicas: -2").replace("name: job", "name: Job")
    document = read_documents(text, "job.yaml").job
    with pytest.raises(ManifestError) as caught:
        read_job(document, framework("PyTorchJob"))
    error = caught.value
    number = text.split("\n").index("      replicas: -2") + 1
    assert error.message == "the PyTorchJob in job.yaml has 2 errors"
    assert error.details == (
        "line 4: metadata.name: 'Job' cannot be the name of a job (small letters, digits and '-',"
        " a letter first, no '-' last)",
        f"line {number}: spec.pytorchReplicaSpecs[Worker].replicas: must not be negative, as -2 is"
        " (0 or more)",
    )
    assert (str(error.span), error.source_line) == ("job.yaml:4:3", "  name: Job")
    assert len(error.findings) == 2


def test_findings_of_what_is_no_file_have_no_lines() -> None:
    document = manifest() | {"kind": "TFJob"}
    with pytest.raises(ManifestError) as caught:
        read_job(document, framework("PyTorchJob"))
    assert caught.value.message == "this PyTorchJob has an error"
    assert caught.value.details == ("kind: cannot be 'TFJob' (write PyTorchJob)",)
    assert caught.value.span is None


@pytest.mark.parametrize("wrong", ["a: [", "a: 1\na: 2\n", "a: !!python/object:os.system x\n"])
def test_no_error_of_the_yaml_library_gets_out(wrong: str) -> None:
    with pytest.raises(UsageError):
        read_documents(wrong, "job.yaml")


KIND_SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "small": str.lower,
    "capital": str.upper,
}


@pytest.mark.parametrize("spelling", KIND_SPELLINGS)
def test_an_mxnet_job_is_an_mx_job(spelling: str) -> None:
    document = manifest("MXJob") | {"kind": KIND_SPELLINGS[spelling]("MXNetJob")}
    found = read_documents(dump_yaml(document), "job.yaml").job
    job = read_job(found, framework("MXJob"))
    assert job == read_job(manifest("MXJob"), framework("MXJob"))
    assert job.kind == "MXJob"
