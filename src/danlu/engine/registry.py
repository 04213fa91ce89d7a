"""The registry of engines: danlu's own, one line each, and those of installed packages.

A package provides one through the entry point group ``danlu.engines``, under the engine's name.
Packages are only searched for a name that is not built in, or to list all engines.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from danlu.engine.engine import Engine
from danlu.errors import UsageError
from danlu.util.danlu_program import DEFAULT_ENGINE, LOCAL_CONTEXT
from danlu.util.plugins import broken_plugin, list_plugins, load_plugin
from danlu.util.suggest import suggest_name

ENTRY_POINT_GROUP = "danlu.engines"

# Where each is. It is loaded when it is asked for: every `danlu exec` loads this module.
_BUILT_IN_ENGINES = {
    DEFAULT_ENGINE: ("danlu.engine.embedded.engine", "ENGINE"),
    "docker": ("danlu.engine.docker.engine", "DOCKER"),
    "podman": ("danlu.engine.docker.engine", "PODMAN"),
    "kubernetes": ("danlu.engine.kubernetes.engine", "ENGINE"),
}
BUILT_IN_NAMES = tuple(_BUILT_IN_ENGINES)

# Those that only exist in contexts that the user creates, because they need an account.
_ACCOUNT_ENGINES = {"sagemaker": ("danlu.engine.sagemaker", "ENGINE")}


@cache
def find_engine(name: str) -> Engine:
    """Return the engine called ``name``.

    Raises :class:`UsageError` if it is unknown, :class:`~danlu.util.plugins.BrokenPlugin` if the
    package that provides it cannot be used.
    """
    if found := _BUILT_IN_ENGINES.get(name) or _ACCOUNT_ENGINES.get(name):
        module, attribute = found
        built_in: Engine = getattr(import_module(module), attribute)
        return built_in
    for entry in list_plugins(ENTRY_POINT_GROUP):
        if entry.name == name:
            engine = load_plugin(entry, Engine)
            if engine.name != name:
                raise broken_plugin(entry, Engine, f"it is called {engine.name!r}")
            return engine
    hint = suggest_name(name, (*list_engine_names(), *_ACCOUNT_ENGINES), what="engines")
    raise UsageError(f"unknown engine {name!r}", hint=hint)


def is_engine(name: str) -> bool:
    """Return whether there is an engine called ``name``; packages are not loaded."""
    known = name in BUILT_IN_NAMES or name in _ACCOUNT_ENGINES
    return known or name in list_engine_names()


def find_environment_engine(name: str) -> Engine:
    """Return an engine in which environments run; raise :class:`UsageError` if they do not.

    Also raises what :func:`find_engine` does.
    """
    engine = find_engine(name)
    if engine.features.is_account:
        raise UsageError(
            f"only training jobs run in {name}, but no environments",
            hint="add `--on local`, or use `danlu train`",
        )
    return engine


def name_engine_context(engine: str) -> str:
    """Return the name of the context that exists for an engine of this machine."""
    return LOCAL_CONTEXT if engine == DEFAULT_ENGINE else engine


def list_engine_names() -> tuple[str, ...]:
    """Return the names of the engines of contexts that exist without being created.

    danlu's own are the first, then those of packages, sorted.
    """
    plugins = {entry.name for entry in list_plugins(ENTRY_POINT_GROUP)}
    return (*BUILT_IN_NAMES, *sorted(plugins.difference(BUILT_IN_NAMES)))
