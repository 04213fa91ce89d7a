"""The services beyond this machine that run jobs; the engine of a context names its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import msgspec

from danlu.engine.contexts import ClusterAddress, Context
from danlu.engine.registry import find_engine
from danlu.engine.settings import Settings
from danlu.jobs.types import JobBackend, Submission
from danlu.training.types import Job

Probe = Callable[[], tuple[bool, str, str]]
"""Returns whether something works, what was found, and what to do; may raise our errors."""


class JobTarget(msgspec.Struct, frozen=True):
    """Where the jobs of a context run.

    Attributes:
        name: The name of the context.
        cluster: The namespace of a cluster, with what the configuration says; None elsewhere.
        is_remote: Whether replicas run elsewhere, so that they see no files of this machine.
    """

    name: str
    context: Context
    cluster: ClusterAddress | None = None
    is_remote: bool = False

    @property
    def service(self) -> JobService:
        """The service that runs the jobs; only for a target beyond this machine."""
        # Loaded when it is used: a local job needs none.
        module = find_engine(self.context.engine_name).job_service
        service: JobService = import_module(module).SERVICE
        return service


class JobPreview(msgspec.Struct, frozen=True):
    """What a service would be sent to start a job, and what the user should know about it."""

    document: Mapping[str, Any]
    notes: tuple[str, ...] = ()


class JobService:
    """A service that runs jobs: what commands need before there is a job."""

    def open_backend(self, target: JobTarget, settings: Settings) -> JobBackend:
        """Return the backend of a target of this service."""
        raise NotImplementedError

    def find_registry(self, target: JobTarget, settings: Settings) -> str:
        """Return the registry from which the service pulls images; empty if none is configured."""
        raise NotImplementedError

    def complete_job(self, job: Job) -> Job:
        """Return the job with what the service gives all jobs, so that waiting for it knows it."""
        return job

    def preview_job(self, submission: Submission, target: JobTarget) -> JobPreview | None:
        """Return what would be sent; None if that is the job's manifest.

        Raises :class:`~danlu.errors.UsageError` for what the service cannot do.
        """
        return None

    def list_probes(self, target: JobTarget) -> Mapping[str, Probe]:
        """Return checks of a target for `danlu doctor`, by name."""
        return {}
