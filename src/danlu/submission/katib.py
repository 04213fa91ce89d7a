"""The Katib Experiment of a sweep: its search space, and its job with Katib's placeholders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from danlu.errors import UsageError
from danlu.jobs.types import Submission
from danlu.submission.overrides import set_variables
from danlu.submission.plan import PlannedJob
from danlu.sweeps.jobs import build_trial_submission
from danlu.sweeps.options import SweepOptions
from danlu.sweeps.space import SweepAxis, build_grid
from danlu.training.framework import Framework, PodTemplate
from danlu.training.manifest import write_job
from danlu.training.pod_template import change_templates, find_main_container, replace_container
from danlu.training.registry import TRAIN_JOB, find_job_framework
from danlu.training.train_job.writer import write_train_job
from danlu.training.types import Job, ReplicaId

#: Katib's own default.
_PARALLEL_TRIALS = 3

_UNSAFE = re.compile(r"""['"\\]""")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def build_experiment(planned: PlannedJob, sweep: SweepOptions) -> list[dict[str, Any]]:
    """Return the Experiment that tries the points of ``sweep``, after the objects that it needs.

    Raises :class:`UsageError` for a pattern of metrics, which Katib reads in its own way, and for
    values that Katib cannot insert.
    """
    if sweep.measure.pattern:
        raise UsageError(
            "--metric-pattern has no equivalent in Katib, which reads lines such as loss=0.3",
            hint="report the metric with danlu.report, or print it in that form",
        )
    job, framework = planned.job, find_job_framework(planned.job)
    leader = framework.leader(job)
    *objects, trial = _write_trial(job, framework, sweep, leader)
    grid = sweep.trials is None
    trials = len(build_grid(sweep.axes)) if sweep.trials is None else sweep.trials
    names = [axis.name for axis in sweep.axes]
    spec = {
        "objective": {
            "type": f"{sweep.measure.goal}imize",
            "objectiveMetricName": sweep.measure.metric,
        },
        "algorithm": {"algorithmName": "grid" if grid else "tpe"},
        "parallelTrialCount": min(sweep.parallel or _PARALLEL_TRIALS, trials),
        "maxTrialCount": trials,
        "parameters": [_describe_axis(axis, grid=grid) for axis in sweep.axes],
        "trialTemplate": {
            "primaryContainerName": framework.container,
            **_describe_job(job, leader),
            "trialParameters": [{"name": name, "reference": name} for name in names],
            "trialSpec": trial,
        },
    }
    namespace = {"namespace": job.namespace} if job.namespace != "default" else {}
    experiment = {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": {"name": job.name, **namespace},
        "spec": spec,
    }
    return [*map(dict, planned.objects.values()), *objects, experiment]


# -- the search space -----------------------------------------------------------------------------


def _describe_axis(axis: SweepAxis, *, grid: bool) -> dict[str, Any]:
    span = axis.span
    if grid or span is None:
        values = axis.values()
        if any(_UNSAFE.search(value) for value in values):
            raise UsageError(
                f"a value of {axis.name} contains a quote or a backslash",
                hint="Katib inserts values as they are into the text of its trials",
            )
        kind = "discrete" if all(map(_NUMBER.fullmatch, values)) else "categorical"
        return {
            "name": axis.name,
            "parameterType": kind,
            "feasibleSpace": {"list": list(values)},
        }
    space = {"min": format(span.low, "f"), "max": format(span.high, "f")}
    if span.log:
        space["distribution"] = "logUniform"
    elif span.step is not None and not (span.whole and span.step == 1):
        space["step"] = format(span.step, "f")
    kind = "int" if span.whole else "double"
    return {"name": axis.name, "parameterType": kind, "feasibleSpace": space}


# -- the job --------------------------------------------------------------------------------------


def _write_trial(
    job: Job, framework: Framework, sweep: SweepOptions, leader: ReplicaId
) -> list[dict[str, Any]]:
    """Return the trial's job, which Katib names, after the runtime of a TrainJob."""
    point = {axis.name: f"${{trialParameters.{axis.name}}}" for axis in sweep.axes}
    substituted = [axis.name for axis in sweep.axes if axis.substituted]
    base = Submission(job=job, directory=Path())
    trial = build_trial_submission(
        base, point, framework=framework, name=job.name, substituted=substituted
    )
    changed = change_templates(
        trial.job, lambda template: set_variables(template, framework, trial.environment)
    )
    spec = changed.replicas[leader.type]
    template = _run_in_shell(spec.template, framework)
    replicas = {
        **changed.replicas,
        leader.type: msgspec.structs.replace(spec, template=template),
    }
    changed = msgspec.structs.replace(changed, replicas=replicas)
    if framework is not TRAIN_JOB:
        return [_remove_name(write_job(changed))]
    # The runtime is not part of a trial, so it cannot have placeholders.
    *objects, document = write_train_job(job)
    main = find_main_container(template, framework.container)
    fields = {name: main[name] for name in ("command", "args", "env") if main.get(name)}
    spec_with_trainer = {**document["spec"], "trainer": {**document["spec"]["trainer"], **fields}}
    return [*objects, _remove_name({**document, "spec": spec_with_trainer})]


def _run_in_shell(template: PodTemplate, framework: Framework) -> PodTemplate:
    """Run the command by a shell: Katib joins its words with spaces, and so would split them."""
    main = find_main_container(template, framework.container)
    words = [str(word) for word in (*(main.get("command") or ()), *(main.get("args") or ()))]
    if not main.get("command") or words[1:2] == ["-c"]:
        return template
    rest = {name: value for name, value in main.items() if name != "args"}
    return replace_container(template, {**rest, "command": ["sh", "-c", shlex.join(words)]}, main)


def _remove_name(document: Mapping[str, Any]) -> dict[str, Any]:
    given = {"name", "namespace"}
    metadata = {key: value for key, value in document["metadata"].items() if key not in given}
    rest = {key: value for key, value in document.items() if key != "metadata"}
    return {**rest, "metadata": metadata} if metadata else rest


def _describe_job(job: Job, leader: ReplicaId) -> dict[str, Any]:
    """Return how Katib finds the pod with the metrics, and the end of the job.

    Katib has defaults for some kinds only, and looks for a master, which not all jobs have.
    """
    if job.kind == TRAIN_JOB.kind:
        success = "Complete"
        labels = {
            "jobset.sigs.k8s.io/replicatedjob-name": leader.type,
            "batch.kubernetes.io/job-completion-index": str(leader.index),
        }
    else:
        success = "Succeeded"
        labels = {
            "training.kubeflow.org/replica-type": leader.type.lower(),
            "training.kubeflow.org/replica-index": str(leader.index),
        }
    return {
        "primaryPodLabels": labels,
        "successCondition": f'status.conditions.#(type=="{success}")#|#(status=="True")#',
        "failureCondition": 'status.conditions.#(type=="Failed")#|#(status=="True")#',
    }
