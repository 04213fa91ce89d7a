"""Every finding has the exact path of its field, a message and a hint."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from danlu.training.document import ManifestError
from danlu.training.framework import FieldError
from danlu.training.manifest import read_job
from danlu.training.types import ReplicaType
from danlu.training.validation import check_job
from tests.training.manifests import KINDS, SIZES, find_mistakes, framework, manifest
from tests.training.mistakes import jobs, kinds, pods
from tests.training.mistakes.manifest_edits import (
    change_container,
    change_worker,
    set_metadata,
    set_run_policy,
    set_spec,
    worker_spec,
)

MISTAKES = {**jobs.CASES, **pods.CASES}
OF_KINDS = kinds.OF_KINDS


def findings(document: dict[str, Any], kind: str = "PyTorchJob") -> list[tuple[str, str, str]]:
    result = find_mistakes(document, framework(kind))
    return [(finding.path, finding.message, finding.hint) for finding in result]


@pytest.mark.parametrize("case", MISTAKES)
def test_finding(case: str) -> None:
    spoil, path, message, hint = MISTAKES[case]
    document = manifest()
    spoil(document)
    assert (path, message, hint) in findings(document)


@pytest.mark.parametrize("case", [case for case in MISTAKES if case not in ("no name", "kind")])
def test_one_mistake_gives_one_finding_or_its_consequence(case: str) -> None:
    spoil, path, *_ = MISTAKES[case]
    document = manifest()
    spoil(document)
    parents = (path.rpartition(".")[0], path.rpartition("[")[0])
    for result, _, _ in findings(document):
        assert result.startswith((path, *filter(None, parents))), result


@pytest.mark.parametrize("case", OF_KINDS)
def test_finding_of_a_kind(case: str) -> None:
    kind, spoil, path, message, hint = OF_KINDS[case]
    document = manifest(kind)
    spoil(document)
    assert (path, message, hint) in findings(document, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_valid_manifest_has_no_findings(kind: str) -> None:
    assert findings(manifest(kind), kind) == []


@pytest.mark.parametrize("kind", KINDS)
def test_run_policy_and_templates_are_validated_for_every_kind(kind: str) -> None:
    it = framework(kind)
    document = manifest(kind)
    set_run_policy(managedBy="nobody", backoffLimit=-1)(document)
    last = list(SIZES[kind])[-1]
    document["spec"][it.replicas_field][last]["template"]["spec"]["containers"][0]["image"] = ""
    at = f"spec.{it.replicas_field}[{last}].template.spec.containers[0].image"
    assert [path for path, _, _ in findings(document, kind)] == sorted(
        [at, "spec.runPolicy.backoffLimit", "spec.runPolicy.managedBy"]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_null_replica_spec_and_unknown_type_are_findings_for_every_kind(kind: str) -> None:
    it = framework(kind)
    document = manifest(kind)
    document["spec"][it.replicas_field] |= {"Driver": {}, next(iter(SIZES[kind])): None}
    paths = {path for path, _, _ in findings(document, kind)}
    base = f"spec.{it.replicas_field}"
    assert {f"{base}[Driver]", f"{base}[{next(iter(SIZES[kind]))}]"} <= paths


def test_mpi_container_may_have_any_name() -> None:
    document = manifest("MPIJob")
    for spec_ in document["spec"]["mpiReplicaSpecs"].values():
        spec_["template"]["spec"]["containers"][0]["name"] = "mpi-program"
    assert findings(document, "MPIJob") == []


def test_longest_valid_name_is_accepted() -> None:
    document = manifest()
    set_metadata(name="a" * 54)(document)
    assert findings(document) == []


@pytest.mark.parametrize("value", [None, ""])
def test_null_and_empty_policies_count_as_absent(value: object) -> None:
    document = manifest()
    set_spec(runPolicy={"cleanPodPolicy": value, "managedBy": value}, elasticPolicy=None)(document)
    change_worker(restartPolicy=value, replicas=None)(document)
    assert findings(document) == []


@pytest.mark.parametrize("amount", [1, 0.5, "1", "500m", "4Gi", "1e3", ".5", "1.5G", "+2"])
def test_resource_quantities_are_accepted_in_every_form(amount: object) -> None:
    document = manifest()
    change_container(
        resources={"limits": {"memory": amount}, "requests": {"cpu": 0, "memory": amount}}
    )(document)
    assert findings(document) == []


@pytest.mark.parametrize("wrong", [None, 0, "x", [], True, 1.5])
@pytest.mark.parametrize("path", ["metadata", "spec", "pytorchReplicaSpecs", "worker", "template"])
def test_wrong_types_are_findings(path: str, wrong: object) -> None:
    document = manifest()
    match path:
        case "metadata" | "spec":
            document[path] = wrong
        case "pytorchReplicaSpecs":
            document["spec"][path] = wrong
        case "worker":
            document["spec"]["pytorchReplicaSpecs"]["Worker"] = wrong
        case _:
            worker_spec(document)[path] = wrong
    assert findings(document)


def test_all_findings_are_collected_and_sorted_by_path() -> None:
    document = manifest()
    set_run_policy(suspend=1, backoffLimit=-1)(document)
    set_metadata(name="X")(document)
    change_container(image=None, args="x")(document)
    paths = [path for path, _, _ in findings(document)]
    assert paths == sorted(paths)
    assert len(paths) == 5


@pytest.mark.parametrize(
    "case", [case for case, (_, path, *_) in pods.CASES.items() if ".template." in path]
)
def test_a_job_that_is_not_from_a_manifest_is_checked_by_the_same_rules(case: str) -> None:
    spoil, path, message, hint = pods.CASES[case]
    document, it = manifest(), framework("PyTorchJob")
    job = read_job(document, it)
    spoil(document)
    worker = ReplicaType("Worker")
    template = worker_spec(document)["template"]
    spec = msgspec.structs.replace(job.replicas[worker], template=template)
    with pytest.raises(ManifestError) as caught:
        check_job(msgspec.structs.replace(job, replicas={**job.replicas, worker: spec}), it)
    assert FieldError(path, message, hint) in caught.value.findings


@pytest.mark.parametrize("name", [5, None, "Mnist", ""])
def test_the_name_of_a_job_that_is_not_from_a_manifest_is_checked(name: Any) -> None:
    it = framework("PyTorchJob")
    job = msgspec.structs.replace(read_job(manifest(), it), name=name)
    with pytest.raises(ManifestError) as caught:
        check_job(job, it)
    assert {finding.path for finding in caught.value.findings} == {"metadata.name"}
