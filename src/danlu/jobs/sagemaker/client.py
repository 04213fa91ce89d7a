"""Training jobs of a SageMaker account, as commands use them.

What belongs to a job is below ``s3://BUCKET/danlu/jobs/NAME/``: its input and output. Checkpoints,
which the next job of the name finds, are below ``danlu/checkpoints/NAME/``. A training job whose
output is elsewhere is somebody else's, and does not exist for danlu.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import anyio
from anyio import to_thread

from danlu.engine.contexts import SageMakerAccount
from danlu.errors import DanluError, TemporaryError, UsageError
from danlu.jobs.sagemaker.log_reader import LOG_GROUP, JobLogReader, list_log_streams
from danlu.jobs.sagemaker.output import CHECKPOINTS, collect_results, fetch_output
from danlu.jobs.sagemaker.request import (
    CHECKPOINTS_PREFIX,
    JOB_FILE,
    PREFIX,
    TrainingRequest,
    render_request,
)
from danlu.jobs.sagemaker.views import build_view, clean_text, read_replicas
from danlu.jobs.types import JobResult, JobView, LogLine, ReplicaCommand, Submission
from danlu.training.types import ReplicaId
from danlu.util.aws import AwsError, call_aws, create_aws_client, translate_aws_errors
from danlu.util.backoff import ExponentialBackoff
from danlu.util.suggest import suggest_name
from danlu.util.tasks import run_concurrently

POLL_SECONDS = 2.0
_MAX_REQUESTS = 8
#: How often a poll is repeated while AWS cannot be reached: about 10 minutes.
_MAX_FAILED_POLLS = 20
#: Seconds: 120 that programs have after SIGTERM, and the time to upload what they saved.
_STOP_TIMEOUT = 180.0
_MAX_DELETED = 1000
_CHUNK_SIZE = 1 << 20
_CLEANUP_TIMEOUT = 10.0
_IN_USE = "ResourceInUse"
_NOT_FOUND = ("ResourceNotFound", "ResourceNotFoundException", "ValidationException")


class SageMakerJobs:
    """The training jobs of an account that danlu created (:class:`danlu.jobs.types.JobBackend`).

    ``where`` is the name of the context.
    """

    def __init__(self, account: SageMakerAccount, region: str, *, where: str) -> None:
        self.where = where
        self._account = account
        self._region = region
        self._clients: dict[str, Any] = {}

    async def _send_request(
        self, service: str, operation: str, **parameters: Any
    ) -> dict[str, Any]:
        client = self._clients.get(service)
        if client is None:
            create = partial(create_aws_client, service, region=self._region)
            client = self._clients[service] = await to_thread.run_sync(create)
        try:
            return await call_aws(client, operation, **parameters)
        except AwsError as error:
            if service == "s3":
                self._explain_bucket(error)
            raise

    def _explain_bucket(self, error: AwsError) -> None:
        """Say what to do about the bucket; requests that only ask for it get no reason."""
        bucket = self._account.bucket
        if error.code in ("404", "NoSuchBucket"):
            error.message = f"bucket {bucket} not found (NoSuchBucket)"
            error.hint = f"`aws s3 mb s3://{bucket} --region {self._region}` creates it"
        elif error.code in ("403", "AccessDenied"):
            if error.code == "403":
                error.message = f"you may not use bucket {bucket} (AccessDenied)"
            error.hint = "allow s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject"

    # -- starting ---------------------------------------------------------------------------------

    async def submit(self, submission: Submission) -> str:
        """Create a job; see :class:`danlu.jobs.types.JobBackend`."""
        request = render_request(submission, self._account, self._region)
        await self._check_bucket()
        await self._ensure_name_free(request.name)
        # An interrupted submission must not leave a job behind that nobody knows of.
        with anyio.CancelScope(shield=True):
            try:
                await self._upload_input(request)
                await self._send_request("sagemaker", "create_training_job", **request.document)
            except BaseException as error:
                # Another job of that name may have the same input.
                if not (isinstance(error, AwsError) and error.code == _IN_USE):
                    with anyio.move_on_after(_CLEANUP_TIMEOUT), suppress(DanluError):
                        await self._remove_objects(request.input_key)
                if isinstance(error, AwsError):
                    self._explain_refusal(error, request)
                raise
        return request.name

    async def _check_bucket(self) -> None:
        """Raise if the bucket does not exist, may not be used, or is in another region."""
        bucket = self._account.bucket
        answer = await self._send_request("s3", "head_bucket", Bucket=bucket)
        region = answer.get("BucketRegion") or self._region
        if region != self._region:
            raise UsageError(
                f"bucket {bucket} is in {region}, but the jobs of {self.where} run in"
                f" {self._region}",
                hint="create the context again, with a bucket of the jobs' region",
            )

    async def _ensure_name_free(self, name: str) -> None:
        try:
            await self._send_request("sagemaker", "describe_training_job", TrainingJobName=name)
        except AwsError as error:
            if error.code in _NOT_FOUND:
                return
            raise
        self._raise_name_in_use(name)

    def _raise_name_in_use(self, name: str) -> NoReturn:
        raise UsageError(
            f"job {name} already exists",
            hint=f"choose another --name: SageMaker keeps names, also of others in the account;"
            f" `danlu jobs rm {name} --on {self.where}` removes one of danlu's",
        ) from None

    async def _upload_input(self, request: TrainingRequest) -> None:
        uploads = [
            partial(self._put_object, f"{request.input_key}{key}", content)
            for key, content in request.objects.items()
        ]
        await run_concurrently(uploads, limit=_MAX_REQUESTS)

    async def _put_object(self, key: str, content: bytes | Path) -> None:
        if isinstance(content, bytes):
            await self._send_request(
                "s3", "put_object", Bucket=self._account.bucket, Key=key, Body=content
            )
            return
        try:
            file = content.open("rb")
        except OSError as error:
            raise UsageError(f"cannot read {content}: {error.strerror}") from error
        with file:
            await self._send_request(
                "s3", "put_object", Bucket=self._account.bucket, Key=key, Body=file
            )

    def _explain_refusal(self, error: AwsError, request: TrainingRequest) -> None:
        instance = request.document["ResourceConfig"]["InstanceType"]
        if error.code == _IN_USE:
            self._raise_name_in_use(request.name)
        if error.code == "ResourceLimitExceeded":
            error.hint = (
                f"ask for more {instance} for training jobs in Service Quotas, or create a context"
                " with another --instance-type"
            )
        elif error.code == "ValidationException" and "role" in error.message.lower():
            error.hint = (
                f"{self._account.role} must exist, and its trust policy must allow"
                " sagemaker.amazonaws.com to assume it; you need iam:PassRole"
            )

    # -- reading ----------------------------------------------------------------------------------

    async def views(self, warn: Callable[[str], object] = lambda text: None) -> Sequence[JobView]:
        """Return the views of all jobs in the bucket, newest first."""
        names = await self._list_names()
        described = await run_concurrently(
            [partial(self._try_describe, name) for name in names], limit=_MAX_REQUESTS
        )
        views = [build_view(job, where=self.where) for job in described if job is not None]
        return sorted(views, key=lambda view: str(view.created), reverse=True)

    async def names(self) -> Sequence[str]:
        """Return the names of all jobs, newest first."""
        return [view.name for view in await self.views()]

    async def _list_names(self) -> list[str]:
        names: list[str] = []
        parameters = {"Bucket": self._account.bucket, "Prefix": PREFIX, "Delimiter": "/"}
        while True:
            answer = await self._send_request("s3", "list_objects_v2", **parameters)
            for found in answer.get("CommonPrefixes") or ():
                names.append(str(found["Prefix"]).removeprefix(PREFIX).rstrip("/"))
            if not answer.get("NextContinuationToken"):
                return names
            parameters["ContinuationToken"] = answer["NextContinuationToken"]

    async def _try_describe(self, name: str) -> Mapping[str, Any] | None:
        """Return the description of one of danlu's jobs, None if it has no job of that name."""
        try:
            job = await self._send_request(
                "sagemaker", "describe_training_job", TrainingJobName=name
            )
        except AwsError as error:
            if error.code in _NOT_FOUND:
                return None
            raise
        output = str((job.get("OutputDataConfig") or {}).get("S3OutputPath", ""))
        own = output.rstrip("/") == f"s3://{self._account.bucket}/{PREFIX}".rstrip("/")
        return job if own and job.get("TrainingJobStatus") != "Deleting" else None

    async def _describe_job(self, name: str) -> Mapping[str, Any]:
        job = await self._try_describe(name)
        if job is None:
            known = await self._list_names()
            hint = suggest_name(name, known, what="jobs")
            raise UsageError(f"job {name!r} not found in {self.where}", hint=hint)
        return job

    async def view(self, name: str) -> JobView:
        """Return the current view of a job."""
        return build_view(await self._describe_job(name), where=self.where)

    async def watch(self, name: str) -> AsyncIterator[JobView]:
        """Yield the job's view now and after every change, until it is finished."""
        before = None
        while True:
            view = await self._poll_service(partial(self.view, name))
            if view != before:
                yield view
            if view.finished:
                return
            before = view
            await anyio.sleep(POLL_SECONDS)

    async def _poll_service(self, read: Callable[[], Any]) -> Any:
        """Return what ``read`` does; lost connections and throttling must not end a long wait."""
        backoff = ExponentialBackoff(1.0, 60.0)
        for _ in range(_MAX_FAILED_POLLS):
            try:
                return await read()
            except TemporaryError:
                await anyio.sleep(backoff.next_delay())
        return await read()

    async def logs(
        self,
        name: str,
        *,
        replicas: Sequence[ReplicaId] = (),
        follow: bool = False,
        tail: int | None = None,
        newest: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Yield the lines of replicas; see :class:`danlu.jobs.types.JobBackend`."""
        _, hosts = read_replicas(await self._describe_job(name))

        async def is_finished() -> bool:
            view: JobView = await self._poll_service(partial(self.view, name))
            return view.finished

        reader = JobLogReader(self._read_logs, name, hosts)
        lines = reader.read(
            replicas, follow=follow, tail=tail, is_finished=is_finished, interval=POLL_SECONDS
        )
        async with aclosing(lines):
            async for line in lines:
                yield line

    async def _read_logs(self, operation: str, **parameters: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await self._poll_service(
                partial(self._send_request, "logs", operation, **parameters)
            )
        except AwsError as error:
            if error.code == "ResourceNotFoundException":  # before the first line of an account
                return {"events": [], "logStreams": []}
            raise
        return answer

    async def command(self, name: str, replica: ReplicaId) -> ReplicaCommand:
        """Return a replica's command, and the variables that its host has of danlu's."""
        job = await self._describe_job(name)
        _, hosts = read_replicas(job)
        host = next(host for host, id in hosts.items() if id == replica)
        try:
            uri = str(job["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"])
            key = f"{uri.removeprefix(f's3://{self._account.bucket}/')}{JOB_FILE}"
            answer = await self._send_request(
                "s3", "get_object", Bucket=self._account.bucket, Key=key
            )
            found = json.loads(await to_thread.run_sync(answer["Body"].read))["replicas"][host]
            return ReplicaCommand(
                args=tuple(map(str, found["command"])),
                environment={
                    **{str(key): str(value) for key, value in found["variables"].items()},
                    **(job.get("Environment") or {}),
                },
                directory=str(found["directory"]),
                image=str(job["AlgorithmSpecification"].get("TrainingImage", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise UsageError(f"cannot read the input of job {name}: {error}") from error

    # -- ending -----------------------------------------------------------------------------------

    async def stop(self, name: str, *, grace: float | None = None) -> None:
        """Stop the job: SIGTERM, and SIGKILL after 120 seconds, whatever ``grace`` is.

        Raises :class:`UsageError` for another ``grace`` than 0, which does not wait for the end.
        """
        if grace:
            raise UsageError(
                f"--grace {grace:g}: SageMaker gives programs 120 seconds to end",
                hint="omit --grace",
            )
        view = await self.view(name)
        if view.finished:
            return
        if view.state != "Stopping":
            await self._send_request("sagemaker", "stop_training_job", TrainingJobName=name)
        if grace == 0:
            return
        with anyio.move_on_after(_STOP_TIMEOUT):
            async for _ in self.watch(name):
                pass

    async def remove(self, name: str) -> None:
        """Delete a finished job, its logs, its input and output; checkpoints are kept."""
        job = await self._describe_job(name)
        if not build_view(job, where=self.where).finished:
            hint = f"stop it with `danlu jobs stop {name} --on {self.where}`"
            raise UsageError(f"job {name} is still running", hint=hint)
        for stream in await list_log_streams(self._read_logs, name):
            await self._read_logs(
                "delete_log_stream",
                logGroupName=LOG_GROUP,
                logStreamName=stream["logStreamName"],
            )
        await self._remove_objects(f"{PREFIX}{name}/")
        await self._send_request("sagemaker", "delete_training_job", TrainingJobName=name)

    async def _remove_objects(self, prefix: str) -> None:
        bucket = self._account.bucket
        while True:
            answer = await self._send_request(
                "s3",
                "list_objects_v2",
                Bucket=bucket,
                Prefix=prefix,
                MaxKeys=_MAX_DELETED,
            )
            keys = [{"Key": found["Key"]} for found in answer.get("Contents") or ()]
            if not keys:
                return
            deleted = await self._send_request(
                "s3", "delete_objects", Bucket=bucket, Delete={"Objects": keys}
            )
            # Refusals are listed in an answer that succeeds.
            for refused in deleted.get("Errors") or ():
                code = str(refused.get("Code"))
                reason = clean_text(str(refused.get("Message") or code))
                error = AwsError(f"AWS refused s3:DeleteObject ({code}): {reason}", code=code)
                self._explain_bucket(error)
                raise error

    async def suspend(self, name: str, *, suspended: bool) -> None:
        """Raise :class:`UsageError`: a training job cannot be suspended."""
        raise UsageError(
            "SageMaker cannot suspend or resume training jobs",
            hint=f"`danlu jobs stop {name} --on {self.where}`; a job that saves checkpoints can"
            " start from them",
        )

    async def scale(self, name: str, *, replicas: Mapping[str, int]) -> None:
        """Raise :class:`UsageError`: a training job has as many hosts as it was created with."""
        raise UsageError(
            "SageMaker cannot change the number of a training job's hosts",
            hint="submit it with another number",
        )

    # -- what a job saved -------------------------------------------------------------------------

    async def result(self, name: str) -> JobResult:
        """Wait for the end of a job and return its result."""
        async for _ in self.watch(name):
            pass
        view = await self.view(name)
        replicas = [str(replica.id) for replica in view.replicas]
        values, raised = await collect_results(partial(self._download_object, name), replicas)
        # The leader is the first: no type comes before those that lead.
        return JobResult(view, values.get(replicas[0]), values, raised)

    async def fetch(self, name: str, directory: Path) -> Sequence[str]:
        """Copy what a finished job saved; see :class:`danlu.jobs.backends.JobOutput`."""
        if not (await self.view(name)).finished:
            raise UsageError(
                f"job {name} is still running",
                hint=f"`danlu jobs wait {name} --on {self.where}` waits for its end",
            )
        prefix = f"{CHECKPOINTS_PREFIX}{name}/"
        keys = await self._list_keys(prefix)
        checkpoints = [f"{CHECKPOINTS}{key.removeprefix(prefix)}" for key in keys]
        return await fetch_output(partial(self._download_object, name), checkpoints, directory)

    async def _list_keys(self, prefix: str) -> Sequence[str]:
        keys: list[str] = []
        parameters = {"Bucket": self._account.bucket, "Prefix": prefix}
        while True:
            answer = await self._send_request("s3", "list_objects_v2", **parameters)
            keys += [str(found["Key"]) for found in answer.get("Contents") or ()]
            if not answer.get("NextContinuationToken"):
                return keys
            parameters["ContinuationToken"] = answer["NextContinuationToken"]

    async def _download_object(self, name: str, key: str, file: BinaryIO) -> bool:
        full = f"{PREFIX}{name}/{key}"
        if key.startswith(CHECKPOINTS):
            full = f"{CHECKPOINTS_PREFIX}{name}/{key.removeprefix(CHECKPOINTS)}"
        try:
            answer = await self._send_request(
                "s3", "get_object", Bucket=self._account.bucket, Key=full
            )
        except AwsError as error:
            if error.code == "NoSuchKey":
                return False
            raise
        body = answer["Body"]

        def copy() -> None:
            with translate_aws_errors("s3:GetObject"):
                shutil.copyfileobj(body, file, _CHUNK_SIZE)

        await to_thread.run_sync(copy)
        return True
