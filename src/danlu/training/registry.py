"""The registry of frameworks: danlu's own, one line each, and those of installed packages.

A package provides one through the entry point group ``danlu.frameworks``, under the framework's
name. Packages are only searched for a name that is not built in, or to list all frameworks. A
package that cannot be loaded is an error only for those who ask for its framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from danlu.errors import UsageError
from danlu.training.framework import Framework
from danlu.training.frameworks import train_job
from danlu.training.train_job.mpi import choose_framework
from danlu.training.types import Job
from danlu.util.plugins import BrokenPlugin, broken_plugin, list_plugins, load_plugin
from danlu.util.suggest import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "danlu.frameworks"

_MODULES = (
    "pytorch",
    "tensorflow",
    "mpi",
    "xgboost",
    "paddle",
    "jax",
    "mxnet",
)

BUILT_IN_FRAMEWORKS: tuple[Framework, ...] = tuple(
    import_module(f"danlu.training.frameworks.{name}").FRAMEWORK for name in _MODULES
)

DEFAULT_FRAMEWORK = BUILT_IN_FRAMEWORKS[0]
"""The framework that serves any program: it sets the most common variables (``RANK`` …)."""

TRAIN_JOB = train_job.FRAMEWORK
"""What drives TrainJobs. It is not listed, because a script cannot choose it."""


def find_framework(kind_or_name: str) -> Framework:
    """Return the framework with this kind (``PyTorchJob``), name or alias, in any case.

    Raises:
        BrokenPlugin: A package provides a framework of this name that cannot be used.
        UsageError: There is no such framework; the hint has the closest name.
    """
    if kind_or_name == TRAIN_JOB.kind:
        return TRAIN_JOB
    wanted = kind_or_name.lower()
    for framework in BUILT_IN_FRAMEWORKS:
        if wanted in _framework_names(framework):
            return framework
    for entry in list_plugins(ENTRY_POINT_GROUP):
        if entry.name.lower() == wanted:
            return _load_plugin(entry, BUILT_IN_FRAMEWORKS)
    plugins, broken = _load_plugins()
    for framework in plugins:
        if wanted in _framework_names(framework):
            return framework
    raise _unknown_framework(kind_or_name, (*BUILT_IN_FRAMEWORKS, *plugins), broken)


def find_job_framework(job: Job) -> Framework:
    """Return the framework of a job's kind and version."""
    framework = find_framework(job.kind)
    return choose_variant(find_version(framework, job.api_version) or framework, job)


def choose_variant(framework: Framework, job: Job) -> Framework:
    """Return what drives this very job of a framework's kind: TrainJobs differ by their policy."""
    policy = job.options.get("policy", "")
    return choose_framework(policy) if framework is TRAIN_JOB else framework


def find_version(framework: Framework, version: object) -> Framework | None:
    """Return the framework of the same kind for this ``apiVersion``, or None."""
    versions = (framework, *framework.other_versions)
    return next((other for other in versions if other.api_version == version), None)


def list_frameworks() -> tuple[Framework, ...]:
    """Return all usable frameworks: danlu's own, then those of packages, sorted by name."""
    return (*BUILT_IN_FRAMEWORKS, *_load_plugins()[0])


def find_kind(name: str) -> Framework:
    """Return the framework of a kind of jobs on a cluster, in any case; raises as above."""
    return TRAIN_JOB if name.lower() in _framework_names(TRAIN_JOB) else find_framework(name)


def list_kinds(
    kinds: Sequence[str] = (), versions: Mapping[str, str] = {}
) -> tuple[Framework, ...]:
    """Return the frameworks of all kinds of jobs that the operator serves.

    Only those of ``kinds`` if it is not empty, each in its version of ``versions`` (``v1``) if it
    has one there. Raises :class:`UsageError` if one is unknown.
    """
    known = tuple(dict.fromkeys(map(find_kind, kinds))) or (*list_frameworks(), TRAIN_JOB)
    return tuple(choose_version(framework, versions.get(framework.kind, "")) for framework in known)


def choose_version(framework: Framework, version: str) -> Framework:
    """Return the framework of the same kind for a version (``v1``); an empty one is the default.

    Raises :class:`UsageError` if it is unknown.
    """
    versions = {list_versions(other)[0]: other for other in (framework, *framework.other_versions)}
    if version and version not in versions:
        raise UsageError(
            f"unknown version '{version}' of {framework.kind}",
            hint=f"choose from {', '.join(versions)}",
        )
    return versions.get(version, framework)


def list_versions(framework: Framework) -> tuple[str, ...]:
    """Return the versions of a framework's kind (``v1``), its own first."""
    known = (framework, *framework.other_versions)
    return tuple(each.api_version.partition("/")[2] for each in known)


def _framework_names(framework: Framework) -> frozenset[str]:
    """Return all names of a framework, in lower case."""
    names = (framework.name, framework.kind, framework.plural, *framework.aliases)
    return frozenset(name.lower() for name in names)


def _load_plugins() -> tuple[list[Framework], list[BrokenPlugin]]:
    """Load the frameworks of all packages; return them, and an error for each that failed."""
    plugins: list[Framework] = []
    broken: list[BrokenPlugin] = []
    for entry in list_plugins(ENTRY_POINT_GROUP):
        try:
            plugins.append(_load_plugin(entry, (*BUILT_IN_FRAMEWORKS, *plugins)))
        except BrokenPlugin as error:
            broken.append(error)
    return plugins, broken


def _load_plugin(entry: EntryPoint, known: Sequence[Framework]) -> Framework:
    """Load the framework of an entry point. Its names must differ from those of ``known`` ones."""
    framework = load_plugin(entry, Framework)  # type: ignore[type-abstract]
    missing = [name for name in Framework.__annotations__ if not hasattr(framework, name)]
    if missing:
        raise broken_plugin(entry, Framework, f"{entry.value} does not set {', '.join(missing)}")
    names = _framework_names(framework)
    taken = next((other for other in known if _framework_names(other) & names), None)
    if taken is not None:
        raise broken_plugin(entry, Framework, f"{taken.kind} already has that name or kind")
    return framework


def _unknown_framework(
    kind_or_name: str, known: Sequence[Framework], broken: Sequence[BrokenPlugin]
) -> UsageError:
    names = [
        name for framework in known for name in (framework.name, framework.kind, *framework.aliases)
    ]
    choices = f"choose from {', '.join(framework.name for framework in known)}"
    return UsageError(
        f"unknown framework '{kind_or_name}'",
        hint=f"{did_you_mean(kind_or_name, names)} {choices}".strip(),
        # The framework that was meant may be one of those that cannot be used.
        details=tuple(error.message for error in broken),
    )
