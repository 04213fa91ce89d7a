"""``danlu operator``: the operator itself, and what a cluster needs for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from danlu.errors import OutsideError, UsageError

if TYPE_CHECKING:
    from danlu.operator.types import OperatorSettings

__all__ = ["Deployment", "crds", "manifests", "run", "settings_of", "text_of"]


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How the operator is to run in a cluster, besides its flags."""

    image: str
    namespace: str = ""
    replicas: int = 1
    pull_secret: str = ""


def settings_of(flags: Mapping[str, Any]) -> OperatorSettings:
    """The settings that flags ask for, by the names of their parameters.

    Raises :class:`UsageError` for unknown kinds, values without sense and files that are none.
    """
    from danlu.operator.flags import settings_of

    return settings_of(flags)


def run(settings: OperatorSettings, *, kubeconfig: Path | None, context: str) -> None:
    """Run the operator until it is told to stop (SIGTERM, SIGINT).

    Raises :class:`UsageError` where no cluster is configured, and :class:`OutsideError` where it
    cannot be reached, refuses, or lets somebody else lead.
    """
    import anyio

    from danlu.kube.kubeconfig import load_access
    from danlu.operator.assembly import run

    if settings.decorator_config:
        settings = _with_decorators(settings)
    access = load_access(kubeconfig=kubeconfig, context=context)
    anyio.run(run, access, settings)


def crds(settings: OperatorSettings) -> Sequence[Mapping[str, Any]]:
    """The definitions of the enabled kinds."""
    from danlu.operator.crds import definitions
    from danlu.training.registry import frameworks

    return definitions(
        one for one in frameworks() if not settings.kinds or one.kind in settings.kinds
    )


def manifests(settings: OperatorSettings, wanted: Deployment) -> Sequence[Mapping[str, Any]]:
    """The objects that a cluster needs to run the operator with these settings.

    Raises :class:`UsageError` for a file of decorators that is none, or a number of replicas.
    """
    from danlu.operator.manifests import NAMESPACE, Deployed, manifests
    from danlu.training.registry import frameworks

    _check(wanted)
    decorators = ""
    if settings.decorator_config:
        decorators = _text(settings.decorator_config)
        _with_decorators(settings)
    deployed = Deployed(
        image=wanted.image,
        settings=msgspec.structs.replace(settings, leader_elect=True),
        namespace=wanted.namespace or NAMESPACE,
        replicas=wanted.replicas,
        decorators=decorators,
        pull_secret=wanted.pull_secret,
    )
    return manifests(frameworks(), deployed)


def _check(wanted: Deployment) -> None:
    """Before a cluster has half of it."""
    from danlu.oci.reference import Reference
    from danlu.training.templates import is_label

    if wanted.replicas < 1:
        raise UsageError("--replicas must be at least 1")
    Reference.parse(wanted.image)
    if wanted.namespace and not is_label(wanted.namespace):
        raise UsageError(
            f"--install-namespace {wanted.namespace}: no name that a cluster takes",
            hint="small letters, digits and '-', at most 63",
        )


def text_of(documents: Iterable[Mapping[str, Any]], *, form: Literal["yaml", "json"]) -> str:
    """Documents as ``kubectl apply -f -`` reads them."""
    if form == "json":
        found = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        return msgspec.json.format(msgspec.json.encode(found)).decode()
    from danlu.training.manifest import dump_yaml

    return "---\n".join(dump_yaml(one) for one in documents).rstrip("\n")


def _with_decorators(settings: OperatorSettings) -> OperatorSettings:
    from danlu.operator.decorating import read_decorators

    file = settings.decorator_config
    listed = read_decorators(_text(file), file)
    return msgspec.structs.replace(settings, decorators=(*settings.decorators, *listed))


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OutsideError(f"cannot read {file}: {reason}") from error
