"""The HTTPS server that replicas send progress reports and results to.

``POST /{leader|replicas}/<replica><path of the training-progress protocol>`` and
``PUT /results/<namespace>/<job>/<replica>/{value|raised}``, with the token of the job.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Mapping

import anyio

from danlu.kube.client import Client
from danlu.kube.http import HttpRequest, HttpResponse, serve_https, status_response
from danlu.kube.informer import Informer
from danlu.kube.resources import Resource
from danlu.kube.types import Key
from danlu.operator.owned_objects import NameConflict
from danlu.operator.progress.credentials import ServerCredentials
from danlu.operator.progress.injection import requested_reports
from danlu.operator.progress.report import ProgressReport, ReportSource
from danlu.operator.progress.writer import (
    ReportingJob,
    ReportTooLarge,
    ReportWriter,
)
from danlu.operator.types import JobObject
from danlu.training.names import MAX_RESULT_BYTES
from danlu.training.progress import parse_progress

TOO_LARGE = (
    f"results of a job are limited to {MAX_RESULT_BYTES >> 10} KiB in total:"
    " write larger data to a volume, and return its path"
)

_NAME = r"[a-z0-9][-a-z0-9.]*"
_PROGRESS_PATH = re.compile(
    rf"(?:/(?P<role>leader|replicas)/(?P<replica>[a-z]+-\d+))?"
    rf"/apis/trainer\.kubeflow\.org/v1alpha1"
    rf"/namespaces/(?P<namespace>{_NAME})/trainjobs/(?P<name>{_NAME})/status"
)
_RESULT_PATH = re.compile(
    rf"/results/(?P<namespace>{_NAME})/(?P<name>{_NAME})/(?P<replica>[a-z]+-\d{{1,6}})"
    rf"/(?P<what>value|raised)"
)

FindJobs = Callable[[Key], Iterable[ReportingJob]]
"""Returns the jobs of a name; there may be one of each kind."""


class ReportHandler:
    """Authenticates requests and passes reports to a :class:`ReportWriter`."""

    def __init__(
        self, credentials: ServerCredentials, writer: ReportWriter, *, find: FindJobs
    ) -> None:
        self._credentials = credentials
        self._writer = writer
        self._find = find

    async def handle(self, request: HttpRequest) -> HttpResponse:
        """Return the response to a request."""
        progress = _PROGRESS_PATH.fullmatch(request.path)
        path = progress or _RESULT_PATH.fullmatch(request.path)
        if path is None:
            return status_response(404, "NotFound", "no such path")
        job = self._authenticate(Key(path["namespace"], path["name"]), request.bearer)
        if job is None:
            return status_response(401, "Unauthorized", "invalid token for this job")
        if request.method != ("POST" if progress else "PUT"):
            return status_response(405, "MethodNotAllowed", "POST progress, PUT results")
        if progress:
            return self._handle_progress(job, path, request.body)
        return await self._handle_result(job, f"{path['what']}.{path['replica']}", request.body)

    def _authenticate(self, key: Key, bearer: str) -> ReportingJob | None:
        for job in self._find(key):
            token = self._credentials.token(key, job.uid)
            # In constant time: the duration of == would reveal how many characters are right.
            if hmac.compare_digest(token.encode(), bearer.encode()):
                return job
        return None

    def _handle_progress(self, job: ReportingJob, path: re.Match[str], body: bytes) -> HttpResponse:
        try:
            progress = parse_progress(body)
        except ValueError as error:
            return status_response(422, "Invalid", str(error))
        if progress is not None:
            source = ReportSource.from_path(path["role"], path["replica"])
            self._writer.submit_progress(job, ProgressReport.from_progress(source, progress))
        return HttpResponse(200, body)

    async def _handle_result(self, job: ReportingJob, name: str, body: bytes) -> HttpResponse:
        try:
            await self._writer.write_result(job, name, body)
        except ReportTooLarge:
            return status_response(413, "RequestEntityTooLarge", TOO_LARGE)
        except NameConflict as error:
            return status_response(409, "Conflict", error.message)
        return HttpResponse(200)


class ReportServer:
    """Serves reports, whether or not this process is the leader; ``port`` is set while it runs."""

    def __init__(
        self,
        client: Client,
        address: str,
        credentials: ServerCredentials,
        jobs: Mapping[Resource[JobObject], Informer[JobObject]],
    ) -> None:
        self.port = 0
        self._address = address
        self._credentials = credentials
        self._jobs = jobs
        self._writer = ReportWriter(client)
        self._handler = ReportHandler(credentials, self._writer, find=self._find_jobs)

    async def run(self) -> None:
        """Serve until cancelled; raises :class:`MachineError` if the address cannot be bound."""
        async with (
            anyio.create_task_group() as group,
            serve_https(
                self._address,
                self._handler.handle,
                certificate=self._credentials.certificate,
                max_bytes=MAX_RESULT_BYTES,
                too_large=TOO_LARGE,
            ) as self.port,
        ):
            group.start_soon(self._writer.run)
            await anyio.sleep_forever()

    def _find_jobs(self, key: Key) -> Iterable[ReportingJob]:
        for resource, informer in self._jobs.items():
            job = informer.indexer.get(key)
            if job is not None and requested_reports(
                job.metadata.annotations, resource.api_version
            ):
                yield ReportingJob(resource, key, job.metadata.uid)
