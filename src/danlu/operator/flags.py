"""The flags of ``danlu operator run``: one table for the command line and the manifests.

Flags that Kubeflow's operator also has (``cmd/training-operator.v1/main.go``) keep their names and
meanings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from danlu.errors import UsageError
from danlu.operator.types import DecoratorSpec, OperatorSettings
from danlu.training.registry import BUILT_IN_FRAMEWORKS, choose_version, find_kind, list_versions
from danlu.util.decoding import convert_value
from danlu.util.dns_label import is_dns_label
from danlu.util.urls import mask_credentials
from danlu.util.yaml_with_lines import read_yaml

_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class OperatorFlag:
    """A flag, and the field of :class:`OperatorSettings` that it sets.

    Attributes:
        kind: How the value is parsed. ``pairs`` are ``OLD=NEW``; ``urls`` are decorators without
            options; an ``address`` is ``[HOST]:PORT``, empty or ``0`` (as in Kubeflow) to disable
            it; a ``name`` is a DNS label; an ``image`` and a ``version`` are one item of a mapping.
        variable: An environment variable that is used if the flag is not given.
        key: The key of that item: the image that is replaced, or a kind.
    """

    name: str
    field: str
    kind: Literal[
        "text",
        "name",
        "address",
        "float",
        "integer",
        "boolean",
        "kinds",
        "version",
        "pairs",
        "image",
        "urls",
    ]
    metavar: str
    help: str
    variable: str = ""
    key: str = ""

    @property
    def parameter(self) -> str:
        """The name as a function parameter."""
        return self.name.removeprefix("--").replace("-", "_")


FLAGS = (
    OperatorFlag(
        "--enable-scheme",
        "kinds",
        "kinds",
        "KIND",
        "Enable only this kind of job. Repeatable, or comma-separated; case-insensitive.",
    ),
    *(
        OperatorFlag(
            f"--{framework.kind.lower()}-version",
            "versions",
            "version",
            "VERSION",
            f"Version of {framework.kind}s: {' or '.join(list_versions(framework))}; a cluster"
            " has one.",
            key=framework.kind,
        )
        for framework in BUILT_IN_FRAMEWORKS
        if framework.other_versions
    ),
    OperatorFlag(
        "--namespace",
        "namespace",
        "name",
        "NAME",
        "Watch only this namespace.",
        "KUBEFLOW_NAMESPACE",
    ),
    OperatorFlag(
        "--controller-threads", "threads", "integer", "N", "Concurrent reconciles per kind."
    ),
    OperatorFlag(
        "--kube-api-qps",
        "rate",
        "float",
        "N",
        "Client-side QPS limit for the API server; 0 disables it.",
    ),
    OperatorFlag("--kube-api-burst", "burst", "integer", "N", "Burst of the QPS limit."),
    OperatorFlag(
        "--metrics-bind-address",
        "metrics_address",
        "address",
        "ADDRESS",
        "Address of /metrics; 0 disables it.",
    ),
    OperatorFlag(
        "--health-probe-bind-address",
        "health_address",
        "address",
        "ADDRESS",
        "Address of /healthz and /readyz; 0 disables them.",
    ),
    OperatorFlag(
        "--reports-bind-address",
        "reports_address",
        "address",
        "ADDRESS",
        "Address of the HTTPS server for progress and results of replicas.",
    ),
    OperatorFlag(
        "--reports-url", "reports_url", "text", "URL", "URL at which replicas reach that server."
    ),
    OperatorFlag("--leader-elect", "leader_elect", "boolean", "", "Enable leader election."),
    OperatorFlag(
        "--leader-election-id", "lease_name", "text", "NAME", "Name of the leader election Lease."
    ),
    OperatorFlag(
        "--leader-election-namespace",
        "lease_namespace",
        "name",
        "NAME",
        "Namespace of the Lease [default: the operator's own].",
    ),
    OperatorFlag(
        "--gang-scheduler-name",
        "gang_scheduler",
        "text",
        "NAME",
        "Gang scheduler: volcano, or a scheduler with scheduler-plugins.",
    ),
    OperatorFlag(
        "--cluster-domain",
        "cluster_domain",
        "text",
        "DOMAIN",
        "Cluster domain to append to the names in TF_CONFIG.",
        "CUSTOM_CLUSTER_DOMAIN",
    ),
    *(
        OperatorFlag(added.flag, "images", "image", "IMAGE", added.help, key=added.image)
        for framework in BUILT_IN_FRAMEWORKS
        for added in framework.added_images
    ),
    OperatorFlag(
        "--replace-image",
        "images",
        "pairs",
        "OLD=NEW",
        "Replace an image that a framework adds to pods. Repeatable.",
    ),
    OperatorFlag(
        "--decorator",
        "decorators",
        "urls",
        "URL",
        "Webhook that changes pods before they are created. Repeatable.",
    ),
    OperatorFlag(
        "--decorator-config",
        "decorator_config",
        "text",
        "FILE",
        "YAML file of decorators with timeouts, failure policies and CAs.",
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
"""Flags of Kubeflow's operator that have no effect here: it has no webhook."""


def parse_settings(values: Mapping[str, Any]) -> OperatorSettings:
    """Return the settings for flag values, by :attr:`OperatorFlag.parameter`, None if absent.

    Raises :class:`UsageError` for unknown kinds and invalid values.
    """
    fields: dict[str, Any] = {}
    for flag in FLAGS:
        value = values.get(flag.parameter)
        if value is None or value == ():
            continue
        if flag.kind in ("image", "pairs", "version"):
            fields[flag.field] = {**fields.get(flag.field, {}), **dict(_parse_items(flag, value))}
        else:
            fields[flag.field] = _parse_value(flag, value)
    if fields.get("threads", 1) < 1:
        raise UsageError("--controller-threads must be at least 1")
    if fields.get("rate", 0) < 0 or fields.get("burst", 0) < 0:
        raise UsageError("--kube-api-qps and --kube-api-burst must not be negative")
    return OperatorSettings(**fields)


def format_arguments(settings: OperatorSettings) -> tuple[str, ...]:
    """Return the flags that result in ``settings``, without those at their defaults."""
    plain = OperatorSettings()
    arguments: list[str] = []
    for flag in FLAGS:
        value = getattr(settings, flag.field)
        if value != getattr(plain, flag.field):
            arguments += _format_flag(flag, value)
    return tuple(arguments)


def _parse_value(flag: OperatorFlag, value: Any) -> Any:
    match flag.kind:
        case "kinds":
            names = [name.strip() for argument in value for name in argument.split(",")]
            return tuple(dict.fromkeys(_parse_kind(name) for name in names if name))
        case "urls":
            return tuple(DecoratorSpec(_parse_decorator_url(url)) for url in value)
        case "address":
            return _parse_address(flag, value)
        case "name":
            return _parse_name(flag, value)
        case _:
            return value


def _parse_kind(name: str) -> str:
    return find_kind(name).kind


def _parse_decorator_url(text: str) -> str:
    try:
        url = urlsplit(text)
        valid = url.scheme in ("http", "https") and url.hostname
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"--decorator {mask_credentials(text)}: invalid URL",
            hint="it must begin with http:// or https:// and a host",
        )
    return text


def _parse_address(flag: OperatorFlag, text: str) -> str:
    if text in ("", "0"):
        return ""
    _, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT):
        raise UsageError(
            f"{flag.name} {text}: invalid address", hint="write :8080 or 127.0.0.1:8080"
        )
    return text


def _parse_name(flag: OperatorFlag, text: str) -> str:
    if text and not is_dns_label(text):
        raise UsageError(
            f"{flag.name} {text}: invalid name",
            hint="use lower-case letters, digits and '-', at most 63 characters",
        )
    return text


def _parse_items(flag: OperatorFlag, value: Any) -> Iterator[tuple[str, str]]:
    if flag.kind == "version":
        framework = find_kind(flag.key)
        if choose_version(framework, value) is framework:
            return
    if flag.key:
        yield flag.key, value
        return
    for pair in value:
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise UsageError(f"{flag.name} {pair}: must be OLD=NEW")
        yield old, new


def _format_flag(flag: OperatorFlag, value: Any) -> Sequence[str]:
    match flag.kind:
        case "boolean":
            return (flag.name,) if value else (f"{flag.name}=false",)
        case "kinds":
            return [f"{flag.name}={kind}" for kind in value]
        case "urls":
            # Decorators with options are passed in the file of --decorator-config.
            simple = [spec for spec in value if spec == DecoratorSpec(spec.url)]
            return [f"{flag.name}={spec.url}" for spec in simple]
        case "version":
            return (f"{flag.name}={value[flag.key]}",) if flag.key in value else ()
        case "image":
            return ()
        case "pairs":
            return [f"{flag.name}={old}={new}" for old, new in sorted(value.items())]
        case "float":
            return (f"{flag.name}={msgspec.json.encode(value).decode()}",)
        case _:
            return (f"{flag.name}={value}",)


# -- the file of --decorator-config --------------------------------------------------------------


class _StrictDecoratorSpec(DecoratorSpec, frozen=True, rename="camel", forbid_unknown_fields=True):
    pass


def parse_decorators(text: str, file: str) -> tuple[DecoratorSpec, ...]:
    """Parse the YAML of ``--decorator-config``; raises :class:`UsageError` if it is invalid."""
    values: list[Any] = []
    for value, _ in read_yaml(text, file):
        values += value if isinstance(value, list) else [value]
    try:
        specs = convert_value(values, tuple[_StrictDecoratorSpec, ...])
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{file}: invalid list of decorators: {error}",
            hint="the fields are url (required), timeoutSeconds, failurePolicy, ca and kinds",
        ) from error
    return tuple(_check_spec(spec, file) for spec in specs)


def _check_spec(spec: DecoratorSpec, file: str) -> DecoratorSpec:
    if spec.timeout_seconds <= 0:
        raise UsageError(f"{file}: timeoutSeconds of {spec.url} must be greater than 0")
    fields = {name: getattr(spec, name) for name in DecoratorSpec.__struct_fields__}
    return DecoratorSpec(**fields)
