"""``danlu train --on kubernetes`` and ``danlu jobs --on kubernetes``, as users type them.

The cluster is the published fake with danlu's operator, in a thread; what its pods run is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import danlu
from danlu.errors import JobFailed
from danlu.training.progress import TrainingProgress
from tests.fakes.kubernetes.pod_script import PodScript
from tests.jobs.kubernetes.support import LIMIT, JobNamespace, kubeconfig, open_site_in_threads

from .conftest import Cli

ON = ("--on", "kubernetes")
SCRIPT = """
import os
import helper
print(helper.greeting, os.environ["RANK"])
"""


@pytest.fixture
def site(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobNamespace]:
    Path("train.py").write_text(SCRIPT)
    Path("helper.py").write_text("greeting = 'hello'\n")
    with open_site_in_threads(tmp_path / "pods") as site:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(site, tmp_path / "kubeconfig")))
        yield site


TRAIN = ("train", "train.py", "--framework", "pytorch", "--image", "team/env:1", *ON)


def test_a_script_runs_on_the_cluster_and_its_lines_arrive(cli: Cli, site: JobNamespace) -> None:
    result = cli(*TRAIN, "--name", "demo", "--worker", "2")
    assert result.code == 0, result.err
    assert sorted(result.out.splitlines()) == ["worker-0 │ hello 0", "worker-1 │ hello 1"]
    assert "demo succeeded" in result.err


def test_a_failed_job_shows_the_replica_and_the_cause(cli: Cli, site: JobNamespace) -> None:
    Path("train.py").write_text("raise SystemExit('no data')\n")
    result = cli(*TRAIN, "--name", "demo")
    assert result.code == 1
    assert "worker-0 failed first: exit code 1" in result.err
    assert result.out == "worker-0 │ no data\n"


def test_detached_job_is_listed_shown_read_and_removed(cli: Cli, site: JobNamespace) -> None:
    assert cli(*TRAIN, "--name", "demo", "--detach").out == "demo\n"
    assert cli("jobs", "wait", "demo", *ON).code == 0
    assert cli("jobs", "ls", "-q", *ON).out == "demo\n"
    output = json.loads(cli("jobs", "show", "demo", "--format", "json", *ON).out)
    assert (output["state"], output["where"]) == ("Succeeded", "kubernetes")
    assert cli("jobs", "logs", "demo", "worker-0", *ON).out == "hello 0\n"
    assert "python train.py" in cli("jobs", "show", "demo", "--command", "worker-0", *ON).out
    assert cli("jobs", "rm", "demo", *ON).code == 0
    assert cli("jobs", "ls", "-q", *ON).out == ""


def test_a_job_that_fits_on_no_node_says_so_and_fails_at_its_deadline(
    cli: Cli, site: JobNamespace
) -> None:
    site.behave(PodScript(unschedulable="0/1 nodes are available: 1 Insufficient cpu."))
    assert cli(*TRAIN, "--name", "demo", "--deadline", "2s", "--detach").code == 0
    result = cli("jobs", "wait", "demo", *ON)
    assert result.code == 1
    assert (
        "warning: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
        " (request less, make room on a node, or limit the wait with --deadline)"
    ) in result.err
    assert "active longer than specified deadline; not finished: worker-0" in result.err


def test_jobs_of_a_cluster_are_not_those_of_this_machine(cli: Cli, site: JobNamespace) -> None:
    assert cli(*TRAIN, "--name", "demo", "--detach").code == 0
    assert cli("jobs", "ls", "-q").out == ""


def test_a_sweep_runs_its_jobs_on_the_cluster(cli: Cli, site: JobNamespace) -> None:
    Path("train.py").write_text("import sys\nprint('loss', sys.argv[2])\n")
    pattern = ("--metric-pattern", r"loss (\d+)")
    result = cli(*TRAIN, "--name", "demo", "--sweep", "x=3,1,2", *pattern)
    assert result.code == 0, result.err
    assert "best: demo-2  x=1" in result.err


def test_unknown_context_is_named(cli: Cli, site: JobNamespace) -> None:
    result = cli("jobs", "ls", "--on", "kubernetes:nowhere")
    assert result.code == 2
    assert "nowhere" in result.err


def test_missing_credentials_fail_without_waiting(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}
    config = {
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "one", "user": {"exec": plugin}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    result = cli("jobs", "ls", *ON)
    assert (result.code, result.out) == (3, "")
    assert result.err == "error: credential plugin false failed with exit code 1\n"


def test_an_invalid_image_or_namespace_is_refused_before_anything_is_created(
    cli: Cli, site: JobNamespace
) -> None:
    result = cli("train", "train.py", "--framework", "pytorch", "--image", "Team Env", *ON)
    assert result.code == 2
    assert "Team Env" in result.err
    result = cli("jobs", "ls", "--on", "kubernetes:/Team_A")
    assert result.code == 2
    assert "invalid namespace 'Team_A'" in result.err
    assert cli("jobs", "ls", "-q", *ON).out == ""


def test_a_function_gives_its_value_from_the_cluster(site: JobNamespace) -> None:
    def work(x: int) -> int:
        return x + 1

    work.__module__ = "__main__"
    lines: list[str] = []
    value = danlu.train(work, args=(41,), image="team/env:1", on="kubernetes", log=lines.append)
    assert value == 42


def test_exception_of_a_remote_function_is_the_cause(site: JobNamespace) -> None:
    def work() -> None:
        raise LookupError("no such key")

    work.__module__ = "__main__"
    with pytest.raises(JobFailed) as caught:
        danlu.train(work, image="team/env:1", on="kubernetes", log=None)
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_detached_job_can_be_attached_to(site: JobNamespace) -> None:
    name = danlu.train(
        "train.py", framework="pytorch", image="i", on="kubernetes", detach=True, log=None
    )
    lines: list[str] = []
    assert danlu.attach(name, on="kubernetes", log=lines.append).state == "Succeeded"
    assert lines == ["worker-0 │ hello 0"]


def test_what_its_operator_takes_is_shown_and_may_be_larger(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> bytes:
        import danlu

        danlu.report(percentage=50, loss=0.5)
        return bytes(100_000)

    work.__module__ = "__main__"
    with open_site_in_threads(tmp_path / "pods", reports=True) as site:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(site, tmp_path / "kubeconfig")))
        value = danlu.train(work, name="demo", image="i", on="kubernetes", log=None)
        assert value == bytes(100_000)
        progress = anyio.run(_wait_for_progress, site, "demo")
    assert (progress.percentage, progress.metrics) == (50, {"loss": 0.5})


async def _wait_for_progress(site: JobNamespace, name: str) -> TrainingProgress:
    """Return the progress of a job; it is stored a moment after it was reported."""
    with anyio.fail_after(LIMIT):
        while (result := (await site.jobs.view(name)).progress) is None:
            await anyio.sleep(0.01)
    return result
