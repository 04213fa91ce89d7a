"""The flags of ``danlu operator run``: one table for the command line and for the manifests.

Where Kubeflow's operator has a flag (``cmd/training-operator.v1/main.go``), this is its name, and
what it means there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from danlu.errors import UsageError
from danlu.operator.types import DecoratorSpec, OperatorSettings
from danlu.training.registry import framework_of
from danlu.training.templates import is_label

__all__ = ["DELIVERY_IMAGE", "FLAGS", "IGNORED", "Flag", "arguments", "settings_of"]

DELIVERY_IMAGE = "kubeflow/kubectl-delivery:latest"
"""The image with ``kubectl`` that an MPIJob's launcher starts with, unless another is named."""

_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag: the field of :class:`OperatorSettings` that it sets, and as what.

    ``pairs`` are ``OLD=NEW``; ``urls`` decorators by their address alone; an ``address`` is
    ``[HOST]:PORT``, or nowhere (empty, or ``0`` as in Kubeflow's); a ``name`` is one that a cluster
    takes. ``variable`` of the environment counts where the flag is not given to a process.
    """

    name: str
    field: str
    kind: Literal[
        "text", "name", "address", "number", "whole", "truth", "kinds", "pairs", "image", "urls"
    ]
    metavar: str
    help: str
    variable: str = ""

    @property
    def parameter(self) -> str:
        """Its name as an argument of a function."""
        return self.name.removeprefix("--").replace("-", "_")


FLAGS = (
    Flag(
        "--enable-scheme",
        "kinds",
        "kinds",
        "KIND",
        "Run this kind of jobs only; may be given "
        "more than once, or with commas, in any letter case.",
    ),
    Flag(
        "--namespace",
        "namespace",
        "name",
        "NAME",
        "Only jobs of this namespace.",
        "KUBEFLOW_NAMESPACE",
    ),
    Flag(
        "--controller-threads",
        "threads",
        "whole",
        "N",
        "Jobs of a kind that are looked at at once.",
    ),
    Flag(
        "--kube-api-qps",
        "rate",
        "number",
        "N",
        "Requests a second to the API server at most; 0 for no limit but the server's.",
    ),
    Flag("--kube-api-burst", "burst", "whole", "N", "Requests at once where they are limited."),
    Flag(
        "--metrics-bind-address",
        "metrics_address",
        "address",
        "ADDRESS",
        "Where /metrics is served; empty for nowhere.",
    ),
    Flag(
        "--health-probe-bind-address",
        "health_address",
        "address",
        "ADDRESS",
        "Where /healthz and /readyz are served.",
    ),
    Flag(
        "--reports-bind-address",
        "reports_address",
        "address",
        "ADDRESS",
        "Where replicas report their progress and results, over HTTPS; nowhere unless given.",
    ),
    Flag("--reports-url", "reports_url", "text", "URL", "How replicas reach that address."),
    Flag("--leader-elect", "leader_elect", "truth", "", "Act only as the leader, of several."),
    Flag("--leader-election-id", "lease_name", "text", "NAME", "The Lease of the leader."),
    Flag(
        "--leader-election-namespace",
        "lease_namespace",
        "name",
        "NAME",
        "Its namespace, unless it is the operator's own.",
    ),
    Flag(
        "--gang-scheduler-name",
        "gang_scheduler",
        "text",
        "NAME",
        "volcano, or the name of a scheduler with scheduler-plugins' coscheduling.",
    ),
    Flag(
        "--cluster-domain",
        "cluster_domain",
        "text",
        "DOMAIN",
        "Added to the names in TF_CONFIG.",
        "CUSTOM_CLUSTER_DOMAIN",
    ),
    Flag(
        "--mpi-kubectl-delivery-image",
        "images",
        "image",
        "IMAGE",
        "What brings kubectl into the launcher of an MPIJob.",
    ),
    Flag(
        "--replace-image",
        "images",
        "pairs",
        "OLD=NEW",
        "Use another image for one that a framework names.",
    ),
    Flag(
        "--pytorch-init-container-image",
        "wait_for_master",
        "text",
        "IMAGE",
        "Let workers wait in an init container of this image until their master's name resolves.",
    ),
    Flag(
        "--decorator",
        "decorators",
        "urls",
        "URL",
        "Ask this server to change pods before they are made.",
    ),
    Flag(
        "--decorator-config",
        "decorator_config",
        "text",
        "FILE",
        "Decorators with time-outs, failure policies and authorities, as YAML.",
    ),
)

IGNORED = (
    "--monitoring-port",
    "--pytorch-init-container-max-tries",
    "--pytorch-init-container-template-file",
    "--webhook-secret-name",
    "--webhook-server-port",
    "--webhook-service-name",
    "--zap-devel",
    "--zap-encoder",
    "--zap-log-level",
    "--zap-stacktrace-level",
    "--zap-time-encoding",
)
"""Flags of Kubeflow's that have nothing to set here: there is no webhook."""


def settings_of(values: Mapping[str, Any]) -> OperatorSettings:
    """The settings that flags ask for; ``values`` by :attr:`Flag.parameter`, None where absent.

    Raises :class:`UsageError` for kinds that nobody knows and for values that make no sense.
    """
    found: dict[str, Any] = {}
    for flag in FLAGS:
        value = values.get(flag.parameter)
        if value is None or value == ():
            continue
        if flag.field == "images":
            found["images"] = {**found.get("images", {}), **dict(_images(flag, value))}
        else:
            found[flag.field] = _read(flag, value)
    if found.get("threads", 1) < 1:
        raise UsageError("--controller-threads must be at least 1")
    if found.get("rate", 0) < 0 or found.get("burst", 0) < 0:
        raise UsageError("--kube-api-qps and --kube-api-burst must not be negative")
    return OperatorSettings(**found)


def arguments(settings: OperatorSettings) -> tuple[str, ...]:
    """The flags that give ``settings``, those of the defaults left out."""
    plain = OperatorSettings()
    found: list[str] = []
    for flag in FLAGS:
        value = getattr(settings, flag.field)
        if value != getattr(plain, flag.field):
            found += _written(flag, value)
    return tuple(found)


def _read(flag: Flag, value: Any) -> Any:
    match flag.kind:
        case "kinds":
            names = [name.strip() for one in value for name in one.split(",")]
            return tuple(dict.fromkeys(_kind(name) for name in names if name))
        case "urls":
            return tuple(DecoratorSpec(_url(url)) for url in value)
        case "address":
            return _address(flag, value)
        case "name":
            return _name(flag, value)
        case _:
            return value


def _kind(name: str) -> str:
    return framework_of(name).kind


def _url(text: str) -> str:
    # aiohttp comes with it, which nobody waits for who writes manifests without decorators.
    from danlu.kube.posting import read_url

    read_url(text)
    return text


def _address(flag: Flag, text: str) -> str:
    if text in ("", "0"):
        return ""
    _, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and 0 < int(port) <= _LAST_PORT):
        raise UsageError(
            f"{flag.name} {text}: an address ends in a port", hint="write :8080 or 127.0.0.1:8080"
        )
    return text


def _name(flag: Flag, text: str) -> str:
    if text and not is_label(text):
        raise UsageError(
            f"{flag.name} {text}: no name that a cluster takes",
            hint="small letters, digits and '-', at most 63",
        )
    return text


def _images(flag: Flag, value: Any) -> Iterator[tuple[str, str]]:
    if flag.kind == "image":
        yield DELIVERY_IMAGE, value
        return
    for pair in value:
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise UsageError(f"{flag.name} {pair}: write OLD=NEW")
        yield old, new


def _written(flag: Flag, value: Any) -> Sequence[str]:
    match flag.kind:
        case "truth":
            return (flag.name,) if value else (f"{flag.name}=false",)
        case "kinds":
            return [f"{flag.name}={kind}" for kind in value]
        case "urls":
            # What a flag cannot say is in the file of --decorator-config.
            simple = [one for one in value if one == DecoratorSpec(one.url)]
            return [f"{flag.name}={one.url}" for one in simple]
        case "image":
            return ()
        case "pairs":
            return [f"{flag.name}={old}={new}" for old, new in sorted(value.items())]
        case "number":
            return (f"{flag.name}={msgspec.json.encode(value).decode()}",)
        case _:
            return (f"{flag.name}={value}",)
