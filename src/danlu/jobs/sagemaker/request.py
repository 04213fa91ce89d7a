"""Turn a submission into one ``CreateTrainingJob`` request and the objects of its input; pure.

The image is not changed, so that its digest is that of the environment. What a job adds to it is a
channel of input, below ``s3://BUCKET/danlu/jobs/NAME/input``: SageMaker copies it to every host,
where the program of the image's entrypoint (:mod:`danlu.replica_runtime.sagemaker`) starts the
command of that host. Neither the words of a command nor the variables of a host pass through
SageMaker, whose limits (256 and 512 characters) they need not fit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from danlu import replica_runtime
from danlu.engine.contexts import SageMakerAccount
from danlu.errors import UsageError
from danlu.jobs.sagemaker.instance_types import (
    ReplicaRequest,
    check_processor,
    choose_instance_type,
)
from danlu.jobs.trackers import tracker_variables
from danlu.jobs.types import Submission
from danlu.lang.functions.sagemaker import SageMakerEntrypoint
from danlu.oci.registry.clouds import find_cloud
from danlu.training.framework import FieldRef, Framework
from danlu.training.names import FINISH_TIMEOUT_ANNOTATION
from danlu.training.pod_template import expand_references, find_main_container, pod_spec
from danlu.training.registry import find_job_framework
from danlu.training.rendering import render_pod
from danlu.training.replicas import replica_ids
from danlu.training.types import (
    API_VERSION,
    CleanPodPolicy,
    Job,
    ReplicaId,
    ReplicaType,
    RestartPolicy,
)
from danlu.util.quantity import parse_quantity

PREFIX = "danlu/jobs/"
"""The keys of all jobs in the bucket: ``danlu/jobs/NAME/``."""

CHECKPOINTS_PREFIX = "danlu/checkpoints/"
"""Those of checkpoints, which the next job of a name finds: ``danlu/checkpoints/NAME/``."""

JOB_VARIABLE = "DANLU_JOB"
"""Variable with the framework and the replicas of a job: ``pytorch Master=1,Worker=7``."""

LABELS_VARIABLE = "DANLU_LABELS"
"""Variable with the labels of the submission as JSON: to read tags takes further requests."""

MODEL_VARIABLE, CHECKPOINT_VARIABLE = "DANLU_MODEL_DIR", "DANLU_CHECKPOINT_DIR"
INPUT = "/opt/ml/input/data/danlu"
RESULTS = "/opt/ml/output/data/danlu"
"""Where replicas write what they return; SageMaker packs the directory above."""

GRACE_FIELD, GRACE_SECONDS = "terminationGracePeriodSeconds", 120
"""How long programs have after SIGTERM."""

JOB_FILE = "job.json"
"""The file of the input with the commands and variables of hosts."""

_CHANNEL = "danlu"
_ENTRYPOINT, _START = "sagemaker.py", "replica"
_TEMPLATES = "node_templates.json"
_CODE, _FILES = "code", "files"
_WORKDIR = "/workspace"

#: The limits of CreateTrainingJob.
_MAX_VARIABLES, _MAX_VALUE = 100, 512
_MAX_RETRIES, _MAX_DEADLINE, _MAX_IMAGE = 30, 28 * 86400, 255
_VARIABLE_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]{0,511}")
_MAX_TAGS, _MAX_TAG_NAME, _MAX_TAG_VALUE = 50, 128, 256
_NOT_IN_TAGS = re.compile(r"[^\w .:/=+\-@]")
#: SageMaker's own default, which is said here because it ends jobs.
DEFAULT_DEADLINE = 86400
_DEFAULT_VOLUME = 30

_POD_FIELDS = {"containers", "restartPolicy", GRACE_FIELD}
_CONTAINER_FIELDS = {
    *("name", "image", "imagePullPolicy", "command", "args"),
    *("env", "workingDir", "resources", "ports"),
}
_RESOURCES = {"cpu", "memory", "nvidia.com/gpu", "ephemeral-storage"}


class TrainingRequest(msgspec.Struct, frozen=True):
    """What starts a job.

    Attributes:
        document: The request.
        input_key: The prefix of the job's input, with its digest: if two jobs are created under one
            name at the same time, neither gets the code of the other.
        objects: The content of the job's input, or the file with it, by key below that prefix.
        notes: What the user should know: the instance type, limits that SageMaker adds.
    """

    document: Mapping[str, Any]
    input_key: str
    objects: Mapping[str, bytes | Path]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the job."""
        return str(self.document["TrainingJobName"])


class HostTopology:
    """The hosts of a training job: ``algo-1`` is the first replica."""

    on_cluster = True

    def __init__(self, job: Job, framework: Framework) -> None:
        self._job, self._framework = job, framework
        self._hosts = {
            replica: f"algo-{number}"
            for number, replica in enumerate(replica_ids(job, framework), 1)
        }

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        """Return the name of a replica's host."""
        return self._hosts[replica]

    def port(self, replica: ReplicaId) -> int:
        """Return the framework's port, which the manifest may set."""
        main = find_main_container(
            self._job.replicas[replica.type].template, self._framework.container
        )
        named = {port.get("name"): port.get("containerPort") for port in main.get("ports") or ()}
        return int(named.get(self._framework.port_name) or self._framework.port)

    def directory(self, replica: ReplicaId) -> str:
        """Return the directory of the framework's files, of which there are none."""
        return self._framework.files_directory

    @property
    def hosts(self) -> Mapping[ReplicaId, str]:
        """The host of each replica, in order."""
        return self._hosts


def render_request(
    submission: Submission, account: SageMakerAccount, region: str
) -> TrainingRequest:
    """Return the request that runs a submission.

    Raises :class:`UsageError`, naming the option or the field, for what SageMaker cannot do.
    """
    job = submission.job
    framework = find_job_framework(job)
    _check_job(submission, framework)
    topology = HostTopology(job, framework)
    containers = {
        replica: _check_pod(
            render_pod(job, framework, replica, topology, for_cluster=False)["spec"],
            framework,
            replica,
        )
        for replica in topology.hosts
    }
    image = _find_image(submission, containers, account, region)
    renderer = _InputRenderer(submission, framework, topology)
    input_json = renderer.render(containers)
    requested = {_read_resources(container) for container in containers.values()}
    if len(requested) > 1:
        raise UsageError(
            f"replicas of {job.name} request different resources, but the hosts of a training job"
            " have one instance type",
            hint="request the same for all replicas",
        )
    (resources, volume), *_ = requested
    instance_type, choice = choose_instance_type(resources, account.instance_type)
    for built in submission.images.values():
        check_processor(instance_type, built.architecture, built.level)
    objects: dict[str, bytes | Path] = {
        **_read_entrypoint(),
        _START: Path(replica_runtime.__path__[0], "sagemaker_replica.py").read_bytes(),
        JOB_FILE: input_json.encode(),
        **{f"{_CODE}/{path}": file for path, file in submission.code.items()},
        **{f"{_FILES}/{path}": file for path, file in _list_files(submission.files)},
    }
    input_key = f"{PREFIX}{job.name}/input/{_hash_objects(objects)}/"
    deadline = job.run_policy.active_deadline_seconds
    document: dict[str, Any] = {
        "TrainingJobName": job.name,
        "AlgorithmSpecification": {
            "TrainingImage": image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "-I", f"{INPUT}/{_ENTRYPOINT}"],
            "ContainerArguments": ["train"],
        },
        "RoleArn": account.role,
        "InputDataConfig": [
            {
                "ChannelName": _CHANNEL,
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": f"s3://{account.bucket}/{input_key}",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
        ],
        "OutputDataConfig": {"S3OutputPath": f"s3://{account.bucket}/{PREFIX}"},
        "ResourceConfig": {
            "InstanceType": instance_type,
            "InstanceCount": len(topology.hosts),
            "VolumeSizeInGB": max(volume, _DEFAULT_VOLUME),
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": deadline or DEFAULT_DEADLINE},
        "CheckpointConfig": {"S3Uri": f"s3://{account.bucket}/{CHECKPOINTS_PREFIX}{job.name}/"},
        "Environment": input_json.shared,
        "Tags": _build_tags(submission),
    }
    retries = _count_retries(job)
    if retries:
        document["RetryStrategy"] = {"MaximumRetryAttempts": retries}
    notes = (
        choice,
        "" if deadline else "the job stops after 1 day, SageMaker's default; see --deadline",
        "SageMaker restarts the job only after errors of its hosts (InternalServerError), not"
        " after those of the program"
        if retries
        else "",
    )
    return TrainingRequest(document, input_key, objects, tuple(filter(None, notes)))


# -- what cannot be expressed ----------------------------------------------------------------------


def _check_job(submission: Submission, framework: Framework) -> None:
    job, policy = submission.job, submission.job.run_policy
    if job.api_version != API_VERSION:
        raise UsageError(
            f"{job.kind} of {job.api_version} cannot run on SageMaker",
            hint=f"write it as a kind of {API_VERSION}, or run it on a cluster",
        )
    grace = any(
        pod_spec(spec.template).get(GRACE_FIELD, GRACE_SECONDS) != GRACE_SECONDS
        for spec in job.replicas.values()
    )
    refused = {
        "--queue": bool(submission.queue),
        "--finish-timeout": FINISH_TIMEOUT_ANNOTATION in job.annotations,
        f"--grace (SageMaker gives programs {GRACE_SECONDS} seconds)": grace,
        "--clean-pod-policy": policy.clean_pod_policy is not CleanPodPolicy.NONE,
        "runPolicy.ttlSecondsAfterFinished": policy.ttl_seconds_after_finished is not None,
        "runPolicy.schedulingPolicy": policy.scheduling_policy is not None,
        "runPolicy.suspend": policy.suspend,
        "runPolicy.managedBy": policy.managed_by not in ("", framework.manager),
        "elasticPolicy": job.elastic_policy is not None,
        "successPolicy": bool(job.success_policy),
        "documents other than the job": bool(submission.objects),
    }
    _refuse_fields(name for name, given in refused.items() if given)
    topology = HostTopology(job, framework)
    if not topology.hosts:
        raise UsageError(f"{job.name} has no replicas")
    variables = framework.build_env(job, next(iter(topology.hosts)), topology)
    if any(isinstance(value, FieldRef) for _, value in variables):
        raise UsageError(
            f"{framework.kind} cannot run on SageMaker: its replicas need the IP address of their"
            " pod",
            hint="run the job on a cluster (`--on kubernetes`)",
        )
    if framework.files(job, topology, ()) or framework.extra_objects(job, topology):
        raise UsageError(
            f"{framework.kind} cannot run on SageMaker: its replicas start processes in one"
            " another, for which hosts have no way",
            hint="use torchrun (--framework pytorch), or a cluster",
        )
    ending = {*framework.driver_types, *framework.node_types}.difference(framework.idle_types)
    for type, spec in job.replicas.items():
        if type not in ending and spec.replicas:
            raise UsageError(
                f"{framework.kind} with {type} replicas cannot run on SageMaker: a training job"
                f" ends when all its hosts have ended, and {type} replicas never do",
                hint=f"use {' or '.join(sorted(ending))} replicas alone, or a cluster",
            )
        if spec.depends_on:
            raise UsageError("SageMaker starts all replicas at once: no dependencies among them")
    _count_retries(job)
    if (policy.active_deadline_seconds or 0) > _MAX_DEADLINE:
        raise UsageError("--deadline: a training job runs for at most 28 days")


def _refuse_fields(names: Iterator[str]) -> None:
    given = list(names)
    if given:
        raise UsageError(
            f"SageMaker has nothing like {', '.join(given)}",
            hint="omit it, or run the job on a cluster (`--on kubernetes`)",
        )


def _check_pod(
    spec: Mapping[str, Any], framework: Framework, replica: ReplicaId
) -> Mapping[str, Any]:
    """Return the container of a pod, which must have nothing that a host does not have."""
    main = find_main_container({"spec": spec}, framework.container)
    if len(spec["containers"]) > 1:
        others = [each.get("name", "") for each in spec["containers"] if each is not main]
        raise UsageError(
            f"SageMaker runs one container per host, without {', '.join(others)} of {replica}",
            hint="remove the sidecar, or run the job on a cluster",
        )
    fields = [f"spec.{name}" for name, value in spec.items() if name not in _POD_FIELDS and value]
    fields += [name for name, value in main.items() if name not in _CONTAINER_FIELDS and value]
    resources = main.get("resources") or {}
    fields += [
        f"resources.{kind}.{name}"
        for kind, values in resources.items()
        for name in (values or {})
        if name not in _RESOURCES
    ]
    fields += [
        f"env.{entry['name']}.valueFrom" for entry in main.get("env") or () if "valueFrom" in entry
    ]
    _refuse_fields(iter(fields))
    if not main.get("command"):
        raise UsageError(
            f"the manifest has no command for {replica}, and on SageMaker the image's own is"
            " replaced",
            hint="add `command` to the container",
        )
    return main


def _count_retries(job: Job) -> int:
    """Return ``MaximumRetryAttempts``; 0 for none."""
    policies = {spec.restart_policy for spec in job.replicas.values()}
    whole = job.job_restart_policy
    if whole is None and policies & {RestartPolicy.ALWAYS, RestartPolicy.EXIT_CODE}:
        name = next(iter(policies & {RestartPolicy.ALWAYS, RestartPolicy.EXIT_CODE}))
        raise UsageError(
            f"--restart {name}: SageMaker restarts whole jobs, and only after errors of its hosts",
            hint="--backoff-limit N allows N such restarts",
        )
    limit = job.run_policy.backoff_limit if whole is None else whole.max_restarts
    if whole is None and policies == {RestartPolicy.NEVER}:
        return 0
    if limit is not None and limit > _MAX_RETRIES:
        raise UsageError(
            f"--backoff-limit {limit}: SageMaker restarts a job at most {_MAX_RETRIES} times"
        )
    return _MAX_RETRIES if limit is None else limit


def _find_image(
    submission: Submission,
    containers: Mapping[ReplicaId, Mapping[str, Any]],
    account: SageMakerAccount,
    region: str,
) -> str:
    names = {str(container.get("image") or "") for container in containers.values()}
    images = {submission.images[name].name if name in submission.images else name for name in names}
    if len(images) > 1:
        raise UsageError(
            f"all hosts of a training job run one image, and these are {len(images)}:"
            f" {', '.join(sorted(images))}",
            hint="--image REF or --env FILE replaces them",
        )
    image = images.pop()
    cloud = find_cloud(image.partition("/")[0])
    own = account.find_registry(region)
    in_region = cloud is not None and cloud.kind == "ecr" and cloud.region == region
    if not image.startswith(f"{own}/") and not in_region:
        raise UsageError(
            f"SageMaker pulls images from Amazon ECR in {region}, which {image} is not in",
            hint=f"`danlu image push IMAGE {own}/NAME:TAG`, then --image with that name;"
            " --env FILE builds and pushes one",
        )
    if len(image) > _MAX_IMAGE:
        raise UsageError(f"the image's name is longer than {_MAX_IMAGE} characters: {image}")
    return image


def _read_resources(container: Mapping[str, Any]) -> tuple[ReplicaRequest, int]:
    """Return what a container requests, and the size of its disk in GB."""
    resources = container.get("resources") or {}
    both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    numbers = {name: parse_quantity(value) for name, value in both.items()}
    request = ReplicaRequest(
        numbers.get("cpu", 0), numbers.get("memory", 0), int(numbers.get("nvidia.com/gpu", 0))
    )
    return request, -(-int(numbers.get("ephemeral-storage", 0)) // (1 << 30))


def _build_tags(submission: Submission) -> list[dict[str, str]]:
    """Return the labels as tags, without the characters that tags must not have."""
    labels = {"danlu:job": submission.job.name}
    labels |= {f"danlu:{name}": value for name, value in submission.labels.items()}
    labels |= dict(submission.job.labels)
    # Names that become the same are one tag, and those of AWS are reserved.
    tags = {
        _NOT_IN_TAGS.sub("_", name)[:_MAX_TAG_NAME]: _NOT_IN_TAGS.sub("_", value)[:_MAX_TAG_VALUE]
        for name, value in labels.items()
        if not name.lower().startswith("aws:")
    }
    return [{"Key": name, "Value": value} for name, value in list(tags.items())[:_MAX_TAGS]]


# -- the input -------------------------------------------------------------------------------------


class _JobInput(msgspec.Struct, frozen=True):
    """The variables in the request, and what ``job.json`` has."""

    shared: Mapping[str, str]
    replicas: Mapping[str, Mapping[str, Any]]
    executables: Sequence[str]

    def encode(self) -> bytes:
        values = {"replicas": self.replicas, "executables": self.executables}
        return json.dumps(values, ensure_ascii=False, indent=1).encode()


class _InputRenderer:
    def __init__(
        self, submission: Submission, framework: Framework, topology: HostTopology
    ) -> None:
        self._submission = submission
        self._framework = framework
        self._topology = topology

    def render(self, containers: Mapping[ReplicaId, Mapping[str, Any]]) -> _JobInput:
        """Return the input of the job whose replicas have these containers."""
        variables = {
            replica: self._build_variables(replica, container)
            for replica, container in containers.items()
        }
        first = next(iter(variables.values()))
        shared = {
            name: value
            for name, value in first.items()
            if len(value) <= _MAX_VALUE
            and _VARIABLE_NAME.fullmatch(name)
            and all(other.get(name) == value for other in variables.values())
        }
        script = next(iter(containers.values()))["command"]
        start = ["python3", "-I", f"{INPUT}/{_START}", _name_program(script)]
        reserved = {
            JOB_VARIABLE: self._describe_replicas(),
            "DANLU_TRAIN_COMMAND": json.dumps(start),
        }
        # Instead of the image's framework (config.sagemaker).
        known = json.loads(_read_entrypoint()[_TEMPLATES])
        name = self._framework.name
        reserved["DANLU_TRAIN_FRAMEWORK"] = name if name in known else ""
        labels = json.dumps(dict(self._submission.labels))
        if self._submission.labels and len(labels) <= _MAX_VALUE:
            reserved[LABELS_VARIABLE] = labels
        shared = dict(list(shared.items())[: _MAX_VARIABLES - len(reserved)]) | reserved
        replicas = {
            self._topology.host(replica): {
                "command": _expand_command(container, variables[replica]),
                "directory": container.get("workingDir")
                or (_WORKDIR if self._submission.code else ""),
                "variables": {
                    name: value for name, value in variables[replica].items() if name not in shared
                },
            }
            for replica, container in containers.items()
        }
        executables = [
            path for path, file in self._submission.code.items() if os.access(file, os.X_OK)
        ]
        return _JobInput(shared, replicas, sorted(executables))

    def _describe_replicas(self) -> str:
        counts: dict[ReplicaType, int] = {}
        for replica in self._topology.hosts:
            counts[replica.type] = counts.get(replica.type, 0) + 1
        numbers = ",".join(f"{type}={count}" for type, count in counts.items())
        return f"{self._framework.name} {numbers}"

    def _build_variables(
        self, replica: ReplicaId, container: Mapping[str, Any]
    ) -> Mapping[str, str]:
        """Return all variables of a replica that are known, those of the manifest last."""
        submission = self._submission
        given = {
            str(entry["name"]): str(entry.get("value") or "")
            for entry in container.get("env") or ()
        }
        variables = {
            CHECKPOINT_VARIABLE: "/opt/ml/checkpoints",
            MODEL_VARIABLE: "/opt/ml/model",
            **self._build_exchange_variables(replica),
            **submission.environment,
            **tracker_variables(submission, {**submission.environment, **given}),
        }
        for name, value in given.items():
            variables[name] = expand_references(value, variables.get)
        return variables

    def _build_exchange_variables(self, replica: ReplicaId) -> Mapping[str, str]:
        """Return the variables of the protocol with ``danlu.replica_runtime``."""
        submission = self._submission
        variables = {} if submission.files is None else {"DANLU_FILES": f"{INPUT}/{_FILES}"}
        if submission.value == "none" and submission.files is None:
            return variables
        variables["DANLU_RAISED_FILE"] = f"{RESULTS}/raised.{replica}"
        leads = replica == self._framework.leader(submission.job)
        if submission.value == "all" or (submission.value == "leader" and leads):
            variables["DANLU_VALUE_FILE"] = f"{RESULTS}/value.{replica}"
        if submission.trusted:
            variables["DANLU_RESULT_FORM"] = "pickle"
        return variables


def _expand_command(container: Mapping[str, Any], variables: Mapping[str, str]) -> Sequence[str]:
    words = (*container["command"], *(container.get("args") or ()))
    return [expand_references(str(word), variables.get) for word in words]


def _name_program(command: Sequence[str]) -> str:
    """Return the word of a command that says what runs, for the reason of a failure."""
    name = next((word for word in command if word.endswith((".py", ".sh"))), command[0])
    return str(name).rpartition("/")[2][:64]


def _read_entrypoint() -> Mapping[str, bytes]:
    """Return the files of ``config.sagemaker``, which this version of danlu has."""
    return {
        Path(entry.path).name: entry.content.encode()
        for entry in SageMakerEntrypoint().config_files()
    }


def _hash_objects(objects: Mapping[str, bytes | Path]) -> str:
    """Return a short digest of names and contents."""
    total = hashlib.sha256()
    for name, content in sorted(objects.items(), key=lambda item: item[0]):
        if isinstance(content, Path):
            try:
                with content.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise UsageError(f"cannot read {content}: {error.strerror}") from error
        else:
            digest = hashlib.sha256(content).hexdigest()
        total.update(f"{digest} {name}\n".encode())
    return total.hexdigest()[:16]


def _list_files(directory: Path | None) -> Iterator[tuple[str, Path]]:
    if directory is not None:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                yield path.relative_to(directory).as_posix(), path
