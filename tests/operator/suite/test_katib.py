"""``-o katib``: Katib runs the sweep, its pods are found, and it reads their metrics and their end.

What Katib does is done here as its sources do: placeholders (``pkg/controller.v1beta1/experiment/
manifest``), the command (``pkg/webhook/v1beta1/pod/utils.go``), and the collector
(``pkg/metricscollector/v1beta1``).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.kube.manager import Manager
from danlu.kube.resources import PODS
from danlu.operator.types import runtime_resource
from danlu.replica_runtime.report import report
from danlu.submission.katib import build_experiment
from danlu.submission.kind_conversion import convert_planned_job
from danlu.submission.options import TrainOptions
from danlu.submission.plan import format_documents, list_documents, plan_job
from danlu.sweeps.options import parse_sweep_options
from danlu.util.yaml_with_lines import read_yaml
from tests.operator.operator_namespace import OperatorNamespace, jobs

#: The collector's default filter.
FILTER = re.compile(r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)", re.ASCII)
#: The labels of the primary pod in an Experiment without any.
DEFAULT_LABELS = {
    "PyTorchJob": {"training.kubeflow.org/job-role": "master"},
    "TrainJob": {
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "batch.kubernetes.io/job-completion-index": "0",
    },
}
VALUES = {"lr": "0.01", "opt": "adam w"}
SPACE = ("lr=0.01,0.1", "opt=adam w,sgd")


def render(
    settings: Settings, project: Path, *space: str, kind: str = "", **fields: Any
) -> list[dict[str, Any]]:
    """Return the documents of a sweep over ``space`` of a script."""
    sweep = {
        key: fields.pop(key)
        for key in ("metric", "goal", "pattern", "parallel", "trials")
        if key in fields
    }
    (project / "train.py").write_text("import torch\n")
    options = TrainOptions(
        directory=project, script="train.py", image="example/train:1", name="digits", **fields
    )
    planned = plan_job(options, settings=settings)
    if kind:
        planned, _ = convert_planned_job(planned, kind)
    text = format_documents(build_experiment(planned, parse_sweep_options(space, **sweep)), "yaml")
    documents: list[dict[str, Any]] = []
    for value, _ in read_yaml(text, "experiment.yaml"):
        assert isinstance(value, dict)
        documents.append(value)
    return documents


def start_trial(experiment: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Return a trial's job, as Katib's controller creates it."""
    template = experiment["spec"]["trialTemplate"]
    text = json.dumps(template["trialSpec"])
    for parameter in template["trialParameters"]:
        placeholder = f"${{trialParameters.{parameter['name']}}}"
        assert placeholder in text  # else the Experiment is refused
        text = text.replace(placeholder, values[parameter["reference"]])
    assert "${trialParameters" not in text
    job: dict[str, Any] = json.loads(text)
    assert not {"name", "namespace"} & job.get("metadata", {}).keys()
    return {**job, "metadata": {**job.get("metadata", {}), "name": "job"}}


def wrap_command(container: Mapping[str, Any], file: Path) -> list[str]:
    """Return the command of the primary container, whose output the collector reads."""
    words = [*container["command"], *container.get("args", ())]
    command = ["sh", "-c"]
    if words[0] in ("sh", "bash") and words[1] == "-c":
        command, words = words[:2], words[2:]
    line = " ".join([*words, f"1>{file} 2>&1", "&&", f"echo completed > {file.parent}/$$.pid"])
    return [*command, line]


def collect(lines: Sequence[str], *metrics: str) -> list[tuple[str, str]]:
    """Return the values of metrics in a log."""
    found = (
        match
        for line in lines
        if any(metric in line for metric in metrics)
        for match in FILTER.finditer(line)
    )
    return [(match[1], match[2]) for match in found if match[1] in metrics]


def meets(condition: str, job: Mapping[str, Any]) -> bool:
    """Return whether Katib's condition, a GJSON path, is true."""
    wanted = re.fullmatch(
        r'status\.conditions\.#\(type=="(\w+)"\)#\|#\(status=="True"\)#', condition
    )
    assert wanted
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any((each["type"], each["status"]) == (wanted[1], "True") for each in conditions)


def find_container(job: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the container with that name."""
    ((container,),) = (
        [each for each in replica["template"]["spec"]["containers"] if each["name"] == name]
        for replica in job["spec"]["pytorchReplicaSpecs"].values()
    )
    assert isinstance(container, dict)
    return container


def test_the_space_of_a_sweep_is_katibs(settings: Settings, tmp_path: Path) -> None:
    space = ("lr=1e-4:1e-1:log", "depth=2:6", "width=8:128:log5", "drop=0.1:0.5:0.2", "opt=a,b")
    (grid,) = render(settings, tmp_path, *space)
    (search,) = render(
        settings, tmp_path, *space, trials=20, parallel=2, metric="accuracy", goal="max"
    )
    assert {each["name"]: each["feasibleSpace"]["list"] for each in grid["spec"]["parameters"]} == {
        "lr": ["0.0001", "0.001", "0.01", "0.1"],
        "depth": ["2", "3", "4", "5", "6"],
        "width": ["8", "16", "32", "64", "128"],
        "drop": ["0.1", "0.3", "0.5"],
        "opt": ["a", "b"],
    }
    assert (grid["spec"]["algorithm"], grid["spec"]["maxTrialCount"]) == (
        {"algorithmName": "grid"},
        4 * 5 * 5 * 3 * 2,
    )
    described = {
        each["name"]: {"type": each["parameterType"], **each["feasibleSpace"]}
        for each in search["spec"]["parameters"]
    }
    assert described == {
        "lr": {"type": "double", "min": "0.0001", "max": "0.1", "distribution": "logUniform"},
        "depth": {"type": "int", "min": "2", "max": "6"},
        "width": {"type": "int", "min": "8", "max": "128", "distribution": "logUniform"},
        "drop": {"type": "double", "min": "0.1", "max": "0.5", "step": "0.2"},
        "opt": {"type": "categorical", "list": ["a", "b"]},
    }
    assert search["spec"]["objective"] == {
        "type": "maximize",
        "objectiveMetricName": "accuracy",
    }
    assert (search["spec"]["algorithm"], search["spec"]["maxTrialCount"]) == (
        {"algorithmName": "tpe"},
        20,
    )
    assert search["spec"]["parallelTrialCount"] == 2


@pytest.mark.parametrize(
    ("value", "fields", "message"),
    [
        ("lr=1,2", {"pattern": r"loss (\S+)"}, "no equivalent in Katib"),
        ("opt=a,b'", {}, "a value of opt contains a quote"),
    ],
)
def test_what_katib_cannot_do_is_refused(
    settings: Settings, tmp_path: Path, value: str, fields: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        render(settings, tmp_path, value, **fields)


def test_placeholders_of_a_trial_survive_in_a_manifest(settings: Settings, tmp_path: Path) -> None:
    words = ["train.py", "--lr=${trialParameters.learningRate}"]
    container = {"name": "pytorch", "image": "example/train:1", "command": words}
    replica = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "trial"},
        "spec": {"pytorchReplicaSpecs": {"Master": replica}},
    }
    options = TrainOptions(directory=tmp_path, file="-", text=json.dumps(document))
    planned = plan_job(options, settings=settings)
    train_job, _ = convert_planned_job(planned, "trainjob")
    assert "--lr=${trialParameters.learningRate}" in format_documents(list_documents(planned))
    assert "--lr=${trialParameters.learningRate}" in format_documents(list_documents(train_job))


def test_values_and_words_with_spaces_reach_the_program_through_katibs_shell(
    settings: Settings, tmp_path: Path
) -> None:
    (experiment,) = render(settings, tmp_path, *SPACE, args=("--out", "two words"))
    container = find_container(start_trial(experiment, VALUES), "pytorch")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text('#!/bin/sh\nprintf "[%s]" "$@"\necho " loss=0.5"\n')
    (programs / "python").chmod(0o755)
    log = tmp_path / "metrics.log"
    path = f"{programs}:/usr/bin:/bin"
    subprocess.run(wrap_command(container, log), env={"PATH": path}, check=True)
    expected = "[train.py][--out][two words][--lr][0.01][--opt][adam w] loss=0.5\n"
    assert log.read_text() == expected
    assert [file.read_text() for file in tmp_path.glob("*.pid")] == ["completed\n"]
    # Other pods of the job run the command as it is written.
    done = subprocess.run(container["command"], env={"PATH": path}, capture_output=True, text=True)
    assert done.stdout == expected
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables == {"DANLU_SWEEP_LR": "0.01", "DANLU_SWEEP_OPT": "adam w"}


def test_katib_reads_what_a_program_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report(loss=0.5)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("KATIB_TRIAL_NAME", "trial")
    report(percentage=50, loss=1e-05, accuracy=-7.53)
    report(**{"loss": float("nan"), "val/loss": 3.0})
    report(loss=2)
    lines = capsys.readouterr().out.splitlines()
    assert collect(lines, "loss", "accuracy") == [
        ("loss", "1e-05"),
        ("accuracy", "-7.53"),
        ("loss", "2.0"),
    ]
    for line in lines:
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z ", line)


@pytest.mark.anyio
@pytest.mark.parametrize(("code", "end"), [(0, "successCondition"), (1, "failureCondition")])
@pytest.mark.parametrize("kind", ["v1", "trainjob"])
async def test_katib_finds_the_pod_with_the_metrics_and_the_end_of_a_trial(
    site: OperatorNamespace,
    operator: Manager,
    settings: Settings,
    tmp_path: Path,
    kind: str,
    code: int,
    end: str,
) -> None:
    *runtimes, experiment = render(settings, tmp_path, *SPACE, kind=kind, replicas={"worker": 2})
    for runtime in runtimes:
        resource = runtime_resource("TrainingRuntime")
        runtime["metadata"]["namespace"] = site.space
        await site.client.create(resource, resource.to_manifest(runtime))
    trial = start_trial(experiment, VALUES)
    trial["metadata"]["namespace"] = site.space
    resource = jobs(trial["kind"])
    await site.client.create(resource, resource.to_manifest(trial))
    template = experiment["spec"]["trialTemplate"]

    async def has_all_pods() -> bool:
        return len(await site.pods()) == 2

    async def is_over() -> bool:
        return meets(template[end], await site.job(trial["kind"]))

    await site.eventually(has_all_pods)
    pods = await site.all_of(PODS)
    wanted = template["primaryPodLabels"].items()
    (primary,) = [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]
    defaults = DEFAULT_LABELS[trial["kind"]].items()
    assert [pod for pod in pods if defaults <= pod["metadata"]["labels"].items()] == [primary]
    (container,) = primary["spec"]["containers"]
    assert container["name"] == template["primaryContainerName"]
    assert container["command"][:2] == ["sh", "-c"]
    assert container["command"][2].endswith("train.py --lr '0.01' --opt 'adam w'")
    await site.run()
    assert not await is_over()
    await site.end(code=code)
    await site.eventually(is_over)
