"""The minimal RBAC rules that the operator needs, depending on its settings.

It creates only what the frameworks need, without a gang scheduler it sees no PodGroups, and without
reports and ssh it writes no Secrets. It never reads a Secret except its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from danlu.kube.types import Manifest
from danlu.operator.gang_scheduling import pod_group_resource
from danlu.operator.stored_versions import definition_name
from danlu.operator.types import OperatorSettings, job_resource
from danlu.training.framework import Framework, policy_rule
from danlu.training.registry import TRAIN_JOB

REPORTS_SECRET = "danlu-operator-reports"
"""The Secret with the credentials of the report server, in the operator's own namespace."""

_ALL_VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class OperatorRules:
    """Lists of ``PolicyRule``.

    Attributes:
        jobs: Rules for the namespaces of jobs.
        own: Rules for the operator's own namespace.
        cluster: Rules for cluster-scoped objects, which a Role cannot grant.
    """

    jobs: tuple[Manifest, ...]
    own: tuple[Manifest, ...]
    cluster: tuple[Manifest, ...] = ()


def operator_rules(frameworks: Sequence[Framework], settings: OperatorSettings) -> OperatorRules:
    """Return the rules of an operator that runs ``frameworks`` with these settings."""
    return OperatorRules(
        _drop_duplicates(_job_namespace_rules(frameworks, settings)),
        tuple(_own_namespace_rules(settings)),
        tuple(_cluster_rules(frameworks, settings)),
    )


def viewer_rules(frameworks: Iterable[Framework]) -> tuple[Manifest, ...]:
    """Return the rules of a user who may view jobs."""
    return tuple(_job_access_rules(frameworks, ("get", "list", "watch")))


def editor_rules(frameworks: Iterable[Framework]) -> tuple[Manifest, ...]:
    """Return the rules of a user who may submit jobs, with submitter leases."""
    leases = policy_rule(
        "coordination.k8s.io", ["leases"], ("create", "delete", "get", "patch", "update")
    )
    return (*_job_access_rules(frameworks, _ALL_VERBS), leases)


def _job_access_rules(frameworks: Iterable[Framework], verbs: Sequence[str]) -> Iterator[Manifest]:
    changing = [verb for verb in verbs if verb in ("get", "patch", "update")]
    for group, members in _group_by_api(frameworks):
        yield policy_rule(group, [framework.plural for framework in members], verbs)
        if scaled := [framework.plural for framework in members if framework.scaled_type]:
            yield policy_rule(group, [f"{plural}/scale" for plural in scaled], changing)
        statuses = [f"{framework.plural}/status" for framework in members]
        yield policy_rule(group, statuses, ("get",))
        # Who may run jobs may read what they refer to; runtimes of a namespace are its own.
        if TRAIN_JOB in members:
            yield policy_rule(group, ["trainingruntimes"], verbs)
            yield policy_rule(group, ["clustertrainingruntimes"], ("get", "list", "watch"))


def _job_namespace_rules(
    frameworks: Sequence[Framework], settings: OperatorSettings
) -> Iterator[Manifest]:
    for group, members in _group_by_api(frameworks):
        plurals = [framework.plural for framework in members]
        # delete: ttlSecondsAfterFinished; patch: to suspend jobs whose submitter is gone.
        yield policy_rule(group, plurals, ("delete", "get", "list", "patch", "watch"))
        yield policy_rule(group, [f"{plural}/status" for plural in plurals], ("patch",))
        # Needed for blockOwnerDeletion (admission plugin OwnerReferencesPermissionEnforcement).
        yield policy_rule(group, [f"{plural}/finalizers" for plural in plurals], ("update",))
    # patch: adoption and release.
    verbs = ("create", "delete", "get", "list", "patch", "watch")
    yield policy_rule("", ["pods", "services"], verbs)
    yield policy_rule("", ["events"], ("create", "patch"))
    # Submitter leases.
    yield policy_rule("coordination.k8s.io", ["leases"], ("list", "watch"))
    if any("elasticPolicy" in framework.spec_options for framework in frameworks):
        scalers = ["horizontalpodautoscalers"]
        yield policy_rule("autoscaling", scalers, ("create", "delete", "get", "patch"))
    for framework in frameworks:
        yield from map(dict, framework.operator_rules)
    if settings.reports_address:
        yield policy_rule("", ["secrets"], ("create", "patch"))
        yield policy_rule("", ["configmaps"], ("create", "delete", "get", "patch"))
    if settings.gang_scheduler:
        resource = pod_group_resource(settings.gang_scheduler)
        yield policy_rule(resource.group, [resource.plural], verbs)


def _own_namespace_rules(settings: OperatorSettings) -> Iterator[Manifest]:
    if settings.leader_elect:
        yield policy_rule("coordination.k8s.io", ["leases"], ("create",))
        lease = policy_rule("coordination.k8s.io", ["leases"], ("get", "update"))
        yield {**lease, "resourceNames": [settings.lease_name]}
    if settings.reports_address:
        yield policy_rule("", ["secrets"], ("create",))
        yield {
            **policy_rule("", ["secrets"], ("get", "update")),
            "resourceNames": [REPORTS_SECRET],
        }


def _group_by_api(
    frameworks: Iterable[Framework],
) -> Iterator[tuple[str, list[Framework]]]:
    """Yield each API group with its frameworks, in the order of the first of each."""
    groups: dict[str, list[Framework]] = {}
    for framework in frameworks:
        groups.setdefault(job_resource(framework).group, []).append(framework)
    yield from groups.items()


def _cluster_rules(
    frameworks: Sequence[Framework], settings: OperatorSettings
) -> Iterator[Manifest]:
    for framework in frameworks:
        yield from map(dict, framework.cluster_rules)
    if names := [definition_name(each) for each in frameworks if each.single_version]:
        definitions = ["customresourcedefinitions"]
        rule = policy_rule("apiextensions.k8s.io", definitions, ("get",))
        yield {**rule, "resourceNames": names}
    if settings.gang_scheduler:
        # They decide which replicas minResources includes first.
        yield policy_rule("scheduling.k8s.io", ["priorityclasses"], ("get",))


def _drop_duplicates(rules: Iterable[Manifest]) -> tuple[Manifest, ...]:
    kept: list[Manifest] = []
    for rule in rules:
        if rule not in kept:
            kept.append(rule)
    return tuple(kept)
