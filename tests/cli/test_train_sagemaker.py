"""``danlu train --on SAGEMAKER`` and ``danlu jobs``, as users type them.

The account is :mod:`tests.fakes.sagemaker`: real HTTP with moto, and jobs that run.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from danlu.jobs.sagemaker import client
from danlu.jobs.sagemaker.instance_types import INSTANCE_TYPES, InstanceType
from tests.cli.conftest import Cli
from tests.e2e.page_runner import create_home, create_variables, read_page, run_page
from tests.fakes.sagemaker import (
    BUCKET,
    DISTANT_BUCKET,
    PACKAGES,
    REGISTRY,
    ROLE,
    RunningAccount,
    serve_account,
)
from tests.serving.servers import install_packages
from tests.waiting import wait_for

pytestmark = pytest.mark.real

IMAGE = f"{REGISTRY}/team/torch:2"
ON = ("--on", "aws")
TRAIN = ("train", "train.py", "--framework", "pytorch", "--image", IMAGE, *ON)
SCRIPT = """
import os, pathlib, sys
import helper
print(helper.greeting, os.environ["RANK"], sys.argv[1:], flush=True)
print("of", os.environ["WORLD_SIZE"], os.environ["SM_CURRENT_HOST"], file=sys.stderr)
pathlib.Path(os.environ["DANLU_MODEL_DIR"], "weights").write_text(os.environ["RANK"])
pathlib.Path(os.environ["DANLU_CHECKPOINT_DIR"], "last.pt").write_text("3")
"""
FAILING = """
import os, sys, time
if os.environ["RANK"] == "1":
    raise SystemExit(open("missing.csv"))
time.sleep(60)
"""
WAITING = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
print("ready", flush=True)
time.sleep(60)
"""


HOSTILE = r"""
print("\x1b]0;title\x07\x1b[2Jinnocent\x1b[31m")
raise SystemExit("\x1b[2J\x1b]8;;http://evil.example\x07click\x1b]8;;\x07")
"""


RESUMING = """
import os, pathlib
last = pathlib.Path(os.environ["DANLU_CHECKPOINT_DIR"], "epoch")
epoch = int(last.read_text()) + 1 if last.exists() else 0
last.write_text(str(epoch))
print("epoch", epoch, flush=True)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_packages(tmp_path_factory.mktemp("moto"), *PACKAGES)


@pytest.fixture(scope="module")
def server(packages: Path) -> Iterator[RunningAccount]:
    with serve_account(packages) as account:
        yield account


@pytest.fixture
def account(
    server: RunningAccount, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunningAccount:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environ(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "POLL_SECONDS", 0.05)
    Path("train.py").write_text(SCRIPT)
    Path("helper.py").write_text("greeting = 'hello'\n")
    create_context(cli)
    return server


def create_context(cli: Cli, name: str = "aws", bucket: str = BUCKET, *words: str) -> None:
    engine = ("--engine", "sagemaker:us-east-1", "--bucket", bucket)
    role = () if "--role" in words else ("--role", ROLE)
    result = cli("context", "create", name, *engine, *role, *words)
    assert result.code == 0, result.err


def test_a_script_runs_on_all_hosts_and_its_lines_arrive(cli: Cli, account: RunningAccount) -> None:
    words = ("--epochs", "3", "a 'b' \"c\" $(HOME) 炉", "", "x" * 3000)
    result = cli(*TRAIN, "--name", "demo", "--worker", "2", "--", *words)
    assert result.code == 0, result.err
    expected = [f"worker-{rank} │ hello {rank} {list(words)}" for rank in (0, 1)]
    expected += [f"worker-{rank} │ of 2 algo-{rank + 1}" for rank in (0, 1)]
    assert sorted(result.out.splitlines()) == sorted(expected)
    assert "demo succeeded" in result.err
    assert result.err.count("the job stops after 1 day, SageMaker's default; see --deadline") == 1
    logs = cli("jobs", "logs", "demo", *ON).out
    assert sorted(logs.splitlines()) == sorted(expected)
    assert cli("jobs", "logs", "demo", "worker-1", "--tail", "1", *ON).out == "of 2 algo-2\n"
    shown = json.loads(cli("jobs", "show", "demo", "--format", "json", *ON).out)
    assert [each["state"] for each in shown["replicas"]] == ["Succeeded", "Succeeded"]
    assert shown["replicas"][1]["host"] == "algo-2"
    line = cli("jobs", "show", "demo", "--command", "worker-1", *ON).out
    assert "python train.py --epochs 3" in line
    assert "RANK=1" in line


def test_a_failed_job_names_the_replica_and_the_cause(cli: Cli, account: RunningAccount) -> None:
    Path("train.py").write_text(FAILING)
    result = cli(*TRAIN, "--name", "fails", "--worker", "2")
    assert result.code == 1
    assert "worker-1 failed first: FileNotFoundError" in result.err
    assert cli("jobs", "wait", "fails", *ON).code == 1
    shown = json.loads(cli("jobs", "show", "fails", "--format", "json", *ON).out)
    assert shown["status"]["firstFailure"]["replica"] == "worker-1"
    assert shown["status"]["firstFailure"]["exitCode"] == 1
    assert [each["state"] for each in shown["replicas"]] == ["Stopped", "Failed"]


def test_a_detached_job_is_listed_stopped_and_removed(cli: Cli, account: RunningAccount) -> None:
    Path("train.py").write_text(WAITING)
    assert cli(*TRAIN, "--name", "waits", "--detach").out == "waits\n"
    assert "waits" in cli("jobs", "ls", *ON).out
    running = cli("jobs", "rm", "waits", *ON)
    assert running.code == 2
    assert "is still running" in running.err
    assert cli(*TRAIN, "--name", "waits").code == 2  # the name is taken
    graceful = cli("jobs", "stop", "waits", "--grace", "5", *ON)
    assert graceful.code == 2
    assert "--grace 5: SageMaker gives programs 120 seconds" in graceful.err
    wait_for(lambda: "ready" in cli("jobs", "logs", "waits", *ON).out)
    assert cli("jobs", "stop", "waits", *ON).code == 0
    assert cli("jobs", "logs", "waits", *ON).out.endswith("│ ready\nworker-0 │ saved\n")
    shown = json.loads(cli("jobs", "show", "waits", "--format", "json", *ON).out)
    assert shown["state"] == "Stopped"
    assert cli("jobs", "rm", "waits", *ON).code == 0
    assert "waits" not in cli("jobs", "ls", *ON).out
    missing = cli("jobs", "show", "waits", *ON)
    assert missing.code == 2
    assert "job 'waits' not found in aws" in missing.err


@pytest.mark.slow
def test_a_deadline_ends_a_job(cli: Cli, account: RunningAccount) -> None:
    Path("train.py").write_text(WAITING)
    result = cli(*TRAIN, "--name", "late", "--deadline", "1s")
    assert result.code == 1
    assert "MaxRuntimeExceeded" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("suspend", "demo"), "cannot suspend or resume"),
        (("resume", "demo"), "cannot suspend or resume"),
        (("scale", "demo", "worker=3"), "cannot change the number"),
    ],
)
def test_what_the_service_cannot_do_is_refused(
    words: tuple[str, ...], message: str, cli: Cli, account: RunningAccount
) -> None:
    if not json.loads(cli("jobs", "ls", "--format", "json", *ON).out):
        assert cli(*TRAIN, "--name", "demo").code == 0
    result = cli("jobs", *words, *ON)
    assert result.code == 2, result.err
    assert message in result.err


@pytest.mark.slow
def test_ctrl_c_stops_the_job_and_waits_for_what_it_saves(
    cli: Cli, account: RunningAccount
) -> None:
    Path("train.py").write_text(WAITING)
    words = [sys.executable, "-m", "danlu", *TRAIN, "--name", "stopped"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "worker-0 │ ready\n"
        run.send_signal(signal.SIGINT)
        out, err = run.communicate()
    assert run.returncode == 130, err
    assert "stopping: waiting up to 120 s for worker-0 to save" in err
    shown = json.loads(cli("jobs", "show", "stopped", "--format", "json", *ON).out)
    assert shown["state"] == "Stopped"
    assert out == "worker-0 │ saved\n"


def test_hostile_lines_are_shown_without_their_control_sequences(
    cli: Cli, account: RunningAccount
) -> None:
    Path("train.py").write_text(HOSTILE)
    result = cli(*TRAIN, "--name", "hostile")
    assert result.code == 1
    shown = cli("jobs", "show", "hostile", *ON)
    listed = cli("jobs", "logs", "hostile", *ON)
    for text in (result.out, result.err, shown.out, listed.out):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "worker-0 │ innocent" in listed.out


# -- what jobs save --------------------------------------------------------------------------------


def test_model_output_and_checkpoints_come_back(cli: Cli, account: RunningAccount) -> None:
    assert cli(*TRAIN, "--name", "saves").code == 0
    result = cli("jobs", "fetch", "saves", "here", *ON)
    assert result.out == "here/model/\nhere/checkpoints/\n", result.err
    assert Path("here/model/weights").read_text() == "0"
    assert Path("here/checkpoints/last.pt").read_text() == "3"
    again = cli("jobs", "fetch", "saves", "here", *ON)
    assert again.code == 2
    assert "exists already" in again.err
    elsewhere = cli("jobs", "fetch", "saves")
    assert elsewhere.code == 2
    assert "only SageMaker keeps" in elsewhere.err


@pytest.mark.parametrize("kind", ["parent", "link", "device", "truncated"])
def test_a_hostile_archive_writes_nothing(kind: str, cli: Cli, account: RunningAccount) -> None:
    assert cli(*TRAIN, "--name", f"hostile-{kind}").code == 0
    key = f"danlu/jobs/hostile-{kind}/output/model.tar.gz"
    connect_s3().put_object(Bucket=BUCKET, Key=key, Body=make_archive(kind))
    result = cli("jobs", "fetch", f"hostile-{kind}", "here", *ON)
    assert result.code == 3, result.out
    assert "cannot unpack output/model.tar.gz" in result.err
    assert not Path("here").exists()
    assert {path.name for path in Path.cwd().iterdir()} == {"train.py", "helper.py"}
    assert not Path("../escaped").exists()


def make_archive(kind: str) -> bytes:
    """Return an archive with what a model must not have."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        member = tarfile.TarInfo({"parent": "../../escaped"}.get(kind, "a"))
        if kind == "link":
            member.type, member.linkname = tarfile.SYMTYPE, ".."
            archive.addfile(member)
            member = tarfile.TarInfo("a/../../escaped")
        elif kind == "device":
            member.type = tarfile.CHRTYPE
        member.size = 0 if kind == "device" else 4
        archive.addfile(member, io.BytesIO(b"evil"))
    return data.getvalue()[: 40 if kind == "truncated" else None]


def connect_s3() -> Any:
    import boto3

    return boto3.client("s3", region_name="us-east-1")


CALL = f"""
import os
import danlu

def fit(rate):
    if rate > 1:
        raise ValueError("too high")
    return {{"rank": int(os.environ["RANK"]), "rate": rate}}

if __name__ == "__main__":
    options = {{"workers": 2, "image": "{IMAGE}", "on": "aws", "framework": "pytorch"}}
    print(danlu.train(fit, args=[0.5], every=True, **options))
    try:
        danlu.train(fit, args=[2], **options)
    except danlu.JobFailed as error:
        print(repr(error.__cause__))
"""


CELL = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "danlu.notebook")
options = "--on aws --image {IMAGE} --worker 2 --framework pytorch"
shell.run_cell("k = 5")
shell.run_cell(
    f"%%distributed {{options}} --send k --return x\\n"
    "import os\\nx = int(os.environ['RANK']) + k\\nprint('in the cell', x)"
)
print("returned", shell.user_ns["x"])
found = shell.run_cell(f"%%distributed {{options}}\\nraise KeyError('gone')")
print(type(found.error_in_exec).__name__, found.error_in_exec)
"""


@pytest.mark.slow
def test_a_cell_sends_and_returns_variables(cli: Cli, account: RunningAccount) -> None:
    Path("cell.py").write_text(CELL)
    done = subprocess.run([sys.executable, "cell.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "worker-1 │ in the cell 6\n" in done.stdout
    assert "returned 5\n" in done.stdout
    assert "failed first: KeyError: 'gone' (line 2 of the cell)" in done.stdout


@pytest.mark.slow
def test_a_function_returns_values_and_exceptions(cli: Cli, account: RunningAccount) -> None:
    Path("call.py").write_text(CALL)
    done = subprocess.run([sys.executable, "call.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values = {f"worker-{rank}": {"rank": rank, "rate": 0.5} for rank in (0, 1)}
    assert f"{values}\n" in done.stdout
    assert "ValueError('too high')" in done.stdout


@pytest.mark.slow
def test_a_sweep_is_a_training_job_per_point(cli: Cli, account: RunningAccount) -> None:
    Path("train.py").write_text("import sys\nprint('loss', float(sys.argv[2]) ** 2, sys.argv)\n")
    words = ("--sweep", "lr=3,1,2", "--metric-pattern", r"loss (\S+)", "--parallel", "2")
    result = cli(*TRAIN, "--name", "tune", *words)
    assert result.code == 0, result.err
    assert "lr=1" in result.err
    views = json.loads(cli("jobs", "ls", "--format", "json", *ON).out)
    labels = {view["name"]: view["labels"] for view in views}
    assert [labels[f"tune-{number}"]["sweep.lr"] for number in (1, 2, 3)] == ["3", "1", "2"]


@pytest.mark.slow
def test_instance_types_have_the_sizes_of_ec2(packages: Path) -> None:
    with gzip.open(packages / "moto/ec2/resources/instance_types.json.gz") as file:
        recorded = json.load(file)
    for instance in INSTANCE_TYPES:
        found = recorded[instance.name.removeprefix("ml.")]
        gpus = found.get("GpuInfo", {}).get("Gpus", [])
        assert instance == InstanceType(
            instance.name,
            found["VCpuInfo"]["DefaultVCpus"],
            found["MemoryInfo"]["SizeInMiB"] >> 10,
            sum(gpu["Count"] for gpu in gpus),
            "".join(gpu["Name"] for gpu in gpus),
        )


def list_checks(cli: Cli, context: str = "aws") -> dict[str, tuple[bool, str]]:
    checks = json.loads(cli("doctor", "--format", "json", "--on", context).out)
    return {check["name"]: (check["ok"], check["detail"]) for check in checks}


@pytest.mark.slow
def test_doctor_checks_the_account(
    cli: Cli, account: RunningAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = list_checks(cli)
    assert checks["AWS credentials"][0]
    assert checks["S3 bucket"] == (True, f"s3://{BUCKET}")
    assert checks["SageMaker role"] == (True, ROLE)
    assert checks["SageMaker"] == (True, "training jobs in us-east-1")
    assert checks["ECR"] == (True, REGISTRY)
    wrong = ("--role", "arn:aws:iam::210987654321:role/Other")
    create_context(cli, "wrong", DISTANT_BUCKET, *wrong)
    checks = list_checks(cli, "wrong")
    assert "is of another account" in checks["AWS credentials"][1]
    assert checks["SageMaker role"] == (False, "role Other not found")
    assert checks["S3 bucket"] == (
        False,
        f"bucket {DISTANT_BUCKET} is in eu-west-1, not in us-east-1",
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert not list_checks(cli)["SageMaker"][0]


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "reason", "hint"),
    [
        ("AKIAEXPIRED", "ExpiredTokenException", "aws sso login"),
        ("AKIADENIED", "AccessDeniedException", "IAM policy"),
    ],
)
def test_refused_credentials_are_reported(
    key: str,
    reason: str,
    hint: str,
    cli: Cli,
    account: RunningAccount,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    result = cli(*TRAIN, "--name", "refused")
    assert result.code == 3, result.err
    assert reason in result.err
    assert hint in result.err


def test_missing_credentials_are_reported(
    cli: Cli, account: RunningAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    result = cli(*TRAIN)
    assert result.code == 4, result.err
    assert "no credentials for AWS" in result.err


@pytest.mark.parametrize(
    ("bucket", "words", "code", "message", "hint"),
    [
        ("nobody-has-it", (), 3, "NoSuchBucket", "aws s3 mb"),
        (DISTANT_BUCKET, (), 2, "is in eu-west-1, but", "create the context again"),
        (BUCKET, ("--instance-type", "ml.p5.48xlarge"), 3, "ResourceLimitExceeded", "Quotas"),
        (BUCKET, ("--instance-type", "ml.p4d.24xlarge"), 1, "CapacityError", "try again later"),
        (
            BUCKET,
            ("--role", "arn:aws:iam::123456789012:role/missing"),
            3,
            "Could not assume role",
            "trust policy",
        ),
    ],
)
def test_a_request_that_the_account_refuses_is_explained(
    bucket: str,
    words: tuple[str, ...],
    code: int,
    message: str,
    hint: str,
    cli: Cli,
    account: RunningAccount,
) -> None:
    create_context(cli, "other", bucket, *words)
    result = cli(*TRAIN[:-1], "other")
    assert result.code == code, result.err
    assert message in result.err
    assert hint in result.err


def test_a_list_without_its_bucket_is_explained(cli: Cli, account: RunningAccount) -> None:
    create_context(cli, "nowhere", "nobody-has-it")
    result = cli("jobs", "ls", "--on", "nowhere")
    assert result.code == 3
    assert "bucket nobody-has-it not found (NoSuchBucket)" in result.err
    assert "aws s3 mb s3://nobody-has-it" in result.err


def test_a_failed_submission_leaves_nothing(cli: Cli, account: RunningAccount) -> None:
    create_context(cli, "big", BUCKET, "--instance-type", "ml.p5.48xlarge")
    assert cli(*TRAIN[:-1], "big", "--name", "never").code == 3
    assert "never" not in list_keys(account)


def list_keys(account: RunningAccount) -> str:
    """Return the keys of the bucket, as the service lists them."""
    found = connect_s3().list_objects_v2(Bucket=BUCKET).get("Contents", ())
    return "\n".join(entry["Key"] for entry in found)


def test_a_job_of_somebody_else_does_not_exist(cli: Cli, account: RunningAccount) -> None:
    assert cli(*TRAIN, "--name", "mine").code == 0
    assert cli(*TRAIN, "--name", "mine-2").code == 0
    create_context(cli, "other-bucket", DISTANT_BUCKET)
    for words in (("show", "mine"), ("stop", "mine"), ("rm", "mine")):
        result = cli("jobs", *words, "--on", "other-bucket")
        assert result.code == 2, result.err
        assert "not found in other-bucket" in result.err
    assert cli("jobs", "rm", "mine", *ON).code == 0
    assert "danlu/jobs/mine/" not in list_keys(account)
    assert cli("jobs", "logs", "mine-2", *ON).out
    assert "danlu/jobs/mine-2/output/model.tar.gz" in list_keys(account)


@pytest.mark.slow
def test_the_next_job_of_a_name_continues_from_its_checkpoints(
    cli: Cli, account: RunningAccount
) -> None:
    Path("train.py").write_text(RESUMING)
    assert cli(*TRAIN, "--name", "resumes").out == "worker-0 │ epoch 0\n"
    result = cli(*TRAIN, "--name", "resumes", "--replace")
    assert result.out == "worker-0 │ epoch 1\n", result.err


@pytest.mark.slow
def test_two_jobs_of_one_name_do_not_mix_their_code(
    cli: Cli, account: RunningAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_no_job(self: object, name: str) -> None:
        pass

    assert cli(*TRAIN, "--name", "raced").code == 0
    keys = [key for key in list_keys(account).splitlines() if "/raced/input/" in key]
    # As if the other job had not been there yet.
    monkeypatch.setattr(client.SageMakerJobs, "_ensure_name_free", find_no_job)
    Path("train.py").write_text("print('other')\n")
    result = cli(*TRAIN, "--name", "raced")
    assert result.code == 2
    assert "job raced already exists" in result.err
    assert set(keys) <= set(list_keys(account).splitlines())
    assert "danlu run" in cli("jobs", "show", "raced", "--command", "worker-0", *ON).out


@pytest.mark.slow
def test_the_guide_works_as_written(account: RunningAccount, cli: Cli, tmp_path: Path) -> None:
    blocks = [
        replace(block, needs="")
        for block in read_page("guides/sagemaker")
        if block.title == "train.py" or block.needs == "an account of AWS"
    ]
    assert len(blocks) > 1
    place = tmp_path / "page"
    place.mkdir()
    with create_home(place) as home:
        environ = create_variables(home, place) | account.environ(tmp_path) | {"COLUMNS": "100"}
        run_page(blocks, place / "none", place / "project", environ, {})
