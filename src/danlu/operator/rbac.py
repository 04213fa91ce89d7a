"""The least rights with which the operator works, as Kubernetes' roles say them.

Nothing is asked for that its settings leave out: without MPIJobs it makes no roles, without a gang
scheduler it sees no PodGroups, without reports it writes no Secrets; and it never reads one but
its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from danlu.kube.types import Document
from danlu.operator.crds import SCALED
from danlu.operator.gangs import pod_groups
from danlu.operator.types import OperatorSettings
from danlu.training.cluster import GROUP
from danlu.training.framework import Framework
from danlu.training.registry import framework_of

__all__ = ["REPORTS_SECRET", "Rights", "editors", "rights", "viewers"]

REPORTS_SECRET = "danlu-operator-reports"
"""The Secret with the key and the certificate of reports, in the operator's own namespace."""

_EVERY = ("create", "delete", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Rights:
    """Rules of ``PolicyRule``: ``jobs`` where jobs are, ``own`` in the operator's namespace."""

    jobs: tuple[Document, ...]
    own: tuple[Document, ...]


def rights(frameworks: Iterable[Framework], settings: OperatorSettings) -> Rights:
    """What the operator may do that runs ``frameworks`` with these settings."""
    kinds = {framework_of(kind).kind for kind in settings.kinds}
    enabled = [one for one in frameworks if not kinds or one.kind in kinds]
    return Rights(tuple(_jobs(enabled, settings)), tuple(_own(settings)))


def viewers(frameworks: Iterable[Framework]) -> tuple[Document, ...]:
    """What somebody may do who sees jobs."""
    return tuple(_users(frameworks, ("get", "list", "watch")))


def editors(frameworks: Iterable[Framework]) -> tuple[Document, ...]:
    """What somebody may do who submits jobs, and ties them to the life of a program."""
    ties = _rule("coordination.k8s.io", ["leases"], ("create", "delete", "get", "patch", "update"))
    return (*_users(frameworks, _EVERY), ties)


def _users(frameworks: Iterable[Framework], verbs: Sequence[str]) -> Iterator[Document]:
    frameworks = list(frameworks)
    yield _rule(GROUP, [one.plural for one in frameworks], verbs)
    scaled = [one.plural for one in frameworks if one.kind in SCALED]
    changing = [verb for verb in verbs if verb in ("get", "patch", "update")]
    yield _rule(GROUP, [f"{plural}/scale" for plural in scaled], changing)
    yield _rule(GROUP, [f"{one.plural}/status" for one in frameworks], ("get",))


def _jobs(frameworks: Sequence[Framework], settings: OperatorSettings) -> Iterator[Document]:
    plurals = [one.plural for one in frameworks]
    # delete: a time to live; patch: a job whose submitter is gone is suspended.
    yield _rule(GROUP, plurals, ("delete", "get", "list", "patch", "watch"))
    yield _rule(GROUP, [f"{plural}/status" for plural in plurals], ("patch",))
    # Where owners must be the owner's to block (OwnerReferencesPermissionEnforcement).
    yield _rule(GROUP, [f"{plural}/finalizers" for plural in plurals], ("update",))
    # patch: adopted, and released.
    verbs = ("create", "delete", "get", "list", "patch", "watch")
    yield _rule("", ["pods", "services"], verbs)
    yield _rule("", ["events"], ("create", "patch"))
    # The Leases that tie jobs to whoever submitted them.
    yield _rule("coordination.k8s.io", ["leases"], ("list", "watch"))
    if any("elasticPolicy" in one.options for one in frameworks):
        scalers = ["horizontalpodautoscalers"]
        yield _rule("autoscaling", scalers, ("create", "delete", "get", "patch"))
    if any(not one.services for one in frameworks):
        yield from _launchers()
    if settings.reports_address:
        yield _rule("", ["secrets"], ("create", "patch"))
    if settings.reports_address or any(not one.services for one in frameworks):
        yield _rule("", ["configmaps"], ("create", "delete", "get", "patch"))
    if settings.gang_scheduler:
        group = pod_groups(settings.gang_scheduler)
        yield _rule(group.group, [group.plural], verbs)


def _launchers() -> Iterator[Document]:
    """To give launchers the right to run their agent, which one must have to give."""
    yield _rule("", ["serviceaccounts"], ("create", "get"))
    yield _rule("rbac.authorization.k8s.io", ["rolebindings", "roles"], ("create", "get", "patch"))
    yield _rule("", ["pods/exec"], ("create",))


def _own(settings: OperatorSettings) -> Iterator[Document]:
    if settings.leader_elect:
        yield _rule("coordination.k8s.io", ["leases"], ("create",))
        lease = _rule("coordination.k8s.io", ["leases"], ("get", "update"))
        yield {**lease, "resourceNames": [settings.lease_name]}
    if settings.reports_address:
        yield _rule("", ["secrets"], ("create",))
        yield {**_rule("", ["secrets"], ("get", "update")), "resourceNames": [REPORTS_SECRET]}


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str]) -> Document:
    return {"apiGroups": [group], "resources": sorted(resources), "verbs": sorted(verbs)}
