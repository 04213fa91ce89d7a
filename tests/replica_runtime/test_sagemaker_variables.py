"""The ``SM_…`` variables of jobs, compared with those of SageMaker's own training toolkit.

``DANLU_GOLDEN=write`` records what the toolkit of the named version gives.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from danlu.replica_runtime import sagemaker
from danlu.training.frameworks.pytorch import FRAMEWORK, MASTER, WORKER
from danlu.training.types import Job, ReplicaId, ReplicaSpec, RestartPolicy
from tests.golden import write_on_request
from tests.serving.servers import install_packages
from tests.training.frameworks.topology import FakeTopology

CASES = Path(__file__).with_name("sagemaker_cases.json")
RECORDING = json.loads(CASES.read_text(encoding="utf-8"))

OURS = """
import json, os, runpy
program = runpy.run_path(os.environ["PROGRAM"])
print(json.dumps(program["read_job"](os.environ["SAGEMAKER_BASE_DIR"], os.environ)[0]))
"""
TOOLKIT = """
import json
from sagemaker_training import environment
print(json.dumps(environment.Environment().to_env_vars()))
"""


def write_job(base: Path, case: dict[str, Any]) -> dict[str, str]:
    """Write SageMaker's files below ``base``; return the variables of the container."""
    config, programs = base / "input" / "config", base / "bin"
    config.mkdir(parents=True)
    programs.mkdir()
    for name in ("resourceconfig", "inputdataconfig", "hyperparameters"):
        (config / f"{name}.json").write_text(json.dumps(case[name]), encoding="utf-8")
    for name, output in case["programs"].items():
        (programs / name).write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\n")
        (programs / name).chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    return {"PATH": path, "SAGEMAKER_BASE_DIR": str(base), **case["environment"]}


def read_variables(code: str, base: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that a Python program prints, whatever the machine and directory."""
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE).stdout
    variables = json.loads(output.decode().splitlines()[-1])
    assert variables["SM_NUM_CPUS"] == str(os.cpu_count())
    count = f'"num_cpus":{os.cpu_count()},'
    assert count in variables["SM_TRAINING_ENV"]
    variables["SM_NUM_CPUS"] = "CPUS"
    return {
        name: value.replace(str(base), "/opt/ml").replace(count, '"num_cpus":"CPUS",')
        for name, value in sorted(variables.items())
    }


@pytest.mark.parametrize("name", RECORDING["cases"])
def test_variables_of_a_job_are_those_of_the_toolkit(name: str, tmp_path: Path) -> None:
    case = RECORDING["cases"][name]
    environment = write_job(tmp_path / "ml", case)
    environment["PROGRAM"] = str(sagemaker.__file__)
    assert read_variables(OURS, tmp_path / "ml", environment) == case["variables"]


@pytest.mark.parametrize(("gpus", "processes"), [(8, "auto"), (0, "1")])
def test_rendezvous_is_that_of_a_pytorch_job(
    gpus: int, processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = {
        MASTER: ReplicaSpec(1, {}, RestartPolicy.NEVER),
        WORKER: ReplicaSpec(2, {}, RestartPolicy.NEVER),
    }
    job = Job("PyTorchJob", "digits", replicas, options={"nprocPerNode": processes})
    topology = FakeTopology(job, FRAMEWORK)
    nodes = [ReplicaId(MASTER, 0), ReplicaId(WORKER, 0), ReplicaId(WORKER, 1)]
    hosts = [topology.host(node) for node in nodes]
    monkeypatch.setattr(sagemaker, "_PORT", str(topology.port(nodes[0])))
    for node, host in zip(nodes, hosts, strict=True):
        properties = {
            "current_host": host,
            "distribution_hosts": [],
            "hosts": hosts,
            "master_hostname": hosts[0],
            "network_interface_name": "eth0",
            "num_gpus": gpus,
            "num_neurons": 0,
        }
        nccl = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_HOSTID": host}
        expected = {**dict(FRAMEWORK.build_env(job, node, topology)), **nccl}
        assert sagemaker.build_rendezvous(properties) == expected


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the toolkit is compiled by gcc")
def test_the_toolkit_gives_the_recorded_variables(tmp_path: Path) -> None:
    toolkit = install_packages(tmp_path / "toolkit", RECORDING["toolkit"])
    found = json.loads(json.dumps(RECORDING))
    for name, case in found["cases"].items():
        environment = write_job(tmp_path / name, case)
        environment["PYTHONPATH"] = str(toolkit)
        case["variables"] = read_variables(TOOLKIT, tmp_path / name, environment)
    write_on_request(CASES, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == RECORDING
