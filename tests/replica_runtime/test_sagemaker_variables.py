"""The ``SM_…`` variables of jobs, compared with those of SageMaker's toolkit and of its SDK.

``DANLU_GOLDEN=write`` records what the named versions give.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from danlu.replica_runtime import sagemaker
from tests.golden import write_on_request
from tests.serving.servers import install_packages

CASES = Path(__file__).with_name("sagemaker_cases.json")
RECORDING = json.loads(CASES.read_text(encoding="utf-8"))

OURS = """
import json, os, runpy
program = runpy.run_path(os.environ["PROGRAM"])
print(json.dumps(program["read_job"](os.environ["SAGEMAKER_BASE_DIR"], os.environ)[0]))
"""
SDK = """
import contextlib, json, os, re, runpy, sys
base = os.environ["SAGEMAKER_BASE_DIR"]
files = ("resourceconfig", "inputdataconfig", "hyperparameters")
config = [json.load(open(f"{base}/input/config/{name}.json")) for name in files]
with contextlib.redirect_stdout(sys.stderr):
    driver = runpy.run_path(os.environ["DRIVERS"] + "/scripts/environment.py")
    driver["set_env"](*config, output_file=f"{base}/exports")
lines = open(f"{base}/exports").read()
found = dict(re.findall(r"^export ([^\\n]*?)='(.*)'$", lines, re.MULTILINE))
print(json.dumps(found))
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
    count = re.compile(rf'(?<="num_cpus":)( ?){os.cpu_count()}(?=,)')
    assert count.search(variables["SM_TRAINING_ENV"])
    variables["SM_NUM_CPUS"] = "CPUS"
    return {
        name: count.sub(r'\1"CPUS"', value.replace(str(base), "/opt/ml"))
        for name, value in sorted(variables.items())
    }


@pytest.mark.parametrize("name", RECORDING["cases"])
def test_variables_of_a_job_are_those_of_the_toolkit(name: str, tmp_path: Path) -> None:
    case = RECORDING["cases"][name]
    environment = write_job(tmp_path / "ml", case)
    environment["PROGRAM"] = str(sagemaker.__file__)
    found = read_variables(OURS, tmp_path / "ml", environment)
    training = json.loads(found.pop("SM_TRAINING_ENV"))
    expected = dict(case["variables"])
    expected_training = json.loads(expected.pop("SM_TRAINING_ENV"))
    assert {name: found[name] for name in expected} == expected
    assert {name: training[name] for name in expected_training} == expected_training


@pytest.mark.parametrize("name", RECORDING["sdk_variables"])
def test_variables_of_a_job_include_those_of_the_sdk(name: str, tmp_path: Path) -> None:
    environment = write_job(tmp_path / "ml", RECORDING["cases"][name])
    environment["PROGRAM"] = str(sagemaker.__file__)
    found = read_variables(OURS, tmp_path / "ml", environment)
    expected = dict(RECORDING["sdk_variables"][name])
    training = json.loads(expected.pop("SM_TRAINING_ENV"))
    assert json.loads(found["SM_TRAINING_ENV"]).keys() >= training.keys()
    # The toolkit sorts channels, and writes null as nothing.
    expected["SM_CHANNELS"] = json.dumps(sorted(json.loads(expected["SM_CHANNELS"])))
    nothing = {variable for variable, value in expected.items() if value == "null"}
    for variable, value in expected.items():
        shown = "" if variable in nothing else decode_value(value)
        assert decode_value(found[variable]) == shown, variable


def decode_value(text: str) -> object:
    """Return the value of a variable; NaN as text, which is equal to itself."""
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text


@pytest.mark.real
@pytest.mark.slow
def test_the_sdk_gives_the_recorded_variables(tmp_path: Path) -> None:
    drivers = install_packages(tmp_path / "sdk", "--no-deps", RECORDING["sdk"])
    found = json.loads(json.dumps(RECORDING))
    for name in found["sdk_variables"]:
        environment = write_job(tmp_path / name, found["cases"][name])
        environment["DRIVERS"] = str(drivers / "sagemaker/train/container_drivers")
        environment.setdefault("TRAINING_JOB_NAME", "job")
        variables = read_variables(SDK, tmp_path / name, environment)
        found["sdk_variables"][name] = variables
    write_on_request(CASES, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == RECORDING


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
