"""``install.python``, ``install.uv``, and packages of the distribution and of Python."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement

from danlu.environment.types import PythonPackages, SystemPackages, UvTool
from danlu.lang.arg_types import TEXT, TEXTS, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.checks import check_python_version, declare_python, strip_names
from danlu.util.suggest import did_you_mean
from danlu.util.urls import mask_credentials

_GROUP = re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?")
#: The directories of https://download.pytorch.org/whl/.
_TORCH_BACKEND = re.compile(r"cpu|cu\d{2,3}|rocm\d+(\.\d+)+|xpu")
_OPTION = re.compile(r"\s+(?=-)")
_OPTION_NAME = re.compile(r"(--[a-z][a-z-]*|-[A-Za-z])(?:\s*=\s*|\s+|(?=[^\s-])|$)")

#: pip's options that mean the same here as on a line of a requirements file.
_VALUE_OPTIONS = frozenset(
    {
        *("--index-url", "-i", "--extra-index-url", "--find-links", "-f", "--trusted-host"),
        *("--no-binary", "--only-binary", "--editable", "-e"),
    }
)
_FLAG_OPTIONS = frozenset({"--no-index", "--pre", "--prefer-binary", "--require-hashes"})

#: pip's options that cannot be used here, and what to do instead.
_REFUSED_OPTIONS = {
    "--constraint": "use constraints=, or put it into a requirements file: requirements=",
    "--no-cache-dir": "remove it: no package cache ends up in an image",
    "--requirement": "use requirements=",
    "--upgrade": "remove it: `danlu lock --upgrade` upgrades packages",
    "-U": "remove it: `danlu lock --upgrade` upgrades packages",
    "-c": "use constraints=, or put it into a requirements file: requirements=",
    "-r": "use requirements=",
}


def _declare_python(env: EnvironmentBuilder, call: BoundCall) -> None:
    declare_python(env, call["version"], call.span, function="install.python", argument="version")


def _declare_uv(env: EnvironmentBuilder, call: BoundCall) -> None:
    check_python_version(call["python_version"], "install.uv", "python_version")
    env.declare_once("install.uv", UvTool(call["python_version"], span=call.span))
    if call.given.get("python_version"):
        env.request_python("install.uv", call["python_version"], call.span)


def _declare_apt_packages(env: EnvironmentBuilder, call: BoundCall) -> None:
    names = strip_names(call["name"], "install.apt_packages")
    for name in names:
        if re.search(r"\s", name) or name.startswith("-"):
            raise CallError(
                f"install.apt_packages(): invalid package name '{name}'",
                hint="write each package as a separate element of the list",
                argument="name",
            )
    if names:
        env.declare(SystemPackages(names, span=call.span))


def _declare_python_packages(env: EnvironmentBuilder, call: BoundCall) -> None:
    names = _parse_names(strip_names(call["name"], "install.python_packages"))
    if call["requirements"].endswith((".yml", ".yaml")):
        raise CallError(
            f"install.python_packages(): {call['requirements']} is not a requirements file",
            hint=f'use install.conda_packages(env_file="{call["requirements"]}")',
            argument="requirements",
        )
    wheels = call["local_wheels"]
    for wheel in wheels:
        if not wheel.endswith(".whl"):
            raise CallError(
                f"install.python_packages(): '{wheel}' is not a wheel (*.whl)",
                argument="local_wheels",
            )
    pyproject, groups, extras = call["pyproject"], call["groups"], call["extras"]
    _check_pyproject(pyproject, groups, extras)
    if names or call["requirements"] or wheels or pyproject:
        env.declare(
            PythonPackages(
                tuple(names),
                call["requirements"],
                wheels,
                pyproject=pyproject,
                groups=groups,
                extras=extras,
                constraints=_parse_constraints(call["constraints"]),
                torch_backend=_check_torch_backend(call["torch_backend"]),
                span=call.span,
            )
        )


def _check_torch_backend(text: str) -> str:
    if text and not _TORCH_BACKEND.fullmatch(text):
        raise CallError(
            f"install.python_packages(): invalid torch_backend '{text}'",
            hint="use cpu, cu126 or another CUDA, rocm6.4 or another ROCm, or xpu",
            argument="torch_backend",
        )
    return text


def _parse_constraints(texts: tuple[str, ...]) -> tuple[str, ...]:
    constraints = strip_names(texts, "install.python_packages")
    for text in constraints:
        try:
            is_version_limit = Requirement(text).url is None
        except InvalidRequirement:
            is_version_limit = False
        if not is_version_limit:
            raise CallError(
                f"install.python_packages(): invalid constraint '{mask_credentials(text)}'",
                hint='a constraint is a name with versions: "numpy<2"',
                argument="constraints",
            )
    return tuple(constraints)


def _check_pyproject(pyproject: str, groups: tuple[str, ...], extras: tuple[str, ...]) -> None:
    for argument, names in (("groups", groups), ("extras", extras)):
        if names and not pyproject:
            raise CallError(
                f"install.python_packages(): {argument} without pyproject",
                hint='add pyproject="pyproject.toml"',
                argument=argument,
            )
        for name in names:
            if not _GROUP.fullmatch(name):
                raise CallError(
                    f"install.python_packages(): invalid name '{name}'", argument=argument
                )
    if pyproject and not pyproject.endswith(".toml"):
        raise CallError(
            f"install.python_packages(): '{pyproject}' is not a pyproject.toml",
            hint="use requirements= for a requirements file",
            argument="pyproject",
        )


def _parse_names(names: Iterable[str]) -> list[str]:
    """Return requirements and options, each as a line of a requirements file.

    As in envd's files, which pass the list to pip, an option may follow a requirement
    (``torch --index-url URL``), and its value may be the next element of the list.
    """
    lines: list[str] = []
    option = ""
    parts = [part for name in names for part in _split_options(name)]
    for part in parts:
        if option and part.startswith("-"):
            break
        if option:
            value, *more = part.split(None, 1)
            lines += [f"{option} {value}", *more]
            option = ""
        elif part.startswith("-"):
            option, *complete = _parse_option(part)
            lines += complete
        else:
            lines.append(part)
    if option:
        raise _option_error(f"the option {option} needs a value")
    return lines


def _split_options(name: str) -> list[str]:
    """Split ``torch --pre`` before each option, except for a requirement's own (``--hash``)."""
    parts = _OPTION.split(name)
    return [name] if any(part.startswith("--hash") for part in parts) else parts


def _parse_option(text: str) -> list[str]:
    """Return the option in ``text`` if its value is missing, else an empty string and lines."""
    match = _OPTION_NAME.match(text)
    option = match[1] if match else text.split()[0]
    value = text[match.end() :].strip() if match else ""
    if option in _FLAG_OPTIONS:
        return ["", option, *([value] if value else [])]
    if option not in _VALUE_OPTIONS:
        known = _VALUE_OPTIONS | _FLAG_OPTIONS
        raise _option_error(
            f"unsupported option {mask_credentials(option)}",
            hint=_REFUSED_OPTIONS.get(option) or did_you_mean(option, known),
        )
    if not value:
        return [option]
    # A path may contain spaces; after anything else, the next word is another requirement.
    value, *more = [value] if option in ("-e", "--editable") else value.split(None, 1)
    return ["", f"{option} {value}", *more]


def _option_error(problem: str, hint: str = "") -> CallError:
    return CallError(f"install.python_packages(): {problem}", hint=hint, argument="name")


FUNCTIONS = (
    BuildFunction(
        "install.python",
        "Install Python.",
        (
            Parameter(
                "version",
                TEXT,
                "`3.11` or `3.11.2`; empty for the distribution's own Python. A version that the "
                "base does not have is a standalone build, as uv installs it",
                "3.11",
            ),
        ),
        declare=_declare_python,
        versions=("v1",),
        unique=True,
        example='install.python("3.11")',
    ),
    BuildFunction(
        "install.uv",
        "Install uv, and a Python for it.",
        (Parameter("python_version", TEXT, "the version of Python", "3.11"),),
        declare=_declare_uv,
        versions=("v1",),
        unique=True,
        example="install.uv()",
    ),
    BuildFunction(
        "install.apt_packages",
        "Install packages of the distribution. Multiple calls are combined.",
        (Parameter("name", TEXTS, "package names; a version pins one: `git=1:2.39*`", ()),),
        declare=_declare_apt_packages,
        example='install.apt_packages(["git", "ffmpeg"])',
    ),
    BuildFunction(
        "install.python_packages",
        "Install Python packages. Multiple calls are combined and resolved together.",
        (
            Parameter(
                "name",
                TEXTS,
                "requirements: `numpy`, `torch==2.4.*`, `pkg @ git+https://…`; and options as in "
                "requirements files: `--index-url`, `--extra-index-url`, `--find-links`, "
                "`--no-index`, `--trusted-host`, `--pre`, `--no-binary`, `--only-binary`, `-e`",
                (),
            ),
            Parameter("requirements", TEXT, "path of a requirements file in the project", ""),
            Parameter("local_wheels", TEXTS, "paths of wheel files in the project", ()),
            Parameter(
                "pyproject", TEXT, "path of a `pyproject.toml`: install its dependencies", ""
            ),
            Parameter("groups", TEXTS, "dependency groups of the `pyproject.toml`, too", ()),
            Parameter("extras", TEXTS, "extras of the `pyproject.toml`, too", ()),
            Parameter(
                "constraints",
                TEXTS,
                "versions of packages that others need, as in `pip install -c`: `urllib3<2`",
                (),
            ),
            Parameter(
                "torch_backend",
                TEXT,
                "take PyTorch's packages (`torch`, `torchvision` …), if they are required by name, "
                "from its index for this hardware: `cpu`, `cu126`, `rocm6.4`, `xpu`",
                "",
            ),
        ),
        declare=_declare_python_packages,
        example='install.python_packages(["numpy", "torch"], requirements="requirements.txt")',
    ),
)
