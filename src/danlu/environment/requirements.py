"""What an environment needs from outside, and digests of that.

Resolving and assembling must agree on the rules that turn declarations into package names, so
those rules are here.
"""

from __future__ import annotations

from collections.abc import Sequence

from danlu.environment.conda import (
    CondaPackages,
    digest_conda_inputs,
    has_conda,
    has_conda_python,
    list_conda_packages,
)
from danlu.environment.lock import (
    FunctionLock,
    LockedBase,
    LockedConda,
    LockedPython,
    LockedSystem,
    list_pinned_packages,
)
from danlu.environment.package_names import requirement_name
from danlu.environment.types import (
    Environment,
    ProjectDigests,
    PythonPackages,
    UvTool,
)
from danlu.graph.ops import Platform
from danlu.graph.types import digest_of
from danlu.util.urls import strip_credentials

#: The source of ``pip``, which is in every environment that has a Python.
PYTHON_SOURCE = "install.python"


def needs_python(environment: Environment) -> bool:
    """Return whether the environment has a Python: one that danlu installs, or the image's."""
    return any(declaration.needs_python for declaration in environment.declarations)


def requested_python_version(environment: Environment) -> str:
    """Return the Python version that the user asked for, empty for the base's own."""
    uv = environment.find(UvTool)
    if environment.python and environment.python.version:
        return environment.python.version
    return uv.python_version if uv else ""


def list_system_packages(environment: Environment) -> tuple[str, ...]:
    """Return names (and pins) of system packages except the interpreter's, sorted, each once."""
    declared = environment.list_by_rank()
    return tuple(sorted({name for item in declared for name in item.system_packages()}))


def list_python_packages(environment: Environment) -> tuple[PythonPackages, ...]:
    """Return all Python packages: those the user declared, then those that declarations imply."""
    if not needs_python(environment):
        return ()
    implied: list[PythonPackages] = []
    # Conda's Python comes with conda's pip.
    if not has_conda_python(environment) and (environment.python or not environment.base.image):
        implied.append(PythonPackages(names=("pip",), source=PYTHON_SOURCE))
    for declaration in environment.declarations:
        if not isinstance(declaration, PythonPackages):
            implied.extend(declaration.python_packages())
    return (*environment.python_packages, *implied)


def digest_base_inputs(environment: Environment, platform: Platform) -> str:
    """Return the digest of what the base is resolved from."""
    base = environment.base
    source = environment.apt_source.source if environment.apt_source else ""
    variant = [base.variant] if base.variant else []
    return digest_of(["base", base.os, base.image, str(platform), source, *variant])


def list_all_conda_packages(environment: Environment) -> tuple[CondaPackages, ...]:
    """Return the declared conda packages, and conda's Python if the environment needs it."""
    return list_conda_packages(
        environment,
        python=needs_python(environment),
        version=requested_python_version(environment),
    )


def digest_conda_table(
    environment: Environment, base: LockedBase, platform: Platform, digests: ProjectDigests
) -> str:
    """Return the digest of what the conda packages are resolved from; empty if there are none."""
    if not has_conda(environment):
        return ""
    packages = list_all_conda_packages(environment)
    return digest_conda_inputs(packages, environment, base, digests, str(platform))


def digest_python_inputs(
    environment: Environment, base: LockedBase, conda: LockedConda | None = None
) -> str:
    """Return the digest of what the interpreter is resolved from."""
    if conda is not None and has_conda_python(environment):
        return digest_of(["python", "conda", conda.inputs, conda.find("python")])
    python = environment.python
    declared = bool(python and python.version) or environment.find(UvTool) is not None
    version = requested_python_version(environment)
    return digest_of(["python", version, declared, base.codename, base.interpreter, base.python])


def digest_system_inputs(
    environment: Environment,
    base: LockedBase,
    python: LockedPython | None,
    pinned: Sequence[str] = (),
) -> str:
    """Return the digest of what the system packages are resolved from.

    ``pinned`` are the packages that pins of the lock's sections need.
    """
    installed = [base.image, [(deb.name, deb.version) for deb in base.packages]]
    names = sorted({*list_system_packages(environment), *pinned})
    interpreter: object = python
    if python is not None and python.archive is None:
        # As in locks that were written before archives existed.
        fields = ("inputs", "version", "executable", "provider")
        interpreter = {field: getattr(python, field) for field in fields}
    return digest_of(["system", base.inputs, installed, names, interpreter])


def digest_package_inputs(
    environment: Environment,
    base: LockedBase,
    python: LockedPython | None,
    digests: ProjectDigests,
) -> str:
    """Return the digest of what the Python packages are resolved from."""
    declared = list_python_packages(environment)
    names = sorted({strip_credentials(name) for item in declared for name in item.names})
    files = [sorted({item.requirements for item in declared}), sorted(digests.packages.items())]
    index = environment.pip_index
    where: list[str | bool] = []
    if index:
        where = [strip_credentials(index.url), strip_credentials(index.extra_url), index.trust]
    interpreter = [python.version, python.provider] if python else []
    parts = ["packages", names, files, where, base.libc, interpreter]
    # The order of options matters. Without any, the digest stays what older versions wrote.
    if any(name.startswith("-") for name in names):
        parts.append([strip_credentials(name) for item in declared for name in item.names])
    if projects := [item for item in declared if item.pyproject]:
        parts.append([(item.pyproject, item.groups, item.extras) for item in projects])
    if constraints := sorted({text for item in declared for text in item.constraints}):
        parts.append(["constraints", *constraints])
    if backends := sorted({item.torch_backend for item in declared if item.torch_backend}):
        parts.append(["torch_backend", *backends])
    # Without it, an index that lacks pip leaves it out.
    if any(
        requirement_name(name) == "pip"
        for item in environment.python_packages
        for name in item.names
    ):
        parts.append("pip is required")
    if digests.editable:
        parts.append(sorted(digests.editable.items()))
    if base.variant:
        parts.append(["variant", base.variant])
    return digest_of(parts)


def find_stale_table(
    environment: Environment, lock: FunctionLock, platform: Platform, digests: ProjectDigests
) -> str:
    """Return what in ``lock`` no longer matches, sections apart; an empty string if all does."""
    if lock.platform != str(platform):
        return "platform"
    if lock.base.inputs != digest_base_inputs(environment, platform):
        return "base"
    if needs_python(environment) != (lock.python is not None):
        return "python"
    if (lock.conda.inputs if lock.conda else "") != digest_conda_table(
        environment, lock.base, platform, digests
    ):
        return "conda packages"
    if lock.python and lock.python.inputs != digest_python_inputs(
        environment, lock.base, lock.conda
    ):
        return "python"
    system = lock.system or LockedSystem(inputs="")
    pinned = list_pinned_packages(lock.sections)
    if system.inputs != digest_system_inputs(environment, lock.base, lock.python, pinned):
        return "system packages"
    inputs = digest_package_inputs(environment, lock.base, lock.python, digests)
    if lock.packages_inputs != inputs:
        return "Python packages"
    return "" if has_build_requirements(lock) else "build requirements"


def has_build_requirements(lock: FunctionLock) -> bool:
    """Return whether the build requirements of all packages are locked; old locks lack them."""
    return all(
        package.build is not None for package in lock.packages if not package.file.endswith(".whl")
    )
