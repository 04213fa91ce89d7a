"""Run the operator, and render what installs it on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.oci.reference import Reference
from danlu.operator.crds import custom_resource_definitions
from danlu.operator.flags import parse_decorators
from danlu.operator.manifests import InstallOptions, install_manifests
from danlu.operator.types import OperatorSettings
from danlu.training.registry import list_kinds
from danlu.training.train_job.runtimes import RUNTIME_NAMES, installed_runtime
from danlu.util.dns_label import is_dns_label
from danlu.util.yaml_with_lines import dump_yaml


def run_operator(settings: OperatorSettings, *, kubeconfig: Path | None, context: str) -> None:
    """Run the operator until SIGTERM or SIGINT.

    Raises :class:`UsageError` if no cluster is configured, :class:`OutsideError` if the cluster
    cannot be reached, refuses the request, or another operator becomes the leader.
    """
    # Printing manifests needs no client and no event loop.
    import anyio

    from danlu.kube.kubeconfig import load_cluster_config
    from danlu.operator.setup import run_operator

    if settings.decorator_config:
        settings = _load_decorators(settings)
    access = load_cluster_config(kubeconfig=kubeconfig, context=context)
    anyio.run(run_operator, access, settings)


def list_crds(settings: OperatorSettings) -> Sequence[Mapping[str, Any]]:
    """Return the CRDs of the enabled kinds."""
    return custom_resource_definitions(list_kinds(settings.kinds, settings.versions))


def list_runtimes() -> Sequence[Mapping[str, Any]]:
    """Return the runtimes of Kubeflow Trainer that the operator runs, under their names there."""
    return [*filter(None, map(installed_runtime, RUNTIME_NAMES))]


def list_manifests(options: InstallOptions) -> Sequence[Mapping[str, Any]]:
    """Return the objects that install the operator, with leader election and its decorators.

    Raises :class:`UsageError` for invalid options or an invalid file of decorators.
    """
    _validate_options(options)
    settings = msgspec.structs.replace(options.settings, leader_elect=True)
    decorators = ""
    if settings.decorator_config:
        decorators = _read_file(settings.decorator_config)
        _load_decorators(settings)
    options = replace(options, settings=settings, decorators=decorators)
    return install_manifests(list_kinds((), settings.versions), options)


def _validate_options(options: InstallOptions) -> None:
    """Reject what the cluster would reject after some objects have been created."""
    if options.replicas < 1:
        raise UsageError("--replicas must be at least 1")
    Reference.parse(options.image)
    if not is_dns_label(options.namespace):
        raise UsageError(
            f"invalid namespace {options.namespace!r} for --install-namespace",
            hint="use lowercase letters, digits and '-', at most 63 characters",
        )


def render_documents(
    documents: Iterable[Mapping[str, Any]], *, form: Literal["yaml", "json"]
) -> str:
    """Render documents for ``kubectl apply -f -``."""
    if form == "json":
        items = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        return msgspec.json.format(msgspec.json.encode(items)).decode()
    return "---\n".join(dump_yaml(document) for document in documents).rstrip("\n")


def _load_decorators(settings: OperatorSettings) -> OperatorSettings:
    file = settings.decorator_config
    listed = parse_decorators(_read_file(file), file)
    return msgspec.structs.replace(settings, decorators=(*settings.decorators, *listed))


def _read_file(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise OutsideError(f"cannot read {file}: {reason}") from error
