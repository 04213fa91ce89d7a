"""``danlu train`` and ``danlu jobs`` as they are typed: exit code, stdout and stderr."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.cli.output import TableCell, print_table
from danlu.cli.terminal import Terminal
from danlu.errors import MachineError
from danlu.jobs.types import JobView, ReplicaCommand, ReplicaView
from danlu.submission.job_view_model import count_done
from danlu.training.document import read_manifest_file
from danlu.training.manifest import read_job
from danlu.training.progress import TrainingProgress
from danlu.training.registry import find_framework
from danlu.training.types import FirstFailure
from tests.jobs.fake_jobs import FakeJobs, JobScript, line, replica, view

from .conftest import Cli

SUCCEEDED = view(
    "Succeeded",
    ReplicaView(replica(0), "Succeeded", exit_code=0),
    ReplicaView(replica(1), "Succeeded", exit_code=0),
)


def make_failed_view(name: str) -> JobView:
    return view(
        "Failed",
        ReplicaView(replica(0), "Failed", exit_code=143, reason="Error"),
        ReplicaView(replica(1), "Failed", exit_code=1, reason="Error"),
        first=FirstFailure(replica(1), exit_code=1, reason="Error"),
        name=name,
    )


TRAIN = ("train", "train.py", "--host-python", "--name", "demo", "--worker", "2")


@pytest.fixture(autouse=True)
def script(home: Path) -> None:
    Path("train.py").write_text("import torch\n")


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    fake = FakeJobs()
    fake.next = JobScript([view(), SUCCEEDED], [line("hello"), line("there", 1), line("end")])
    monkeypatch.setattr("danlu.jobs.backends.local_backend", lambda settings: fake)
    monkeypatch.setattr("danlu.submission.plan.find_active_python", lambda: "/usr/bin/python3")
    return fake


def test_logs_are_interleaved_on_stdout_and_the_result_is_on_stderr(
    cli: Cli, jobs: FakeJobs
) -> None:
    result = cli(*TRAIN)
    assert result.code == 0
    assert result.out == "worker-0 │ hello\nworker-1 │ there\nworker-0 │ end\n"
    assert result.err == (
        "framework pytorch, because train.py imports torch\n"
        "running replicas as processes of /usr/bin/python3\n"
        "job demo\n"
        "worker-0: running\n"
        "worker-1: running\n"
        "worker-0: succeeded\n"
        "worker-1: succeeded\n"
        "demo succeeded in 2.5 s\n"
    )
    (submitted,) = jobs.submitted
    assert submitted.job.name == "demo"
    assert submitted.python == "/usr/bin/python3"


def test_failed_job_names_the_first_failure_without_repeating_its_log(
    cli: Cli, jobs: FakeJobs
) -> None:
    jobs.next = JobScript(
        [make_failed_view("demo")], [line("bye"), line("Traceback", 1), line("ValueError: x", 1)]
    )
    result = cli(*TRAIN, "--framework", "pytorch", "--progress", "quiet")
    assert result.code == 1
    # The log is on stdout already: the error does not repeat it.
    assert result.out.count("ValueError: x") == 1
    assert result.err.partition("error: ")[2] == (
        "demo failed after 2.5 s: worker-1 failed first: exit code 1\n"
        "hint: to get a command that reruns only worker-1:"
        " danlu jobs show demo --command worker-1\n"
    )


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (
            FirstFailure(replica(0), exit_code=137, reason="OOMKilled", message="limit 512Mi"),
            "ran out of memory (OOMKilled): limit 512Mi",
        ),
        (
            FirstFailure(replica(0), exit_code=137, reason="SIGKILL"),
            "killed by SIGKILL (exit code 137)",
        ),
        # Only this machine knows whether it was a signal, or the program's own exit code.
        (
            FirstFailure(replica(0), exit_code=137, reason="Error"),
            "exit code 137 (as after SIGKILL)",
        ),
        (FirstFailure(replica(0), exit_code=255, reason="Error"), "exit code 255"),
        (
            FirstFailure(replica(0), reason="StartError", message="no such file"),
            "could not be started: no such file",
        ),
    ],
)
def test_failure_reason_is_explained(
    cli: Cli, jobs: FakeJobs, first: FirstFailure, words: str
) -> None:
    jobs.next = JobScript([view("Failed", first=first)])
    result = cli(*TRAIN)
    assert result.code == 1
    assert f"worker-0 failed first: {words}" in result.err
    assert ("raise its limit with --memory" in result.err) == (first.reason == "OOMKilled")
    assert "worker-0 printed nothing" in result.err


def test_failed_job_without_failed_replica_shows_its_condition(cli: Cli, jobs: FakeJobs) -> None:
    jobs.next = JobScript([view("Failed", message="it was active longer than specified deadline")])
    result = cli(*TRAIN)
    assert result.code == 1
    assert "demo failed after 2.5 s: it was active longer than specified deadline" in result.err


def test_variables_are_set_by_e_and_env_alike(
    cli: Cli, jobs: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSED", "on")
    result = cli(
        *TRAIN,
        "-e",
        "A=$(B)",
        "-e",
        "PASSED",
        "--env",
        "C=1 2",
        "--detach",
        "--",
        "a$$b",
        "$(RANK)",
    )
    assert result.code == 0, result.err
    (submitted,) = jobs.submitted
    (spec,) = submitted.job.replicas.values()
    main = spec.template["spec"]["containers"][0]
    assert {entry["name"]: entry["value"] for entry in main["env"]} == {
        "A": "$$(B)", "PASSED": "on", "C": "1 2"
    }  # fmt: skip
    assert main["command"] == ["python", "train.py", "a$$$$b", "$$(RANK)"]
    both = cli("train", "train.py", "--env", "a.envd", "--env", "b.envd")
    assert (both.code, "a.envd and b.envd exclude each other" in both.err) == (2, True)


def test_detach_prints_only_the_job_name(cli: Cli, jobs: FakeJobs) -> None:
    result = cli(*TRAIN, "--detach", "-q")
    assert (result.code, result.out, result.err) == (0, "demo\n", "")


def test_dry_run_prints_the_manifest(cli: Cli, jobs: FakeJobs) -> None:
    result = cli(*TRAIN, "--framework", "pytorch", "--dry-run", "--", "--epochs", "3")
    assert (result.code, jobs.submitted) == (0, [])
    assert "the manifest does not contain train.py: it runs where the image python:3 has" in (
        result.err
    )
    assert result.out.startswith(
        "# the manifest does not contain train.py: it runs where the image"
    )
    job = read_job(read_manifest_file(result.out, "stdout").job, find_framework("pytorch"))
    assert job.name == "demo"
    as_json = cli(*TRAIN, "--framework", "pytorch", "--dry-run", "-o", "json")
    assert json.loads(as_json.out)["kind"] == "PyTorchJob"


def test_every_replica_type_of_a_framework_has_an_option(cli: Cli) -> None:
    numbers = {"TunerTracker": 1, "TunerServer": 2, "Tuner": 3}
    options = ("--tuner-tracker", "1", "--tuner-server", "2", "--tuner", "3")
    result = cli("train", "train.py", "--framework", "mxnet", *options, "--dry-run", "-o", "json")
    replicas = json.loads(result.out)["spec"]["mxReplicaSpecs"]
    assert {type: spec["replicas"] for type, spec in replicas.items()} == numbers


def test_a_dry_run_says_what_of_this_machine_the_manifest_needs(
    cli: Cli, jobs: FakeJobs, tmp_path: Path
) -> None:
    Path("build.envd").write_text('def build():\n    base(os="debian12")\n')
    name = "odd\u2028kind: Secret\nname.py"
    Path(name).write_text("import torch")
    result = cli("train", name, "--dry-run", "--volume", f"{tmp_path}:/data")
    assert result.code == 0
    comments = [line for line in result.out.splitlines() if line.startswith("#")]
    text = " ".join(line.removeprefix("# ") for line in comments)
    assert "the manifest does not contain odd kind: Secret name.py" in text
    assert "is on this machine only: danlu image push" in text
    assert "its volumes are directories of this machine" in text
    assert [len(line) <= 100 for line in comments] == [True] * len(comments)
    assert read_manifest_file(result.out, "stdout").job["kind"] == "PyTorchJob"


def test_the_times_of_the_end_are_written_into_the_manifest(cli: Cli, jobs: FakeJobs) -> None:
    flags = ["--grace", "120", "--finish-timeout", "10m"]
    script = cli(*TRAIN, "--framework", "pytorch", *flags, "--dry-run").out
    assert "danlu.dev/finish-timeout: 600s" in script
    assert "terminationGracePeriodSeconds: 120" in script
    Path("job.yaml").write_text(script)
    again = cli("train", "-f", "job.yaml", "--grace", "5", "--dry-run").out
    assert "terminationGracePeriodSeconds: 5" in again
    assert "danlu.dev/finish-timeout: 600s" in again


def test_every_failed_start_is_printed_with_its_reason(cli: Cli, jobs: FakeJobs) -> None:
    failed = ReplicaView(
        replica(0), "Failed", exit_code=127, reason="StartError", message="program x not found"
    )
    again = msgspec.structs.replace(failed, restarts=1)
    jobs.next = JobScript([view("Restarting", failed), view("Restarting", again), SUCCEEDED], [])
    err = cli(*TRAIN).err
    assert "worker-0: failed (could not be started: program x not found)\n" in err
    assert "worker-0: failed (could not be started: program x not found, restart 1)\n" in err


def test_finishing_job_names_replicas_it_waits_for(cli: Cli, jobs: FakeJobs) -> None:
    finishing = view(
        "Finishing",
        ReplicaView(replica(0), "Succeeded"),
        ReplicaView(replica(1), "Running"),
    )
    jobs.next = JobScript([view(), finishing, finishing, view("Succeeded")])
    output = cli(*TRAIN, "--framework", "pytorch").err
    assert output.count("demo has succeeded; waiting for worker-1 to finish") == 1


def test_a_dry_run_of_a_manifest_is_a_fixed_point(cli: Cli, jobs: FakeJobs) -> None:
    first = cli(*TRAIN, "--framework", "pytorch", "--dry-run").out
    Path("job.yaml").write_text(first)
    again = cli("train", "-f", "job.yaml", "--dry-run")
    manifest = "".join(line for line in first.splitlines(True) if not line.startswith("#"))
    assert (again.out, again.err) == (manifest, "")


def test_missing_dependency_exits_with_4(
    cli: Cli, jobs: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(submission: Any) -> str:
        raise MachineError("containers cannot have GPUs yet", hint="--host-python")

    monkeypatch.setattr(jobs, "submit", refuse)
    result = cli(*TRAIN, "--gpu", "1")
    assert result.code == 4
    assert "containers cannot have GPUs yet" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "nothing to run"),
        (["train", "gone.py"], "script gone.py not found"),
        (["train", "train.py", "--ps", "1"], "pytorch has no replica type ps"),
        (["train", "train.py", "--replica", "worker"], "invalid number of replicas"),
        (["train", "train.py", "--worker", "-1"], "invalid value for '--worker'"),
        (["train", "train.py", "--memory", "lots"], "resources.limits[memory]"),
        (["train", "train.py", "-f", "x.yaml"], "exclude each other"),
        (["train", "-m", "pkg.train", "-f", "x.yaml"], "exclude each other"),
        (["train", "-m", "pkg/train.py"], "write it as for `python -m`: pkg.train"),
        (["train", "train.py", "--claim", "data"], "'data' is not of the form NAME=DIR"),
        (["train", "-m", "nobodys.module"], "module nobodys.module, which is not in"),
        (["train", "-f", "gone.yaml"], "manifest gone.yaml not found"),
        (["train", "train.py", "--deadline", "soon"], "invalid duration"),
        (["train", "train.py", "-o", "json"], "--dry-run"),
        (["train", "train.py", "--dry-run", "-o", "katib"], "-o katib requires --sweep"),
        (["train", "train.py", "--framework", "keras"], "unknown framework 'keras'"),
        (["jobs", "show", "nobody"], "job 'nobody' not found"),
        (["jobs", "sohw"], "did you mean `show`?"),
        (["jobs", "rm"], "name the jobs"),
        (["jobs", "scale", "demo", "worker"], "worker=3"),
    ],
)
def test_usage_errors_exit_with_2(
    cli: Cli, jobs: FakeJobs, arguments: list[str], words: str
) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert jobs.submitted == []


def test_json_progress_of_a_job_writes_an_event_per_line(cli: Cli, jobs: FakeJobs) -> None:
    result = cli(*TRAIN, "--progress", "json")
    events = [json.loads(line) for line in result.err.splitlines()]
    assert [event["state"] for event in events] == ["Running", "Succeeded"]
    assert events[0]["replicas"][0]["id"] == "worker-0"
    assert result.out.count("│") == 3


def test_quiet_job_writes_only_logs(cli: Cli, jobs: FakeJobs) -> None:
    result = cli(*TRAIN, "-q")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("│") == 3


def test_warnings_restarts_and_progress_are_printed_once(cli: Cli, jobs: FakeJobs) -> None:
    def step(percentage: int, restarts: int) -> Any:
        running = ReplicaView(replica(0), "Running", restarts=restarts)
        progress = TrainingProgress(percentage, 12, {"loss": 0.25})
        return view("Running", running, warnings=("resources: not enforced",), progress=progress)

    jobs.next = JobScript([step(0, 0), step(3, 0), step(50, 1), step(52, 1), SUCCEEDED])
    lines = cli(*TRAIN).err.splitlines()
    assert lines.count("warning: resources: not enforced") == 1
    assert lines.count("worker-0: running (restart 1)") == 1
    assert [line for line in lines if "%" in line] == [
        "0 %  12.0 s left  loss 0.25",
        "50 %  12.0 s left  loss 0.25",
    ]


def test_replace_removes_a_finished_job_of_the_same_name(cli: Cli, jobs: FakeJobs) -> None:
    jobs.stories["demo"] = JobScript([SUCCEEDED])
    assert cli(*TRAIN, "--replace").code == 0
    assert ("remove", "demo") in jobs.calls


# -- danlu jobs -----------------------------------------------------------------------------------


@pytest.fixture
def two(jobs: FakeJobs) -> FakeJobs:
    """A job that runs, and one that failed."""
    command = ReplicaCommand(
        ("python", "train.py", "a b"), {"RANK": "1", "NAME": "it's"}, "/some where"
    )
    running = view("Running", progress=TrainingProgress(40, 90, {"loss": 0.5}), directory="/work")
    jobs.stories["demo"] = JobScript([running], [line("one"), line("two", 1)], command=command)
    jobs.stories["lost"] = JobScript([make_failed_view("lost")], [line("bad", 1)])
    return jobs


def test_jobs_ls(cli: Cli, two: FakeJobs) -> None:
    lines = cli("jobs", "ls").out.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "KIND", "REPLICAS", "CREATED", "DURATION"]
    assert lines[1].split()[:4] == ["demo", "Running", "PyTorchJob", "0/2"]
    assert lines[2].endswith("2.5 s")
    assert cli("jobs", "ls", "-q").out == "demo\nlost\n"
    document = json.loads(cli("jobs", "ls", "--format", "json").out)
    assert [entry["state"] for entry in document] == ["Running", "Failed"]
    assert document[1]["status"]["firstFailure"]["replica"] == "worker-1"


def test_jobs_ls_says_that_there_are_earlier_runs_and_lists_them_with_all(
    cli: Cli, two: FakeJobs
) -> None:
    assert "earlier" not in cli("jobs", "ls").err
    two.stories["demo@2"] = JobScript([make_failed_view("demo@2")])
    two.stories["demo@1"] = JobScript([make_failed_view("demo@1")])
    two.earlier["demo"] = ["demo@2", "demo@1"]
    some = cli("jobs", "ls")
    assert "@" not in some.out
    assert some.err == "2 earlier runs not shown; --all lists them\n"
    every = cli("jobs", "ls", "--all")
    names = [line.split()[0] for line in every.out.splitlines()[1:]]
    assert (names, every.err) == (["demo", "demo@2", "demo@1", "lost"], "")


@pytest.mark.parametrize(
    ("state", "replicas", "done"),
    [
        ("Running", ("Running", "Succeeded", "Pending"), 1),
        ("Succeeded", ("Succeeded", "Succeeded", "Stopped"), 3),
        ("Failed", ("Succeeded", "Failed", "Stopped"), 1),
    ],
)
def test_replicas_column_counts_those_that_are_done(
    state: str, replicas: tuple[Any, ...], done: int
) -> None:
    views = [ReplicaView(replica(index), name) for index, name in enumerate(replicas)]
    assert count_done(view(state, *views)) == done


def test_states_are_coloured_on_a_terminal() -> None:
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    terminal = Terminal(out=out, err=io.StringIO(), environ={"TERM": "xterm"})
    print_table(("NAME", "STATE"), [("demo", TableCell("Failed", "red"))], terminal)
    assert out.getvalue().splitlines()[1] == "demo  \x1b[31mFailed\x1b[0m"


def test_jobs_show(cli: Cli, two: FakeJobs) -> None:
    output = cli("jobs", "show", "demo").out
    assert "state         Running" in output
    assert "progress      40 %  1 min 30 s left  loss 0.5" in output
    assert "worker-1" in output
    assert "first failure worker-1 (exit code 1)" in cli("jobs", "show", "lost").out
    document = json.loads(cli("jobs", "show", "demo", "--format", "json").out)
    assert document["replicas"][1]["id"] == "worker-1"


def test_jobs_show_command_prints_a_shell_line(cli: Cli, two: FakeJobs) -> None:
    result = cli("jobs", "show", "demo", "--command", "worker-1")
    assert result.out == (
        "cd '/some where' && env RANK=1 NAME='it'\"'\"'s' python train.py 'a b'\n"
    )
    assert cli("jobs", "show", "demo", "--command", "wroker-1").err.endswith(
        "hint: did you mean worker-1?\n"
    )


def test_shell_line_quotes_environment_and_arguments(
    cli: Cli, two: FakeJobs, tmp_path: Path
) -> None:
    variables = {"KUBEFLOW_TRAINER_SERVER_URL": "gone", "A": 'q "$HOME"\n1'}
    program = ("python3", "-c", "import os,sys; print(os.environ['A'], sys.argv[1:])", "x'y z")
    two.stories["demo"].command = ReplicaCommand(program, variables, str(tmp_path))
    text = cli("jobs", "show", "demo", "--command", "worker-0").out
    result = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert result.stdout == 'q "$HOME"\n1 ["x\'y z"]\n'
    assert shlex.split(text)[:2] == ["cd", str(tmp_path)]
    assert "KUBEFLOW_TRAINER" not in text


def test_shell_line_of_a_container_uses_danlu_run(cli: Cli, two: FakeJobs) -> None:
    two.stories["demo"].command = ReplicaCommand(
        ("python", "a b"), {"A": "1 2"}, "/workspace", "img:1"
    )
    assert cli("jobs", "show", "demo", "--command", "worker-0").out == (
        "cd /work && danlu run --image img:1 -e A='1 2' -- python 'a b'\n"
    )
    two.stories["demo"].command = ReplicaCommand(("ls",), {}, "/data", "img:1")
    assert cli("jobs", "show", "demo", "--command", "worker-0").out == (
        'cd /work && danlu run --image img:1 -- sh -c \'cd /data && exec "$0" "$@"\' ls\n'
    )


def test_jobs_logs_interleaves_or_writes_raw_output_of_one_replica(cli: Cli, two: FakeJobs) -> None:
    two.stories["demo"].lines = [line(b"\xff\x1b[31mred"), line("two", 1)]
    assert cli("jobs", "logs", "demo").out == "worker-0 │ �red\nworker-1 │ two\n"
    assert cli("jobs", "logs", "demo", "worker-1").out == "two\n"
    stamped = cli("jobs", "logs", "demo", "worker-1", "--timestamps").out
    assert stamped == "worker-1 │ 2026-01-02T03:04:05.000+00:00 two\n"
    cli("jobs", "logs", "demo", "--follow", "--tail", "3")
    assert two.calls[-1] == ("logs", "demo", (), True, 3)
    document = json.loads(
        cli("jobs", "logs", "demo", "worker", "--format", "json").out.split("\n")[1]
    )
    assert document["text"] == "two"


def test_jobs_logs_follow_prints_warnings(cli: Cli, two: FakeJobs) -> None:
    two.stories["demo"].lines = [line("one"), line("two")]
    two.stories["demo"].views = [view(warnings=("no answer",))] * 2
    assert "warning" not in cli("jobs", "logs", "demo").err
    followed = cli("jobs", "logs", "demo", "--follow")
    assert followed.err == "warning: no answer\n"
    assert followed.out.count("\n") == 2


def test_jobs_wait_reports_the_outcome(cli: Cli, two: FakeJobs) -> None:
    two.stories["demo"].views = [SUCCEEDED]
    assert cli("jobs", "wait", "demo").code == 0
    result = cli("jobs", "wait", "demo", "lost")
    assert result.code == 1
    assert "worker-1 │ bad" in result.err


def test_jobs_attach_follows_until_the_end(cli: Cli, two: FakeJobs) -> None:
    two.stories["demo"].views = [view(), SUCCEEDED]
    result = cli("jobs", "attach", "demo", "--tail", "1")
    assert (result.code, result.out) == (0, "worker-1 │ two\n")
    assert cli("jobs", "attach", "lost").code == 1


def test_jobs_stop_rm_suspend_and_scale(cli: Cli, two: FakeJobs) -> None:
    assert cli("jobs", "rm", "demo").code == 2
    assert cli("jobs", "stop", "demo", "--grace", "1").err == "stopped demo\n"
    assert cli("jobs", "suspend", "demo").code == 0
    assert cli("jobs", "resume", "demo").code == 0
    assert cli("jobs", "scale", "demo", "worker=3").code == 0
    assert cli("jobs", "rm", "lost").err == "removed lost\n"
    assert two.calls == [
        ("stop", "demo", 1.0),
        ("suspend", "demo", True),
        ("suspend", "demo", False),
        ("scale", "demo", {"worker": 3}),
        ("remove", "lost"),
    ]


def test_jobs_rm_all_removes_finished_jobs(cli: Cli, two: FakeJobs) -> None:
    assert cli("jobs", "rm", "--all").err == "removed lost\n"
    assert list(two.stories) == ["demo"]
