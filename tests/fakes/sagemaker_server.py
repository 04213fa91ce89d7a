"""An account of AWS that runs its training jobs: moto over HTTP, and processes for the hosts.

A program of its own, run by :func:`tests.fakes.sagemaker.serve_account` where moto is installed.
Requests are checked against the service's own model. A job follows SageMaker's contract (the
directories below ``/opt/ml``, ``output/failure``, SIGTERM, the archives of output), but for two
things: hosts are directories of this machine, whose paths replace ``/opt/ml`` and ``/workspace`` in
the input, and their names resolve to it. Credentials and instance types choose what goes wrong.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
from botocore.session import get_session
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.sagemaker.responses import SageMakerResponse
from moto.server import ThreadedMotoServer

GROUP = "/aws/sagemaker/TrainingJobs"
REGION = "us-east-1"
#: What goes wrong, by the instance type of a request, and by the access key.
QUOTA, CAPACITY, INTERNAL = "ml.p5.48xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge"
REFUSED_KEYS = {"AKIAEXPIRED": "ExpiredTokenException", "AKIADENIED": "AccessDeniedException"}

#: The classes of characters in the service's model, as Python has them.
JAVA_CLASSES = {r"\p{L}": r"\w", r"\p{N}": r"\d", r"\p{Z}": " ", r"\p{Alnum}": "a-zA-Z0-9"}

#: Runs a program as on a host of the job, where the names of all hosts resolve.
HOST = """
import runpy, socket, sys
socket.gethostbyname = lambda name: "127.0.0.1"
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Refusal(ServiceException):  # type: ignore[misc]
    """An error of the service, with its code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_shape(shape: Any, value: Any, path: str) -> None:
    """Raise as the service does for a value that its model does not allow."""
    if shape.type_name == "structure":
        for name in value:
            if name not in shape.members:
                raise Refusal("ValidationException", f"unknown member {path}.{name}")
            check_shape(shape.members[name], value[name], f"{path}.{name}")
        missing = set(shape.required_members).difference(value)
        if missing:
            raise Refusal("ValidationException", f"missing {path}.{missing}")
        return
    limits = shape.metadata
    size = value if shape.type_name in ("integer", "long") else len(value)
    if shape.type_name != "boolean" and not (
        limits.get("min", 0) <= size <= limits.get("max", float("inf"))
    ):
        raise Refusal("ValidationException", f"{path} {value!r}: not within {limits}")
    if shape.type_name == "list":
        for position, item in enumerate(value):
            check_shape(shape.member, item, f"{path}[{position}]")
    elif shape.type_name == "map":
        for key, item in value.items():
            check_shape(shape.key, key, f"{path} key")
            check_shape(shape.value, item, f"{path}.{key}")
    elif shape.type_name == "string":
        pattern = limits.get("pattern", "")
        for name, characters in JAVA_CLASSES.items():
            pattern = pattern.replace(name, characters)
        if pattern and not re.fullmatch(pattern, value):
            raise Refusal("ValidationException", f"{path} {value!r} does not match {pattern}")
        if shape.enum and value not in shape.enum:
            raise Refusal("ValidationException", f"{path} {value!r} is not one of {shape.enum}")


MODEL = get_session().get_service_model("sagemaker")


class TrainingJob:
    """A job, and the processes of its hosts."""

    def __init__(self, account: Account, request: dict[str, Any]) -> None:
        self.account = account
        self.request = request
        self.name = request["TrainingJobName"]
        self.root = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=account.root))
        self.status, self.secondary, self.reason = "InProgress", "Starting", ""
        self.created = time.time()
        self.started: float | None = None
        self.ended: float | None = None
        self.transitions: list[dict[str, Any]] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped_by = ""
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.run)

    def describe(self) -> dict[str, Any]:
        described = {
            **self.request,
            "TrainingJobArn": f"arn:aws:sagemaker:{REGION}:123456789012:training-job/{self.name}",
            "TrainingJobStatus": self.status,
            "SecondaryStatus": self.secondary,
            "SecondaryStatusTransitions": self.transitions,
            "FailureReason": self.reason[:1024],
            "CreationTime": self.created,
            "TrainingStartTime": self.started,
            "TrainingEndTime": self.ended,
            "LastModifiedTime": self.ended or self.started or self.created,
        }
        described.pop("Tags", None)
        return {name: value for name, value in described.items() if value not in (None, "")}

    def enter(self, secondary: str, message: str, status: str = "InProgress") -> None:
        transition = {"Status": secondary, "StatusMessage": message, "StartTime": time.time()}
        with self.changed:
            self.status, self.secondary = status, secondary
            self.transitions.append(transition)
            self.changed.notify_all()

    def run(self) -> None:
        self.enter("Starting", "Preparing the instances for training")
        instance = self.request["ResourceConfig"]["InstanceType"]
        if instance in (CAPACITY, INTERNAL):
            code = "CapacityError" if instance == CAPACITY else "InternalServerError"
            self.finish("Failed", "Failed", f"{code}: Unable to provision requested ML compute.")
            return
        try:
            failed = self.run_hosts()
        except Exception as error:
            self.finish("Failed", "Failed", f"InternalServerError: {error!r}")
            return
        self.enter("Uploading", "Uploading generated training model")
        self.upload()
        if self.stopped_by:
            self.finish("Stopped", self.stopped_by, "")
        elif failed:
            self.finish("Failed", "Failed", failed)
        else:
            self.finish("Completed", "Completed", "")

    def finish(self, status: str, secondary: str, reason: str) -> None:
        self.reason, self.ended = reason, time.time()
        self.enter(secondary, "Training job ended", status)

    def run_hosts(self) -> str:
        hosts = [f"algo-{n + 1}" for n in range(self.request["ResourceConfig"]["InstanceCount"])]
        for host in hosts:
            self.prepare(host, hosts)
        self.enter("Training", "Training image download completed. Training in progress.")
        self.started = time.time()
        readers = [threading.Thread(target=self.run_host, args=(host,)) for host in hosts]
        limit = self.request["StoppingCondition"]["MaxRuntimeInSeconds"]
        timer = threading.Timer(limit, self.stop, ("MaxRuntimeExceeded",))
        timer.daemon = True
        for thread in (*readers, timer):
            thread.start()
        for reader in readers:
            reader.join()
        timer.cancel()
        return self.reason

    def prepare(self, host: str, hosts: list[str]) -> None:
        base = self.root / host
        config = base / "input" / "config"
        config.mkdir(parents=True)
        for name in ("model", "output", "checkpoints", "workspace"):
            (base / name).mkdir()
        resources = {"current_host": host, "hosts": hosts, "network_interface_name": "eth0"}
        (config / "resourceconfig.json").write_text(json.dumps(resources))
        (config / "hyperparameters.json").write_text("{}")
        channels: dict[str, Any] = {
            channel["ChannelName"]: {} for channel in self.request["InputDataConfig"]
        }
        (config / "inputdataconfig.json").write_text(json.dumps(channels))
        for channel in self.request["InputDataConfig"]:
            uri = channel["DataSource"]["S3DataSource"]["S3Uri"]
            target = base / "input" / "data" / channel["ChannelName"]
            self.account.download(uri, target)
            for path in target.glob("*.json"):
                path.write_text(self.relocate(path.read_text(), base))
        self.account.download(self.request["CheckpointConfig"]["S3Uri"], base / "checkpoints")

    def relocate(self, text: str, base: Path) -> str:
        return text.replace("/opt/ml", str(base)).replace("/workspace", f"{base}/workspace")

    def run_host(self, host: str) -> None:
        base = self.root / host
        algorithm = self.request["AlgorithmSpecification"]
        words = [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]]
        assert words[:2] == ["python3", "-I"], words
        variables = {
            name: self.relocate(value, base) for name, value in self.request["Environment"].items()
        }
        variables |= {"TRAINING_JOB_NAME": self.name, "SAGEMAKER_BASE_DIR": str(base)}
        variables["PATH"] = f"{self.account.programs}:/usr/local/bin:/usr/bin:/bin"
        process = subprocess.Popen(
            [sys.executable, "-c", HOST, *(self.relocate(word, base) for word in words[2:])],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with self.changed:
            self.processes[host] = process
            late = self.stopped_by or self.reason
        if late:
            process.terminate()
        stream = f"{self.name}/{host}-{int(time.time() * 1000)}"
        assert process.stdout is not None
        self.account.write_log(stream, process.stdout)
        code = process.wait()
        with self.changed:
            first = code and not self.reason and not self.stopped_by
            if first:
                failure = base / "output" / "failure"
                text = failure.read_text(errors="replace")[:1024] if failure.exists() else ""
                self.reason = f"AlgorithmError: {text}, exit code: {code}"
        if first:
            self.end_processes()

    def stop(self, by: str = "Stopped") -> None:
        with self.changed:
            if self.status != "InProgress":
                return
            self.stopped_by = by
        self.enter("Stopping", "Stopping the training job", "Stopping")
        self.end_processes()

    def end_processes(self) -> None:
        for process in list(self.processes.values()):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    def upload(self) -> None:
        output = self.request["OutputDataConfig"]["S3OutputPath"].rstrip("/")
        hosts = sorted(self.root.iterdir())
        for name, directory in (("model.tar.gz", "model"), ("output.tar.gz", "output/data")):
            archive = io.BytesIO()
            with tarfile.open(fileobj=archive, mode="w:gz") as tar:
                for host in hosts:
                    for path in sorted((host / directory).glob("*")):
                        tar.add(path, path.name)
            self.account.put(f"{output}/{self.name}/output/{name}", archive.getvalue())
        for host in hosts:
            for path in (host / "checkpoints").rglob("*"):
                if path.is_file():
                    key = path.relative_to(host / "checkpoints").as_posix()
                    uri = self.request["CheckpointConfig"]["S3Uri"].rstrip("/")
                    self.account.put(f"{uri}/{key}", path.read_bytes())


class Account:
    """The jobs, and clients of the account's other services."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="sagemaker-"))
        self.jobs: dict[str, TrainingJob] = {}
        self.tags: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.programs = self.root / "bin"
        self.programs.mkdir()
        for name in ("python", "python3"):
            (self.programs / name).symlink_to(sys.executable)

    def connect(self, url: str) -> None:
        keys = {"aws_access_key_id": "AKIAHOST", "aws_secret_access_key": "key"}
        self.clients = {
            name: boto3.client(name, endpoint_url=url, region_name=REGION, **keys)
            for name in ("s3", "logs")
        }
        self.clients["logs"].create_log_group(logGroupName=GROUP)

        iam = boto3.client("iam", endpoint_url=url, region_name=REGION, **keys)
        principal = {"Service": "sagemaker.amazonaws.com"}
        statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal}
        policy = {"Version": "2012-10-17", "Statement": [statement]}
        iam.create_role(
            RoleName="Train", Path="/service-role/", AssumeRolePolicyDocument=json.dumps(policy)
        )

    def put(self, uri: str, data: bytes) -> None:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        self.clients["s3"].put_object(Bucket=bucket, Key=key, Body=data)

    def download(self, uri: str, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        pages = self.clients["s3"].get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=bucket, Prefix=prefix):
            for found in page.get("Contents", ()):
                path = target / found["Key"].removeprefix(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                self.clients["s3"].download_file(bucket, found["Key"], str(path))

    def write_log(self, stream: str, output: Any) -> None:
        logs = self.clients["logs"]
        logs.create_log_stream(logGroupName=GROUP, logStreamName=stream)
        for line in output:
            # An empty message is not allowed; SageMaker's agent leaves the newline out.
            text = line.decode(errors="replace").removesuffix("\n") or " "
            event = {"timestamp": int(time.time() * 1000), "message": text}
            logs.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=[event])


ACCOUNT = Account()


class Responses:
    """The operations that replace moto's."""

    def create_training_job(self: Any) -> ActionResult:
        request = json.loads(self.body)
        check_key(self)
        check_shape(MODEL.operation_model("CreateTrainingJob").input_shape, request, "request")
        name, resources = request["TrainingJobName"], request["ResourceConfig"]
        if "missing" in request["RoleArn"]:
            message = f"Could not assume role {request['RoleArn']}."
            raise Refusal("ValidationException", message)
        if resources["InstanceType"] == QUOTA:
            message = f"The account-level service limit '{QUOTA} for training job usage' is 0."
            raise Refusal("ResourceLimitExceeded", message)
        with ACCOUNT.lock:
            if name in ACCOUNT.jobs:
                raise Refusal("ResourceInUse", "Training job names must be unique.")
            job = ACCOUNT.jobs[name] = TrainingJob(ACCOUNT, request)
        job.thread.start()
        return ActionResult({"TrainingJobArn": job.describe()["TrainingJobArn"]})

    def describe_training_job(self: Any) -> ActionResult:
        return ActionResult(find_job(self).describe())

    def stop_training_job(self: Any) -> ActionResult:
        find_job(self).stop()
        return ActionResult({})

    def delete_training_job(self: Any) -> ActionResult:
        job = find_job(self)
        if job.status in ("InProgress", "Stopping"):
            raise Refusal("ValidationException", "The job is not in a terminal state.")
        del ACCOUNT.jobs[job.name]
        shutil.rmtree(job.root)
        return ActionResult({})


def check_key(response: Any) -> None:
    for key, code in REFUSED_KEYS.items():
        if key in response.headers.get("Authorization", ""):
            raise Refusal(code, "User: arn:aws:iam::123456789012:user/ann is not authorized")


def find_job(response: Any) -> TrainingJob:
    check_key(response)
    name = json.loads(response.body)["TrainingJobName"]
    if name not in ACCOUNT.jobs:
        raise Refusal("ValidationException", "Requested resource not found.")
    return ACCOUNT.jobs[name]


def main() -> None:
    """Serve until stdin is closed; its first line has the buckets with their regions."""
    for name in ("create", "describe", "stop", "delete"):
        setattr(
            SageMakerResponse, f"{name}_training_job", getattr(Responses, f"{name}_training_job")
        )
    buckets = json.loads(sys.stdin.readline())
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    ACCOUNT.connect(url)
    for bucket, region in buckets.items():
        place = {} if region == REGION else {"LocationConstraint": region}
        options = {"CreateBucketConfiguration": place} if place else {}
        ACCOUNT.clients["s3"].create_bucket(Bucket=bucket, **options)
    print(json.dumps({"url": url, "root": str(ACCOUNT.root)}), flush=True)
    sys.stdin.read()
    for job in ACCOUNT.jobs.values():
        for process in job.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        job.thread.join()
    server.stop()
    shutil.rmtree(ACCOUNT.root)


if __name__ == "__main__":
    main()
