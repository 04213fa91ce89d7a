"""The jobs of the golden tables, by framework and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from danlu.training.framework import Framework
from danlu.training.registry import find_framework
from danlu.training.types import ElasticPolicy, Job
from tests.training.frameworks.topology import Shown, job_of, render_added_variables, template

Tables = Mapping[str, Mapping[str, Mapping[str, Shown]]]

DOMAIN = "cluster.example"
IN_DOMAIN = ("ps and worker", "evaluator", "dynamic worker", "master and 1 worker")

ELASTIC = ElasticPolicy(min_replicas=1, max_replicas=3)

# The policy of elastic_test.go.
FULL = ElasticPolicy(
    min_replicas=1,
    max_replicas=3,
    rdzv_backend="c10d",
    rdzv_port=1234,
    rdzv_host="localhost",
    rdzv_id="rdzv-id",
    rdzv_conf=(
        {"key": "rdzv-conf-name", "value": "rdzv-conf-value"},
        {"key": "rdzv-conf-name-1", "value": "rdzv-conf-value-1"},
    ),
    max_restarts=3,
)
OLD = ElasticPolicy(min_replicas=2, max_replicas=2, n_proc_per_node=4, standalone=True)


def _pytorch_jobs(it: Framework) -> dict[str, Job]:
    return {
        "1 worker": job_of(it, {"Worker": 1}),
        "2 workers": job_of(it, {"Worker": 2}),
        "master alone": job_of(it, {"Master": 1}),
        "master and 1 worker": job_of(it, {"Master": 1, "Worker": 1}),
        "2 processes a node": job_of(it, {"Master": 1, "Worker": 1}, options={"nprocPerNode": "2"}),
        "elastic, 1 worker": job_of(it, {"Worker": 1}, elastic=ELASTIC),
        "elastic, 2 workers": job_of(it, {"Worker": 2}, elastic=ELASTIC),
        "elastic, master and 1 worker": job_of(it, {"Master": 1, "Worker": 1}, elastic=ELASTIC),
        "elastic, everything said": job_of(it, {"Worker": 1}, elastic=FULL),
        "elastic, the deprecated way": job_of(it, {"Worker": 2}, elastic=OLD),
        "sidecar and another port": job_of(
            it, {"Master": 1, "Worker": 1}, pod=template(it, sidecar="proxy", port=29500)
        ),
    }


def _tensorflow_jobs(it: Framework) -> dict[str, Job]:
    five = {"Chief": 1, "PS": 2, "Worker": 2}
    dynamic = {"enableDynamicWorker": True}
    return {
        "1 worker": job_of(it, {"Worker": 1}),
        "2 workers": job_of(it, {"Worker": 2}),
        "ps and worker": job_of(it, {"PS": 1, "Worker": 1}),
        "chief, 2 ps and 2 workers": job_of(it, five),
        "master and 1 worker": job_of(it, {"Master": 1, "Worker": 1}),
        "evaluator": job_of(it, {"Evaluator": 1, "PS": 1, "Worker": 1}),
        "dynamic worker": job_of(it, {**five, "Evaluator": 1}, options=dynamic),
        "dynamic worker without ps": job_of(it, {"Worker": 2}, options=dynamic),
        "sidecar and another port": job_of(
            it, {"PS": 1, "Worker": 1}, pod=template(it, sidecar="proxy", port=4444)
        ),
    }


def _mpi_jobs(it: Framework) -> dict[str, Job]:
    gpu = template(it, limits={"nvidia.com/gpu": "1"})
    intel = {"I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": "/usr/bin/ssh"}
    return {
        "launcher and 1 worker": job_of(it, {"Launcher": 1, "Worker": 1}),
        "launcher and 2 workers": job_of(it, {"Launcher": 1, "Worker": 2}),
        "launcher with a GPU": job_of(it, {"Launcher": 1, "Worker": 1}, pod=gpu),
        "Intel's variables given": job_of(
            it, {"Launcher": 1, "Worker": 1}, pod=template(it, env=intel)
        ),
        "sidecar": job_of(it, {"Launcher": 1, "Worker": 1}, pod=template(it, sidecar="proxy")),
    }


def _xgboost_jobs(it: Framework) -> dict[str, Job]:
    return {
        "master alone": job_of(it, {"Master": 1}),
        "master and 1 worker": job_of(it, {"Master": 1, "Worker": 1}),
        "sidecar and another port": job_of(
            it, {"Master": 1, "Worker": 1}, pod=template(it, sidecar="proxy", port=9876)
        ),
    }


def _paddle_jobs(it: Framework) -> dict[str, Job]:
    return {
        "1 worker": job_of(it, {"Worker": 1}),
        "2 workers": job_of(it, {"Worker": 2}),
        "master and 1 worker": job_of(it, {"Master": 1, "Worker": 1}),
        "elastic changes nothing": job_of(it, {"Worker": 2}, elastic=ELASTIC),
        "sidecar and another port": job_of(
            it, {"Worker": 2}, pod=template(it, sidecar="proxy", port=37777)
        ),
    }


def _jax_jobs(it: Framework) -> dict[str, Job]:
    return {
        "1 worker": job_of(it, {"Worker": 1}),
        "2 workers": job_of(it, {"Worker": 2}),
        "sidecar and another port": job_of(
            it, {"Worker": 2}, pod=template(it, sidecar="proxy", port=1234)
        ),
    }


def _mxnet_jobs(it: Framework) -> dict[str, Job]:
    tuned = template(it, annotations={"tuner-server-key": "2080ti"})
    return {
        "1 worker": job_of(it, {"Worker": 1}),
        "2 workers without a scheduler": job_of(it, {"Worker": 2}),
        "scheduler, server and 2 workers": job_of(it, {"Scheduler": 1, "Server": 1, "Worker": 2}),
        "tuning": job_of(
            it,
            {"TunerTracker": 1, "TunerServer": 1, "Tuner": 1},
            pod=tuned,
            options={"jobMode": "MXTune"},
        ),
        "sidecar and another port": job_of(
            it,
            {"Scheduler": 1, "Server": 1, "Worker": 1},
            pod=template(it, sidecar="proxy", port=9999),
        ),
    }


CASES: Mapping[str, Callable[[Framework], dict[str, Job]]] = {
    "jax": _jax_jobs,
    "mpi": _mpi_jobs,
    "mxnet": _mxnet_jobs,
    "paddle": _paddle_jobs,
    "pytorch": _pytorch_jobs,
    "tensorflow": _tensorflow_jobs,
    "xgboost": _xgboost_jobs,
}


def tables(name: str) -> Tables:
    """Return the injected variables by case; some cases also use a custom cluster domain."""
    framework = find_framework(name)
    results = {}
    for case, job in CASES[name](framework).items():
        results[case] = render_added_variables(framework, job)
        if case in IN_DOMAIN:
            results[f"{case}, in {DOMAIN}"] = render_added_variables(framework, job, domain=DOMAIN)
    return results
