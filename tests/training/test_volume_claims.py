"""Claims that JobSet creates for a runtime: the volumes that pods get, and what is refused.

The runtime is that of Kubeflow Trainer's torchtune-llama3.2-1b
(``manifests/base/runtimes/torchtune/llama3_2/llama3_2_1B.yaml``, 8c0f5059b), shortened; names and
rules are JobSet's (``pkg/controllers/volume_claim_policy.go``, ``pkg/webhooks/jobset_webhook.go``,
08dfbdfd).
"""

from __future__ import annotations

from typing import Any

import pytest

from danlu.training.document import ManifestError
from danlu.training.pod_template import change_templates, pod_spec
from danlu.training.registry import find_job_framework
from danlu.training.train_job.conversion import convert_to_v1
from danlu.training.train_job.writer import write_train_job
from danlu.training.types import Job
from tests.training.train_jobs import read_text, write_and_read

TORCHTUNE = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tuned}
spec:
  runtimeRef: {name: torchtune-llama3.2-1b}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata:
  name: torchtune-llama3.2-1b
  labels:
    trainer.kubeflow.org/framework: torchtune
spec:
  mlPolicy:
    numNodes: 1
    torch: {}
  template:
    spec:
      volumeClaimPolicies:
        - templates:
            - metadata:
                name: initializer
              spec:
                accessModes: ["ReadWriteOnce"]
                resources:
                  requests:
                    storage: 20Gi
      replicatedJobs:
        - name: dataset-initializer
          template:
            metadata:
              labels:
                trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer
            spec:
              template:
                spec:
                  containers:
                    - name: dataset-initializer
                      image: ghcr.io/kubeflow/trainer/dataset-initializer
                      env:
                        - name: STORAGE_URI
                          value: hf://tatsu-lab/alpaca
                      volumeMounts:
                        - mountPath: /workspace
                          name: initializer
        - name: node
          dependsOn:
            - name: dataset-initializer
              status: Complete
          template:
            metadata:
              labels:
                trainer.kubeflow.org/trainjob-ancestor-step: trainer
            spec:
              template:
                spec:
                  containers:
                    - name: node
                      image: ghcr.io/kubeflow/trainer/torchtune-trainer
                      command: [tune, run, dataset.data_dir=/workspace/dataset/data]
                      volumeMounts:
                        - mountPath: /workspace
                          name: initializer
                    - name: logs
                      image: logs:1
"""
CLAIM = {"name": "initializer", "persistentVolumeClaim": {"claimName": "initializer-tuned"}}


def read(*changes: tuple[str, str]) -> Job:
    text = TORCHTUNE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return read_text(text)


def list_volumes(job: Job) -> list[Any]:
    return [pod_spec(spec.template).get("volumes") for spec in job.replicas.values()]


def test_each_pod_that_mounts_a_template_gets_its_claim_as_a_volume() -> None:
    job = read()
    assert list_volumes(job) == [[CLAIM], [CLAIM]]
    assert find_job_framework(job).list_claims(job) == {"initializer-tuned": False}


def test_other_pods_get_no_volume_and_other_volumes_stay() -> None:
    mount = """
                      volumeMounts:
                        - mountPath: /workspace
                          name: initializer
                    - name: logs
                      image: logs:1
"""
    other = """
                    - name: logs
                      image: logs:1
                  volumes: [{name: scratch, emptyDir: {}}]
"""
    job = read((mount, other))
    assert list_volumes(job) == [[CLAIM], [{"name": "scratch", "emptyDir": {}}]]
    assert write_and_read(job) == job


def test_a_written_job_has_its_policies_and_reads_as_the_same_job() -> None:
    retained = (
        "                    storage: 20Gi\n",
        "                    storage: 20Gi\n          retentionPolicy: {whenDeleted: Retain}\n",
    )
    job = read(retained)
    assert find_job_framework(job).list_claims(job) == {"initializer-tuned": True}
    template = write_train_job(job)[0]["spec"]["template"]["spec"]
    assert template["volumeClaimPolicies"] == [
        {
            "templates": [
                {
                    "metadata": {"name": "initializer"},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "20Gi"}},
                    },
                }
            ],
            "retentionPolicy": {"whenDeleted": "Retain"},
        }
    ]
    pods = [each["template"]["spec"]["template"]["spec"] for each in template["replicatedJobs"]]
    assert [pod.get("volumes") for pod in pods] == [None, None]
    assert write_and_read(job) == job


def test_a_claim_that_was_replaced_is_not_written_as_a_policy() -> None:
    directory = {"name": "initializer", "hostPath": {"path": "/data", "type": "Directory"}}
    job = change_templates(
        read(), lambda each: {**each, "spec": {**pod_spec(each), "volumes": [directory]}}
    )
    again = write_and_read(job)
    assert list_volumes(again) == [[directory], [directory]]
    assert find_job_framework(again).list_claims(again) == {}


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        (
            ("                name: initializer\n", "                name: Init\n"),
            "volumeClaimPolicies[0].templates[0].metadata.name",
            "cannot be 'Init': the claim would be called Init-tuned",
        ),
        (
            ("                name: initializer\n", "                name: model\n"),
            "volumeClaimPolicies[0].templates[0].metadata.name",
            "no container of a replicated job has a volumeMount 'model'",
        ),
        (
            (
                "                name: initializer\n",
                "                name: initializer\n                namespace: other\n",
            ),
            "volumeClaimPolicies[0].templates[0].metadata.namespace",
            "must not be set",
        ),
        (
            (
                "            - metadata:\n",
                "            - metadata: {name: initializer}\n            - metadata:\n",
            ),
            "volumeClaimPolicies[0].templates[1].metadata.name",
            "duplicate template initializer",
        ),
        (
            (
                "                spec:\n                  containers:\n",
                "                spec:\n"
                "                  volumes: [{name: initializer, emptyDir: {}}]\n"
                "                  containers:\n",
            ),
            "replicatedJobs[0].template.spec.template.spec.volumes[0].name",
            "conflicts with the template 'initializer' of volumeClaimPolicies",
        ),
        (
            (
                "      replicatedJobs:\n",
                "        - retentionPolicy: {whenDeleted: Sometimes}\n      replicatedJobs:\n",
            ),
            "volumeClaimPolicies[1].retentionPolicy.whenDeleted",
            "Sometimes",
        ),
        (
            ("metadata: {name: tuned}", f"metadata: {{name: {'tuned' * 11}}}"),
            "volumeClaimPolicies[0].templates[0].metadata.name",
            "cannot be 'initializer'",
        ),
    ],
)
def test_what_jobset_refuses_is_refused(change: tuple[str, str], path: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read(change)
    found = {finding.path: finding.message for finding in caught.value.findings}
    assert message in found[f"spec.template.spec.{path}"]


def test_a_job_of_v1_needs_the_claims_to_exist() -> None:
    text = TORCHTUNE
    start, end = (
        text.index("        - name: dataset-initializer"),
        text.index("        - name: node"),
    )
    dependency = text[text.index("          dependsOn:") : text.index("          template:", end)]
    job = read_text(text[:start] + text[end:].replace(dependency, "", 1))
    conversion = convert_to_v1(job, {})
    messages = [finding.message for finding in conversion.lost]
    assert "volumeClaimPolicies cannot be expressed: initializer-tuned must exist" in messages


ASKING = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: asking}
spec:
  runtimeRef: {name: NAME}
  initializer: {model: {storageUri: "hf://gpt2"}, dataset: {storageUri: "s3://team/data"}}
  trainer: {command: [python, train.py]}
"""


@pytest.mark.parametrize(
    "name", ["torch-distributed", "plain-distributed", "deepspeed-distributed"]
)
def test_a_runtime_of_danlu_gets_the_initializers_that_a_job_asks_for(name: str) -> None:
    job = read_text(ASKING.replace("NAME", name))
    steps = ["dataset-initializer", "model-initializer"]
    assert [*job.replicas][:2] == steps
    claim = {
        "name": "initializer",
        "persistentVolumeClaim": {"claimName": "initializer-asking"},
    }
    for type, spec in job.replicas.items():
        pod = pod_spec(spec.template)
        assert pod["volumes"] == [claim]
        (container,) = pod["containers"]
        assert container["volumeMounts"] == [{"name": "initializer", "mountPath": "/workspace"}]
        if type in steps:
            assert container["image"] == f"ghcr.io/kubeflow/trainer/{type}"
        else:
            waits = [each for each in spec.depends_on if each.status == "Complete"]
            assert [each.type for each in waits] == steps
    assert write_and_read(job) == job
