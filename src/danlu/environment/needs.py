"""What an environment needs from outside, in each ecosystem's own words, and digests of that.

The rules that turn declarations into package names live here, because resolving and assembling
must agree on them.
"""

from __future__ import annotations

from danlu.environment.inputs import Inputs
from danlu.environment.lock import FunctionLock, LockedBase, LockedPython, LockedSystem
from danlu.environment.types import Copy, Environment, Http, PythonPackages
from danlu.graph import Platform
from danlu.graph.digest import digest_of

__all__ = [
    "DEV_TOOLS",
    "base_inputs",
    "fits",
    "packages_inputs",
    "python_inputs",
    "python_needs",
    "python_version",
    "system_inputs",
    "system_needs",
    "wants_python",
]

#: What ``base(dev=True)`` adds: what one expects in a shell, and what services will start with.
DEV_TOOLS = (
    "bash-completion",
    "ca-certificates",
    "curl",
    "git",
    "less",
    "make",
    "openssh-client",
    "openssh-server",
    "procps",
    "sudo",
    "tini",
    "vim-tiny",
    "wget",
)


def wants_python(environment: Environment) -> bool:
    """Whether the environment has a Python of ours or uses the image's."""
    return bool(
        environment.python or environment.uv or environment.python_packages or environment.jupyter
    )


def python_version(environment: Environment) -> str:
    """The Python version asked for, empty for the base's own."""
    if environment.python and environment.python.version:
        return environment.python.version
    return environment.uv.python_version if environment.uv else ""


def system_needs(environment: Environment) -> tuple[str, ...]:
    """Names (and pins) of system packages beside the interpreter's, sorted, each once."""
    names = {name for packages in environment.system_packages for name in packages.names}
    if environment.base.dev:
        names.update(DEV_TOOLS)
    if environment.shell and environment.shell.name != "bash":
        names.add(environment.shell.name)
    return tuple(sorted(names))


def python_needs(environment: Environment) -> tuple[PythonPackages, ...]:
    """All Python packages: the declared ones, then those that declarations imply."""
    if not wants_python(environment):
        return ()
    implied: list[PythonPackages] = []
    if environment.python or not environment.base.image:
        implied.append(PythonPackages(names=("pip",), source="install.python"))
    if environment.uv:
        implied.append(PythonPackages(names=("uv",), source="install.uv", span=environment.uv.span))
    if environment.jupyter:
        implied.append(
            PythonPackages(
                names=("jupyter",), source="config.jupyter", span=environment.jupyter.span
            )
        )
    return (*environment.python_packages, *implied)


def base_inputs(environment: Environment, platform: Platform) -> str:
    """Digest of what the base is resolved from."""
    base = environment.base
    source = environment.apt_source.source if environment.apt_source else ""
    return digest_of(["base", base.os, base.image, str(platform), source])


def python_inputs(environment: Environment, base: LockedBase) -> str:
    """Digest of what the interpreter is resolved from."""
    declared = bool(environment.python and environment.python.version) or bool(environment.uv)
    version = python_version(environment)
    return digest_of(["python", version, declared, base.codename, base.interpreter, base.python])


def system_inputs(environment: Environment, base: LockedBase, python: LockedPython | None) -> str:
    """Digest of what the system packages are resolved from."""
    installed = [base.image, [(deb.name, deb.version) for deb in base.packages]]
    return digest_of(["system", base.inputs, installed, system_needs(environment), python])


def packages_inputs(
    environment: Environment, base: LockedBase, python: LockedPython | None, inputs: Inputs
) -> str:
    """Digest of what the Python packages are resolved from."""
    needs = python_needs(environment)
    names = sorted({name for one in needs for name in one.names})
    files = [sorted({one.requirements for one in needs}), sorted(inputs.packages.items())]
    index = environment.pip_index
    where = [index.url, index.extra_url, index.trust] if index else []
    interpreter = [python.version, python.provider] if python else []
    return digest_of(["packages", names, files, where, base.libc, interpreter])


def fits(environment: Environment, lock: FunctionLock, platform: Platform, inputs: Inputs) -> str:
    """The first section of ``lock`` that no longer fits, or an empty string."""
    if lock.platform != str(platform):
        return "platform"
    if lock.base.inputs != base_inputs(environment, platform):
        return "base"
    if wants_python(environment) != (lock.python is not None):
        return "python"
    if lock.python and lock.python.inputs != python_inputs(environment, lock.base):
        return "python"
    system = lock.system or LockedSystem(inputs="")
    if system.inputs != system_inputs(environment, lock.base, lock.python):
        return "system packages"
    if lock.packages_inputs != packages_inputs(environment, lock.base, lock.python, inputs):
        return "Python packages"
    return _sources_fit(environment, lock)


def _sources_fit(environment: Environment, lock: FunctionLock) -> str:
    urls = {step.url for step in environment.steps if isinstance(step, Http)}
    if urls != {one.url for one in lock.http}:
        return "HTTP files"
    images = {step.image for step in environment.steps if isinstance(step, Copy) and step.image}
    if images != {one.reference for one in lock.images}:
        return "images"
    used = {(one.url, one.ref, one.commit) for one in environment.includes}
    if used != {(one.url, one.ref, one.commit) for one in lock.includes}:
        return "includes"
    return ""
