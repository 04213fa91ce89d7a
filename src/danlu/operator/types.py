"""The objects that the operator reads from a cluster, and its settings; all values are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from danlu.errors import OutsideError
from danlu.kube.resources import Resource, custom_resource
from danlu.kube.types import Manifest, Object
from danlu.training.framework import Framework
from danlu.training.train_job.schema import API_VERSION, CLUSTER_RUNTIME


class ServiceObject(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A Service; only its existence matters."""


class PodGroupStatus(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The status of a PodGroup."""

    phase: str = ""


class PodGroupObject(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A PodGroup of Volcano or of scheduler-plugins."""

    status: PodGroupStatus = PodGroupStatus()


class JobObject(Object, frozen=True, rename="camel", omit_defaults=True):
    """A training job of any kind, with spec and status as bytes until they are needed."""

    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def job_resource(framework: Framework) -> Resource[JobObject]:
    """Return the resource of a framework's jobs."""
    return custom_resource(
        framework.api_version, framework.kind, JobObject, plural=framework.plural
    )


def runtime_resource(kind: str) -> Resource[Manifest]:
    """Return the resource of a kind of runtimes."""
    return custom_resource(API_VERSION, kind, Manifest, namespaced=kind != CLUSTER_RUNTIME)


class DecoratorError(OutsideError):
    """A pod could not be decorated, and the failure policy is *Fail*."""


class PodDecorator(Protocol):
    """Changes pods before they are created."""

    async def __call__(self, job: Manifest, pod: Manifest) -> Manifest:
        """Return the pod to create instead of ``pod``; neither argument is changed in place.

        Raises :class:`DecoratorError` if the pod must not be created.
        """


class DecoratorSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A webhook that changes pods before they are created (``danlu operator run --decorator``).

    It receives a POST of ``{"job": …, "pod": …}`` and responds with ``{"patch": [RFC 6902 …]}`` or
    with an empty body.

    Attributes:
        failure_policy: *Fail* leaves the job pending with an event, *Ignore* creates the pod
            unchanged.
        ca: PEM certificates to trust, empty for this machine's.
        kinds: The kinds of jobs it is called for, empty for all.
    """

    url: str
    timeout_seconds: float = 10.0
    failure_policy: Literal["Fail", "Ignore"] = "Fail"
    ca: str = ""
    kinds: tuple[str, ...] = ()


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of ``danlu operator run``; :data:`danlu.operator.flags.FLAGS` describes them.

    Attributes:
        kinds: The enabled kinds, empty for all.
        versions: By kind, the version to serve (``v2beta1``) instead of the default.
        namespace: The namespace to watch, empty for the whole cluster.
        gang_scheduler: Empty, ``volcano``, or the name of a scheduler with scheduler-plugins.
        images: Replacements of images that frameworks name (``kubeflow/kubectl-delivery:latest``).
        reports_url: The URL at which replicas reach ``reports_address``.
        status_seconds: The minimum interval between writes of replica counts.
        pace: Overrides of the restart back-off, for tests.
    """

    kinds: tuple[str, ...] = ()
    versions: Mapping[str, str] = {}
    namespace: str = ""
    threads: int = 8
    rate: float = 0.0
    burst: int = 0
    metrics_address: str = "0.0.0.0:8080"
    health_address: str = "0.0.0.0:8081"
    reports_address: str = ""
    reports_url: str = ""
    leader_elect: bool = False
    lease_name: str = "danlu-operator"
    lease_namespace: str = ""
    gang_scheduler: str = ""
    cluster_domain: str = ""
    images: Mapping[str, str] = {}
    decorators: tuple[DecoratorSpec, ...] = ()
    decorator_config: str = ""
    status_seconds: float = 1.0
    pace: Mapping[str, Any] = {}
