"""The entrypoint of images that run as SageMaker training jobs, as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from danlu.replica_runtime import sagemaker

JOB = {
    "resourceconfig": {"current_host": "localhost", "hosts": ["localhost"]},
    "inputdataconfig": {},
    "hyperparameters": {"epochs": "3", "n": "[1]"},
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """SageMaker's directories of a job with one host."""
    (tmp_path / "input" / "config").mkdir(parents=True)
    (tmp_path / "code").mkdir()
    for name, value in JOB.items():
        write_config(tmp_path, name, value)
    return tmp_path


def write_config(base: Path, name: str, value: Any) -> None:
    (base / "input" / "config" / f"{name}.json").write_text(json.dumps(value))


def start(base: Path, *arguments: str, program: str = "", **more: str) -> subprocess.Popen[str]:
    variables = {"PATH": os.environ["PATH"], "SAGEMAKER_BASE_DIR": str(base), **more}
    if program:
        (base / "code" / "train.py").write_text(program)
        variables["SAGEMAKER_PROGRAM"] = "train.py"
    command = [sys.executable, "-I", str(sagemaker.__file__), *arguments]
    return subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def read_failure(base: Path) -> str:
    return (base / "output" / "failure").read_text(encoding="utf-8")


def test_program_gets_arguments_and_the_rendezvous(base: Path) -> None:
    program = (
        "import os, sys\n"
        "print(sys.argv[1:], os.environ['SM_HP_EPOCHS'], os.getcwd())\n"
        "for name in ('MODEL', 'CHECKPOINT'):\n"
        "    open(os.path.join(os.environ[f'DANLU_{name}_DIR'], 'x'), 'w').close()\n"
    )
    code, out, err = finish(start(base, "train", program=program))
    assert (code, err) == (0, "")
    assert out.strip() == f"['--epochs', '3', '-n', '[1]'] 3 {base / 'code'}"
    assert (base / "model" / "x").exists()
    assert (base / "checkpoints" / "x").exists()
    assert not (base / "output" / "failure").exists()
    assert (base / "output" / "success").read_text() == ""


def test_command_of_the_image_runs_if_there_is_no_program(base: Path) -> None:
    code = "import os, sys; print(os.environ['WORLD_SIZE'], os.environ['PET_NNODES'], sys.argv[1])"
    command = json.dumps([sys.executable, "-c", code])
    result = finish(start(base, "train", DANLU_TRAIN_COMMAND=command))
    assert result == (0, "1 1 --epochs\n", "")


def test_own_command_of_the_image_is_a_job_if_there_are_files_of_one(base: Path) -> None:
    words = [sys.executable, "-c", "import os, sys; print('RANK' in os.environ, sys.argv[1:])"]
    variables = {"DANLU_TRAIN_COMMAND": json.dumps(words)}
    job = finish(start(base, *words, **variables))
    assert job == (0, "True ['--epochs', '3', '-n', '[1]']\n", "")

    assert finish(start(base, *words, "more", **variables)) == (0, "False ['more']\n", "")


def test_failure_names_the_rank_the_exception_and_the_last_lines(base: Path) -> None:
    program = "import sys\nprint('x' * 5000, file=sys.stderr)\nraise ValueError('no data')\n"
    code, _, err = finish(start(base, "train", program=program))
    assert code == 1
    assert "Traceback" in err
    lines = read_failure(base).splitlines()
    first = "rank 0 of 1 (localhost): train.py ended with exit code 1"
    assert lines[:2] == [first, "ValueError: no data"]
    assert len(read_failure(base)) <= 1024


def test_failure_that_the_program_wrote_is_kept(base: Path) -> None:
    (base / "output").mkdir()
    program = "open('../output/failure', 'w').write('mine'); raise SystemExit(7)"
    assert finish(start(base, "train", program=program))[0] == 7
    assert read_failure(base) == "mine"


def test_sigterm_is_forwarded_and_is_no_failure(base: Path) -> None:
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(5)))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    process = start(base, "train", program=program)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert finish(process)[:2] == (5, "saved\n")
    assert not (base / "output" / "failure").exists()


def test_host_that_does_not_resolve_is_a_failure(base: Path) -> None:
    hosts = {"current_host": "algo-1.invalid", "hosts": ["algo-1.invalid"]}
    write_config(base, "resourceconfig", hosts)
    code, _, err = finish(start(base, "train", program="print(1)", DANLU_HOST_TIMEOUT="0"))
    assert code == 1
    assert "host algo-1.invalid not found within 0 seconds" in err
    assert "host algo-1.invalid not found" in read_failure(base)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("hyperparameters", "{'a': 1}", "cannot read"),
        ("hyperparameters", "[]", "not an object"),
        ("resourceconfig", '{"hosts": ["a"], "current_host": "b"}', "host 'b' is not one of"),
        ("hyperparameters", '{"sagemaker_parameter_server_enabled": "true"}', "is not supported"),
        ("hyperparameters", '{"sagemaker_submit_directory": "s3://b/c"}', "cannot fetch"),
        ("hyperparameters", '{"a": "x\\u0000"}', "'a' cannot be a variable"),
        ("hyperparameters", '{"a=b": "1"}', "'a=b' cannot be a variable"),
        ("hyperparameters", json.dumps({"a": "x" * 200_000}), "more than Linux's 131071"),
        ("hyperparameters", '{"a": "\\ud800"}', "is not valid text"),
        (
            "hyperparameters",
            '{"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "-1"}',
            "sagemaker_mpi_num_of_processes_per_host cannot be -1",
        ),
        (
            "hyperparameters",
            '{"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": "-x \'a"}',
            "invalid sagemaker_mpi_custom_mpi_options: No closing quotation",
        ),
        ("resourceconfig", '{"hosts": ["a", 5], "current_host": "a"}', "hosts are ['a', 5]"),
        ("resourceconfig", '{"hosts": ["a", "a"], "current_host": "a"}', "hosts are ['a', 'a']"),
        (
            "resourceconfig",
            '{"hosts": ["a"], "current_host": "a", "instance_groups": null}',
            "invalid instance_groups",
        ),
    ],
)
def test_invalid_job_is_a_failure(base: Path, name: str, text: str, message: str) -> None:
    (base / "input" / "config" / f"{name}.json").write_text(text)
    code, out, err = finish(start(base, "train", program="print(1)"))
    assert (code, out) == (1, "")
    assert message in err
    assert message in read_failure(base)


def test_output_that_cannot_be_written_is_one_message(base: Path) -> None:
    (base / "output").write_text("in the way")
    code, out, err = finish(start(base, "train", program="print(1)"))
    assert (code, out) == (1, "")
    assert f"error: cannot create {base}/output/data: Not a directory" in err
    assert f"warning: cannot write {base}/output/failure" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("answer", ["not JSON", '{"nc_count": 2}', "[2]", '[{"nc_count": "2"}]'])
def test_answer_of_neuron_ls_that_cannot_be_read_is_a_failure(base: Path, answer: str) -> None:
    (base / "bin").mkdir()
    (base / "bin" / "neuron-ls").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (base / "bin" / "neuron-ls").chmod(0o755)
    path = f"{base}/bin:{os.environ['PATH']}"
    code, out, err = finish(start(base, "train", program="print(1)", PATH=path))
    assert (code, out) == (1, "")
    assert err.startswith("error: cannot read the answer of neuron-ls -j")
    assert read_failure(base).startswith("cannot read the answer")


@pytest.mark.parametrize("command", ["python train.py", '"ls"', '{"a": 1}', '["a", 1]'])
def test_command_that_is_not_a_list_of_words_is_a_failure(base: Path, command: str) -> None:
    code, _, err = finish(start(base, "train", DANLU_TRAIN_COMMAND=command))
    assert (code, err.count("\n")) == (1, 2)
    assert f"error: invalid DANLU_TRAIN_COMMAND: {command!r}" in err


@pytest.mark.parametrize("limit", ["1.5", "-1", "²", "9" * 400])
def test_time_limit_that_is_not_a_number_of_seconds_is_a_failure(base: Path, limit: str) -> None:
    process = start(base, "train", program="print(1)", DANLU_HOST_TIMEOUT=limit)
    code, _, err = finish(process)
    assert (code, err.count("\n")) == (1, 2)
    assert f"error: invalid DANLU_HOST_TIMEOUT: {limit!r}" in err


def test_mpi_of_one_host_runs_its_processes(base: Path) -> None:
    (base / "bin").mkdir()
    (base / "bin" / "mpirun").write_text('#!/bin/sh\necho "$@" $OMPI_MCA_orte_default_hostfile\n')
    (base / "bin" / "mpirun").chmod(0o755)
    options = {
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "4",
        "sagemaker_mpi_custom_mpi_options": '-x "A=b c" --NCCL_DEBUG WARN',
    }
    write_config(base, "hyperparameters", options)
    path = f"{base}/bin:{os.environ['PATH']}"
    command = json.dumps(["train", "me"])
    code, out, err = finish(start(base, "train", PATH=path, DANLU_TRAIN_COMMAND=command))
    assert (code, err) == (0, "")
    *words, hosts = out.split()
    assert " ".join(words) == "-np 4 -x A=b c -x NCCL_DEBUG=WARN train me"
    assert Path(hosts).read_text() == "localhost slots=4\n"


def test_other_commands_are_executed_as_they_are(base: Path) -> None:
    assert finish(start(base, "sh", "-c", 'echo "$@"; exit 3', "x", "a b")) == (3, "a b\n", "")
    assert finish(start(base, "no-such-program"))[0] == 127


def test_serve_without_a_server_is_refused(base: Path) -> None:
    code, _, err = finish(start(base, "serve"))
    assert code == 1
    assert "the image has no model server" in err
