"""``install.conda``, ``install.conda_packages``, ``install.pixi`` and ``config.conda_channel``."""

from __future__ import annotations

import json

from danlu.environment.conda import PIXI_HINT, CondaChannels, CondaEnvironment, CondaPackages
from danlu.environment.types import Declaration, PythonPackages
from danlu.graph.ops import FileEntry
from danlu.lang.arg_types import FLAG, TEXT, TEXTS, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.checks import check_url, strip_names
from danlu.util.urls import strip_credentials

#: What envd writes: everything from prefix.dev but the label channels, which it does not mirror.
_PIXI_MIRRORS = """\
[mirrors]
"https://conda.anaconda.org" = ["https://prefix.dev/"]
"https://conda.anaconda.org/conda-forge/label" = ["https://conda.anaconda.org/conda-forge/label"]
"""


class PixiConfig(Declaration, frozen=True):
    """``install.pixi(use_pixi_mirror, pypi_index)``: the configuration of pixi in the image."""

    use_mirror: bool = False
    pypi_index: str = ""

    def config_files(self) -> tuple[FileEntry, ...]:
        parts = [_PIXI_MIRRORS] if self.use_mirror else []
        if self.pypi_index:
            index = json.dumps(strip_credentials(self.pypi_index))
            parts.append(f"[pypi-config]\nindex-url = {index}\n")
        return (FileEntry("/etc/pixi/config.toml", content="\n".join(parts)),) if parts else ()


def _declare_conda(env: EnvironmentBuilder, call: BoundCall) -> None:
    env.declare_once("install.conda", CondaEnvironment(span=call.span))


def _declare_conda_packages(env: EnvironmentBuilder, call: BoundCall) -> None:
    names, env_file = strip_names(call["name"], "install.conda_packages"), call["env_file"]
    if env_file and (names or call["channel"]):
        raise CallError(
            "install.conda_packages(): env_file cannot be combined with name or channel",
            hint="give the environment file, or names and channels",
            argument="env_file",
        )
    if env_file and not env_file.endswith((".yml", ".yaml")):
        is_pixi = env_file.rpartition("/")[2] == "pixi.toml"
        raise CallError(
            f"install.conda_packages(): {env_file} is not a YAML file",
            hint=PIXI_HINT if is_pixi else "name the file environment.yml",
            argument="env_file",
        )
    for name in names:
        if name.startswith("-"):
            raise CallError(
                f"install.conda_packages(): '{name}' is an option, not a package",
                hint='give channels as channel=["conda-forge"]',
                argument="name",
            )
    channels = tuple(channel.strip() for channel in call["channel"])
    if "" in channels:
        raise CallError("install.conda_packages(): empty channel", argument="channel")
    if names or env_file:
        env.declare(CondaPackages(names, channels, env_file, span=call.span))
    if env_file:
        # Its `pip:` section, as a requirements file: resolved with all other Python packages.
        env.declare(PythonPackages(requirements=env_file, span=call.span))


def _declare_pixi(env: EnvironmentBuilder, call: BoundCall) -> None:
    index = call["pypi_index"]
    if index:
        check_url(index, "install.pixi", "pypi_index", ("http", "https", "file"))
    config = PixiConfig(call["use_pixi_mirror"], index, span=call.span)
    if env.find(PixiConfig) is None:
        env.declare(CondaPackages(("pixi",), source="install.pixi", span=call.span))
    env.declare_once("install.pixi", config)


def _declare_channel(env: EnvironmentBuilder, call: BoundCall) -> None:
    env.declare_once("config.conda_channel", CondaChannels(call["channel"], span=call.span))
    if call["use_mamba"]:
        _declare_conda(env, call)


FUNCTIONS = (
    BuildFunction(
        "install.conda",
        "Use conda's Python as the environment's Python, from `conda-forge` unless channels are "
        "configured. "
        "Python packages are installed over it. danlu solves and installs by itself; add the "
        'program with `install.conda_packages(["conda"])` if you want to use it.',
        (Parameter("use_mamba", FLAG, "accepted for envd: danlu's own solver is as fast", False),),
        declare=_declare_conda,
        versions=("v1",),
        unique=True,
        example="install.conda()",
    ),
    BuildFunction(
        "install.conda_packages",
        "Install conda packages, by name or from an environment file. Multiple calls are combined "
        "and resolved together.",
        (
            Parameter(
                "name",
                TEXTS,
                "packages as in `conda install`: `numpy=1.26`, `conda-forge::gcc`",
                (),
            ),
            Parameter(
                "channel",
                TEXTS,
                "channels to use before the configured ones: names, URLs, or directories "
                "(`./channel`)",
                (),
            ),
            Parameter("env_file", TEXT, "path of an `environment.yml` in the project", ""),
        ),
        declare=_declare_conda_packages,
        example='install.conda_packages(["gcc"], channel=["conda-forge"])',
    ),
    BuildFunction(
        "install.pixi",
        "Install pixi. Does not change the environment's Python.",
        (
            Parameter("use_pixi_mirror", FLAG, "let pixi use prefix.dev in the environment", False),
            Parameter("pypi_index", TEXT, "URL of pixi's Python package index", ""),
        ),
        declare=_declare_pixi,
        versions=("v1",),
        unique=True,
        example="install.pixi()",
    ),
    BuildFunction(
        "config.conda_channel",
        "Configure conda's channels, to resolve with and in the image.",
        (
            Parameter("channel", TEXT, "the text of a `.condarc`"),
            Parameter("use_mamba", FLAG, "language v0: `install.conda(use_mamba=True)`", False),
        ),
        declare=_declare_channel,
        unique=True,
        example='config.conda_channel("channels: [conda-forge]")',
    ),
)
