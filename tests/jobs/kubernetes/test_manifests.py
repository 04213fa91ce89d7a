"""Objects created for a submission, and programs of their containers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.errors import UsageError
from danlu.graph.processor_level import render_node_terms
from danlu.jobs.kubernetes.manifests import PreparedJob, prepare_job
from danlu.jobs.types import ContainerImage, Submission
from danlu.training.manifest import read_job
from danlu.training.names import LABELS_ANNOTATION, REPORTS_ANNOTATION, SUBMITTER_LEASE_ANNOTATION
from danlu.training.pod_template import require_node_terms
from danlu.training.registry import find_framework
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from tests.jobs.kubernetes.pod_runner import PodRun, run_pod
from tests.jobs.kubernetes.support import job, worker


def template(ready: PreparedJob) -> dict[str, Any]:
    spec = ready.job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def done(ready: PreparedJob, root: Path) -> PodRun:
    framework = find_framework("pytorch")
    result = read_job(ready.job, framework)
    pod = render_pod(result, framework, worker(), ServiceTopology(result, framework))
    maps = {} if ready.code is None else {ready.code["metadata"]["name"]: ready.code}
    return run_pod(pod, maps, root)


def files(root: Path, **content: str) -> dict[str, Path]:
    """Return files by path; in names, ``_`` is ``.`` and ``__`` is ``/``."""
    results = {}
    for name, text in content.items():
        path = name.replace("__", "/").replace("_", ".")
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        results[path] = root / path
    return results


def test_code_is_copied_to_a_writable_working_directory(tmp_path: Path) -> None:
    code = files(
        tmp_path / "code",
        train_py="import pkg.deep.a\nopen('out', 'w').write('x')\nopen('pkg/deep/a.py', 'a')\n",
        pkg__deep__a_py="print('deep')\n",
    )
    submission = msgspec.structs.replace(job(), code=code)
    result = done(prepare_job(submission, namespace="default"), tmp_path / "pod")
    assert (result.code, result.log) == (0, "deep\n")
    assert (result.directory / "out").read_text() == "x"
    # Root may write to everything, so that the program's success says nothing where it runs this.
    assert all(path.stat().st_mode & 0o200 for path in result.directory.rglob("*.py"))


def test_arguments_reach_the_program_unchanged(tmp_path: Path) -> None:
    code = files(tmp_path / "code", train_py="import sys\nprint(sys.argv[1:])\n")
    words = ["python", "train.py", "a b", "$HOME", "--x='y'"]
    submission = msgspec.structs.replace(job(command=words), code=code)
    result = done(prepare_job(submission, namespace="default"), tmp_path / "pod")
    assert result.log == "['a b', '$HOME', \"--x='y'\"]\n"


def test_files_are_in_the_directory_of_danlu_files(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    files(sent, run_py="print('run')\n", values__x_bin="1")
    (sent / "values" / "y.bin").write_bytes(b"\xff\x00")
    words = ["python", "-c", "import os; d = os.environ['DANLU_FILES']; print(os.listdir(d))"]
    submission = msgspec.structs.replace(job(command=words), files=sent)
    result = done(prepare_job(submission, namespace="default"), tmp_path / "pod")
    assert "run.py" in result.log
    assert (tmp_path / "pod" / "danlu-files" / "values" / "y.bin").read_bytes() == b"\xff\x00"


def test_too_large_files_are_rejected_naming_the_largest(tmp_path: Path) -> None:
    code = files(tmp_path, small_py="x", large_py="#" * (1 << 20))
    submission = msgspec.structs.replace(job(), code=code)
    with pytest.raises(UsageError, match="the 2 files to send") as caught:
        prepare_job(submission, namespace="default")
    assert caught.value.details[0].startswith("large.py")
    assert "--env" in caught.value.hint


def test_pushed_images_replace_those_of_the_manifest() -> None:
    pushed = {"team/env:1": ContainerImage("", "registry.example/team/env@sha256:1")}
    submission = msgspec.structs.replace(job(), images=pushed)
    ready = prepare_job(submission, namespace="default", pull_secret="pull")
    spec = template(ready)
    assert spec["containers"][0]["image"] == "registry.example/team/env@sha256:1"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert "affinity" not in spec  # what is not known of an image excludes no node


def test_pods_start_on_nodes_for_their_image() -> None:
    image = ContainerImage("", "registry.example/team/env@sha256:1", "amd64", "x86-64-v3")
    ready = prepare_job(
        msgspec.structs.replace(job(), images={"team/env:1": image}), namespace="default"
    )
    terms = render_node_terms("amd64", "x86-64-v3")
    assert template(ready)["affinity"] == {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    }


def test_pods_keep_the_nodes_that_the_manifest_requires() -> None:
    zones = [{"key": "zone", "operator": "In", "values": [name]} for name in ("a", "b")]
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]} for zone in zones]}
    spec = {
        "affinity": {
            "podAffinity": {"x": 1},
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
        }
    }
    arch, other = ({"key": name, "operator": "Exists"} for name in ("arch", "other"))
    changed = require_node_terms(
        spec, [{"matchExpressions": [arch]}, {"matchExpressions": [other]}]
    )
    nodes = changed["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["matchExpressions"] for term in nodes["nodeSelectorTerms"]] == [
        [zone, added] for zone in zones for added in (arch, other)
    ]
    assert changed["affinity"]["podAffinity"] == {"x": 1}


def test_checkpoints_are_in_the_directory_of_the_jobs_name_on_the_claims_volume() -> None:
    spec = template(prepare_job(job("train"), namespace="default", checkpoint_claim="team"))
    (container,) = spec["containers"]
    assert {"name": "DANLU_CHECKPOINT_DIR", "value": "/run/danlu-checkpoints/train"} in (
        container["env"]
    )
    (mount,) = [
        mount
        for mount in container["volumeMounts"]
        if mount["mountPath"] == "/run/danlu-checkpoints"
    ]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == mount["name"]]
    assert volume["persistentVolumeClaim"] == {"claimName": "team"}
    plain = template(prepare_job(job("train"), namespace="default"))
    assert "volumes" not in plain


def test_variables_of_the_manifest_override_those_of_the_submission() -> None:
    own = [{"name": "A", "value": "manifest"}]
    submission = msgspec.structs.replace(job(env=own), environment={"A": "1", "B": "2"})
    (container,) = template(prepare_job(submission, namespace="default"))["containers"]
    assert container["env"] == [{"name": "B", "value": "2"}, *own]


def test_variables_of_the_submission_are_not_expanded_by_kubernetes() -> None:
    submission = msgspec.structs.replace(job(), environment={"A": "$$", "B": "$(A) $x"})
    (container,) = template(prepare_job(submission, namespace="default"))["containers"]
    values = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (values["A"], values["B"]) == ("$$$$", "$$(A) $x")


def test_danlus_own_fields_are_annotations() -> None:
    submission = msgspec.structs.replace(job(), labels={"call": "f"}, value="leader", tied=True)
    annotations = prepare_job(submission, namespace="here").job["metadata"]["annotations"]
    assert json.loads(annotations[LABELS_ANNOTATION]) == {"call": "f"}
    assert annotations[REPORTS_ANNOTATION] == "progress,values"
    assert annotations[SUBMITTER_LEASE_ANNOTATION] == "job-submitter"


def test_a_manifest_with_another_namespace_is_rejected() -> None:
    submission: Submission = job()
    elsewhere = msgspec.structs.replace(submission.job, namespace="other")
    with pytest.raises(UsageError, match="namespace is other"):
        prepare_job(msgspec.structs.replace(submission, job=elsewhere), namespace="default")


def test_the_result_is_a_valid_manifest_of_the_same_job() -> None:
    ready = prepare_job(job(workers=3), namespace="team")
    read = read_job(ready.job, find_framework("pytorch"))
    assert (read.namespace, read.replicas[worker().type].replicas) == ("team", 3)
