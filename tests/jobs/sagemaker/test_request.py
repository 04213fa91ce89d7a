"""``danlu train --on SAGEMAKER --dry-run``: the request, option by option, without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.contexts import SageMakerAccount
from danlu.engine.settings import load_settings
from danlu.errors import UsageError
from danlu.jobs.sagemaker.instance_types import (
    _PROCESSOR_LEVELS,
    INSTANCE_TYPES,
    ReplicaRequest,
    check_processor,
    choose_instance_type,
)
from danlu.jobs.sagemaker.request import render_request
from danlu.jobs.types import Submission
from danlu.submission.options import JOB_OPTIONS, TrainOptions
from danlu.submission.plan import plan_job
from danlu.submission.submission import build_submission
from tests.cli.conftest import Cli, CliResult, cli, home  # noqa: F401
from tests.fakes.sagemaker import BUCKET, REGISTRY, ROLE

IMAGE = f"{REGISTRY}/team/torch:2"
ON = ("--on", "aws")
TRAIN = ("train", "train.py", "--framework", "pytorch", "--image", IMAGE, "--name", "demo", *ON)
DRY = ("--dry-run", "-o", "json")
CREATE = ("context", "create", "aws", "--engine", "sagemaker:us-east-1")
ACCOUNT = ("--role", ROLE, "--bucket", BUCKET)


@pytest.fixture
def account(cli: Cli) -> Cli:  # noqa: F811
    Path("train.py").write_text("import helper, sys\nprint(sys.argv)\n")
    Path("helper.py").write_text("")
    assert cli(*CREATE, *ACCOUNT).code == 0
    return cli


def dry_run(cli: Cli, *words: str) -> dict[str, Any]:  # noqa: F811
    """Return the request, which the SDK's own validator has checked."""
    result = cli(*words, *DRY)
    assert result.code == 0, result.err
    request: dict[str, Any] = json.loads(result.out)
    from botocore.session import get_session
    from botocore.validate import ParamValidator

    shape = get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
    assert not ParamValidator().validate(request, shape.input_shape).generate_report()
    return request


def test_instances_run_the_programs_of_the_image() -> None:
    check_processor("ml.m5.large", "", "")
    check_processor("ml.m5.large", "amd64", "x86-64-v4")
    check_processor("ml.g5.xlarge", "amd64", "x86-64-v3")
    check_processor("ml.x9.large", "amd64", "x86-64-v4")  # not in the table
    with pytest.raises(UsageError, match=r"ml\.g5\.xlarge has x86-64-v3") as level:
        check_processor("ml.g5.xlarge", "amd64", "x86-64-v4")
    assert "g4dn" in level.value.hint
    assert "g6" not in level.value.hint
    with pytest.raises(UsageError, match="linux/arm64"):
        check_processor("ml.m5.large", "arm64", "")
    families = {each.name.split(".")[1] for each in INSTANCE_TYPES}
    assert families == set(_PROCESSOR_LEVELS)


def test_one_request_has_everything_of_the_job(account: Cli) -> None:
    request = dry_run(account, *TRAIN, "--worker", "8", "--gpu", "1", "-e", "SEED=3")
    source = request["InputDataConfig"][0]["DataSource"]["S3DataSource"]
    assert re.fullmatch(f"s3://{BUCKET}/danlu/jobs/demo/input/[0-9a-f]{{16}}/", source["S3Uri"])
    assert request == {
        "TrainingJobName": "demo",
        "AlgorithmSpecification": {
            "TrainingImage": IMAGE,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "-I", "/opt/ml/input/data/danlu/sagemaker.py"],
            "ContainerArguments": ["train"],
        },
        "RoleArn": ROLE,
        "InputDataConfig": [
            {
                "ChannelName": "danlu",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": source["S3Uri"],
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
        ],
        "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/danlu/jobs/"},
        "ResourceConfig": {
            "InstanceType": "ml.g4dn.xlarge",
            "InstanceCount": 8,
            "VolumeSizeInGB": 30,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/danlu/checkpoints/demo/"},
        "Environment": {
            "DANLU_CHECKPOINT_DIR": "/opt/ml/checkpoints",
            "DANLU_JOB": "pytorch Worker=8",
            "DANLU_MODEL_DIR": "/opt/ml/model",
            "DANLU_TRAIN_COMMAND": '["python3", "-I", "/opt/ml/input/data/danlu/replica",'
            ' "train.py"]',
            "DANLU_TRAIN_FRAMEWORK": "pytorch",
            "PYTHONUNBUFFERED": "1",
            "SEED": "3",
            "MASTER_ADDR": "algo-1",
            "MASTER_PORT": "23456",
            "WORLD_SIZE": "8",
            "PET_MASTER_ADDR": "algo-1",
            "PET_MASTER_PORT": "23456",
            "PET_NNODES": "8",
            "PET_NPROC_PER_NODE": "auto",
        },
        "Tags": [{"Key": "danlu:job", "Value": "demo"}],
    }


def test_the_choice_of_an_instance_type_is_printed(account: Cli) -> None:
    result = account(*TRAIN, "--memory", "50Gi", *DRY)
    assert "instance type ml.r5.2xlarge (8 CPUs, 64 GiB) for 50 GiB" in result.err
    assert "the job stops after 1 day" in result.err


# -- options ---------------------------------------------------------------------------------------

Check = Callable[[dict[str, Any]], bool]

MAPPED: dict[str, tuple[tuple[str, ...], Check]] = {
    "framework": (
        ("--framework", "tensorflow"),
        lambda request: request["Environment"]["DANLU_JOB"] == "tensorflow Worker=1",
    ),
    "cpu": (
        ("--cpu", "3"),
        lambda request: request["ResourceConfig"]["InstanceType"] == "ml.c5.xlarge",
    ),
    "memory": (
        ("--memory", "9Gi"),
        lambda request: (
            request["ResourceConfig"]["InstanceType"] == "ml.c5.2xlarge"
            or request["ResourceConfig"]["InstanceType"] == "ml.m5.xlarge"
        ),
    ),
    "gpu": (
        ("--gpu", "4"),
        lambda request: request["ResourceConfig"]["InstanceType"] == "ml.g4dn.12xlarge",
    ),
    "env": (("--env", "A=b c"), lambda request: request["Environment"]["A"] == "b c"),
    "image": (
        ("--image", f"{REGISTRY}/other:1"),
        lambda request: request["AlgorithmSpecification"]["TrainingImage"].endswith("/other:1"),
    ),
    "name": (("--name", "other"), lambda request: request["TrainingJobName"] == "other"),
    "backoff-limit": (
        ("--backoff-limit", "3"),
        lambda request: request["RetryStrategy"] == {"MaximumRetryAttempts": 3},
    ),
    "restart": (
        ("--restart", "job", "--backoff-limit", "2"),
        lambda request: request["RetryStrategy"] == {"MaximumRetryAttempts": 2},
    ),
    "deadline": (
        ("--deadline", "90m"),
        lambda request: request["StoppingCondition"] == {"MaxRuntimeInSeconds": 5400},
    ),
}
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "host-python": (("--host-python", "--image", ""), "--host-python cannot be used"),
    "clean-pod-policy": (("--clean-pod-policy", "All"), "nothing like --clean-pod-policy"),
    "queue": (("--queue", "research"), "--queue"),
    "volume": (("--volume", "data:/data"), "--volume cannot be used"),
    "claim": (("--claim", "a=b"), "--claim cannot be used"),
    "finish-timeout": (("--finish-timeout", "5m"), "nothing like --finish-timeout"),
    "restart": (("--restart", "Always"), "--restart Always: SageMaker restarts whole jobs"),
    "backoff-limit": (("--backoff-limit", "31"), "at most 30 times"),
    "deadline": (("--deadline", "29d"), "at most 28 days"),
    "gpu": (("--gpu", "9"), "no instance type with 9 GPUs"),
    "image": (("--image", "docker.io/team/torch:2"), "pulls images from Amazon ECR in us-east-1"),
}
#: Of ``danlu train``: where the job runs, and sweeps, whose jobs are requests like this one.
OF_SWEEPS = ("sweep", "parallel", "metric", "goal", "metric-pattern", "trials", "storage")


def test_every_option_is_expressed_or_refused() -> None:
    options = {option.name for option in JOB_OPTIONS if option.flag}
    assert options == {*MAPPED, *REFUSED, *OF_SWEEPS}


@pytest.mark.parametrize("option", MAPPED)
def test_an_option_is_part_of_the_request(option: str, account: Cli) -> None:
    words, check = MAPPED[option]
    request = dry_run(account, *TRAIN, *words)
    assert check(request), request


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_that_sagemaker_lacks_is_refused_by_name(option: str, account: Cli) -> None:
    words, message = REFUSED[option]
    result = account(*TRAIN, *words, *DRY)
    assert result.code == 2, result.err
    assert message in result.err
    assert not result.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--grace", "5"), "SageMaker gives programs 120 seconds"),
        (("--framework", "mpi"), "MPIJob cannot run on SageMaker: its replicas start processes"),
        (("--framework", "paddle"), "PaddleJob cannot run on SageMaker: its replicas need the IP"),
        (
            ("--framework", "tensorflow", "--ps", "1", "--worker", "2"),
            "TFJob with PS replicas cannot run",
        ),
        (("--dry-run", "-o", "argo"), "-o argo is for a cluster"),
    ],
)
def test_other_words_without_a_meaning_are_refused(
    words: tuple[str, ...], message: str, account: Cli
) -> None:
    result = account(*TRAIN, *("--dry-run",) * ("--dry-run" not in words), *words)
    assert result.code == 2, result.out
    assert message in result.err


def test_kinds_of_other_versions_are_refused(account: Cli) -> None:
    Path("job.yaml").write_text(
        "{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, metadata: {name: demo},"
        " spec: {runtimeRef: {name: torch-distributed}}}"
    )
    result = account("train", "-f", "job.yaml", *ON, *DRY)
    assert result.code == 2, result.out
    assert "TrainJob of trainer.kubeflow.org/v1alpha1 cannot run on SageMaker" in result.err


def test_the_grace_period_is_that_of_the_service(account: Cli) -> None:
    assert dry_run(account, *TRAIN, "--grace", "120")


MANIFEST = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: demo}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: pytorch
              image: IMAGE
              command: [python, "$(SCRIPT)"]
              env: [{name: SCRIPT, value: "a b.py"}]
"""


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (("containers:", "nodeSelector: {a: b}\n          containers:"), "spec.nodeSelector"),
        (("containers:", "tolerations: [{}]\n          containers:"), "spec.tolerations"),
        (("image:", "livenessProbe: {exec: {command: [a]}}\n              image:"), "liveness"),
        (("image:", "resources: {limits: {amd.com/gpu: 1}}\n              image:"), "amd.com"),
        (("[{name: SCRIPT, value: ", "[{name: SCRIPT, valueFrom: {}, x: "), "valueFrom"),
        (("command:", "args:"), "no command"),
        (("spec:\n  pytorch", "spec:\n  runPolicy: {suspend: true}\n  pytorch"), "suspend"),
        (("spec:\n  pytorch", "spec:\n  elasticPolicy: {}\n  pytorch"), "elasticPolicy"),
        (("            - name", "            - {name: p, image: p}\n            - name"), "p of"),
    ],
)
def test_fields_of_a_manifest_without_a_meaning_are_refused(
    change: tuple[str, str], field: str, account: Cli
) -> None:
    text = MANIFEST.replace("IMAGE", IMAGE)
    Path("job.yaml").write_text(text)
    assert dry_run(account, "train", "-f", "job.yaml", *ON)["ResourceConfig"]["InstanceCount"] == 2
    assert change[0] in text
    Path("job.yaml").write_text(text.replace(*change))
    result = account("train", "-f", "job.yaml", *ON, *DRY)
    assert result.code == 2, result.out
    assert field in result.err


# -- what hosts run --------------------------------------------------------------------------------

ODD_WORDS = ("--text", "a 'b' \"c\" $(HOME) $$ 炉\n", "", "x" * 5000)


def submit(*args: str, **options: Any) -> Submission:
    settings = load_settings()
    values = {"framework": "pytorch", "image": IMAGE, "name": "demo", "on": "aws"} | options
    train = TrainOptions.from_keywords(Path.cwd(), script="train.py", args=args, **values)
    planned = plan_job(train, settings=settings)
    return build_submission(planned, train, settings=settings, progress=lambda event: None)


def test_words_and_variables_of_any_length_reach_every_host(account: Cli) -> None:
    variables = {f"V{number}": "v" * 600 for number in range(2)} | {"REF": "$(V0)"}
    variables |= {f"W{number}": "w" for number in range(120)} | {"my.name": "n"}
    submission = submit(*ODD_WORDS, workers=2, environment=variables)
    request = render_request(submission, SageMakerAccount(ROLE, BUCKET), "us-east-1")
    content = request.objects["job.json"]
    assert isinstance(content, bytes)
    job = json.loads(content)
    shared = request.document["Environment"]
    assert len(shared) == 100
    assert all(len(value) <= 512 for value in shared.values())
    assert "my.name" not in shared
    for host, rank in (("algo-1", "0"), ("algo-2", "1")):
        replica = job["replicas"][host]
        assert replica["command"] == ["python", "train.py", *ODD_WORDS]
        found = replica["variables"] | shared
        assert found["RANK"] == rank
        assert {name: found[name] for name in variables} == variables
    assert {"code/train.py", "code/helper.py"} <= request.objects.keys()


def test_labels_are_tags_within_their_limits(account: Cli) -> None:
    labels = {"a b": "x" * 300, "c\n": "é{}", "c\r": "last", "n" * 200: "v"}
    labels |= {f"l{number}": "v" for number in range(100)}
    submission = submit(labels=labels)
    request = render_request(submission, SageMakerAccount(ROLE, BUCKET), "us-east-1")
    tags = {tag["Key"]: tag["Value"] for tag in request.document["Tags"]}
    assert len(tags) == len(request.document["Tags"]) == 50
    assert tags["danlu:a b"] == "x" * 256
    assert tags["danlu:c_"] == "last"
    assert max(map(len, tags)) == 128


def test_each_host_has_the_variables_of_its_replica(account: Cli) -> None:
    submission = submit(framework="tensorflow", replicas={"chief": 1, "worker": 1})
    request = render_request(submission, SageMakerAccount(ROLE, BUCKET), "us-east-1")
    content = request.objects["job.json"]
    assert isinstance(content, bytes)
    replicas = json.loads(content)["replicas"]
    found = {host: json.loads(each["variables"]["TF_CONFIG"]) for host, each in replicas.items()}
    cluster = {"chief": ["algo-1:2222"], "worker": ["algo-2:2222"]}
    assert [each["cluster"] for each in found.values()] == [cluster, cluster]
    assert [each["task"]["type"] for each in found.values()] == ["chief", "worker"]


# -- instance types --------------------------------------------------------------------------------


def test_the_context_chooses_the_instance_type_unless_it_is_too_small() -> None:
    assert choose_instance_type(ReplicaRequest(), "ml.g5.xlarge") == ("ml.g5.xlarge", "")
    assert choose_instance_type(ReplicaRequest(2), "ml.x9.large") == ("ml.x9.large", "")
    chosen, why = choose_instance_type(ReplicaRequest(gpus=8), "ml.g5.xlarge")
    assert chosen == "ml.g5.48xlarge"
    assert "because ml.g5.xlarge (4 CPUs, 16 GiB, 1 × A10G) is too small" in why


def test_instance_types_are_those_of_the_service() -> None:
    from botocore.session import get_session

    model = get_session().get_service_model("sagemaker")
    known = set(model.shape_for("TrainingInstanceType").enum)
    assert {instance.name for instance in INSTANCE_TYPES} <= known


# -- contexts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*CREATE,), "needs the role and the bucket"),
        ((*CREATE, "--role", "Train", "--bucket", BUCKET), "invalid role 'Train'"),
        ((*CREATE, "--role", ROLE, "--bucket", "s3://b"), "invalid bucket 's3://b'"),
        ((*CREATE[:-1], "sagemaker", *ACCOUNT), "invalid region ''"),
        ((*CREATE, *ACCOUNT, "--instance-type", "g5"), "invalid instance type 'g5'"),
        ((*CREATE[:-1], "kubernetes", *ACCOUNT), "need --engine sagemaker:REGION"),
    ],
)
def test_an_incomplete_account_is_refused(
    words: tuple[str, ...],
    message: str,
    cli: Cli,  # noqa: F811
) -> None:
    result = cli(*words)
    assert result.code == 2, result.err
    assert message in result.err


def test_a_context_shows_its_account(account: Cli) -> None:
    shown = json.loads(account("context", "show", "aws", "--format", "json").out)
    assert shown["region"] == "us-east-1"
    assert shown["registry"] == REGISTRY
    assert account("context", "ls").out.splitlines()[-1].split() == ["aws", "sagemaker:us-east-1"]


def test_no_environment_runs_in_an_account(account: Cli) -> None:
    Path("build.envd").write_text("def build():\n    base()\n")
    for words in (("up",), ("run", "true")):
        result: CliResult = account(words[0], *ON, *words[1:])
        assert result.code in (2, 125)
        assert "only training jobs run in sagemaker" in result.err
