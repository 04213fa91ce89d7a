"""``config.*``: package sources, ownership, services and resources."""

from __future__ import annotations

import json
from typing import ClassVar

from msgspec.structs import replace

from danlu.environment.runtime_settings import JupyterSettings, RuntimeSettings
from danlu.environment.types import (
    AptSource,
    Declaration,
    ImageOwner,
    PipIndex,
    PythonPackages,
    RuntimeDeclaration,
)
from danlu.graph.image_config import ImageConfig
from danlu.lang.arg_types import FLAG, PORT_OR_ANY, TEXT, TEXTS, USER_ID, CallError, integer
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.checks import check_url
from danlu.util.urls import strip_credentials


class ImageEntrypoint(Declaration, frozen=True):
    """``config.entrypoint(args)``."""

    args: tuple[str, ...]

    def configure(self, config: ImageConfig) -> ImageConfig:
        return replace(config, entrypoint=self.args)


class ImageRepository(Declaration, frozen=True):
    """``config.repo(url, description)``: labels of the image, OCI's and the one that envd reads."""

    url: str
    description: str = ""

    def configure(self, config: ImageConfig) -> ImageConfig:
        url = strip_credentials(self.url)
        info = {"description": self.description, "url": url}
        labels = {
            **dict(config.labels),
            "ai.tensorchord.envd.repo": json.dumps(info, ensure_ascii=False),
            "org.opencontainers.image.source": url,
        }
        if self.description:
            labels["org.opencontainers.image.description"] = self.description
        return replace(config, labels=tuple(sorted(labels.items())))


class JupyterServer(Declaration, frozen=True):
    """``config.jupyter(token, port)``; ``port`` 0 means any. The token never enters the image."""

    needs_python: ClassVar[bool] = True

    start_function = "config.jupyter"

    token: str = ""
    port: int = 0

    def __repr__(self) -> str:
        return f"JupyterServer(port={self.port})"  # without the token

    def python_packages(self) -> tuple[PythonPackages, ...]:
        return (PythonPackages(names=("jupyter",), source="config.jupyter", span=self.span),)

    def configure_runtime(self, settings: RuntimeSettings) -> RuntimeSettings:
        return replace(settings, jupyter=JupyterSettings(self.token, self.port))


class GpuCount(RuntimeDeclaration, frozen=True):
    """``config.gpu(count)``."""

    start_function = "config.gpu"

    count: int

    def configure_runtime(self, settings: RuntimeSettings) -> RuntimeSettings:
        return replace(settings, gpus=self.count)


class SharedMemory(RuntimeDeclaration, frozen=True):
    """``config.shm_size(size)``, in megabytes."""

    start_function = "config.shm_size"

    megabytes: int

    def configure_runtime(self, settings: RuntimeSettings) -> RuntimeSettings:
        return replace(settings, shm_size=self.megabytes)


def _declare_apt_source(env: EnvironmentBuilder, call: BoundCall) -> None:
    env.declare_once("config.apt_source", AptSource(call["source"], span=call.span))


def _declare_pip_index(env: EnvironmentBuilder, call: BoundCall) -> None:
    for argument in ("url", "extra_url"):
        if call[argument] or argument == "url":
            check_url(call[argument], "config.pip_index", argument, ("http", "https", "file"))
    index = PipIndex(call["url"], call["extra_url"], call["trust"], span=call.span)
    env.declare_once("config.pip_index", index)


def _declare_owner(env: EnvironmentBuilder, call: BoundCall) -> None:
    env.declare_once("config.owner", ImageOwner(call["uid"], call["gid"], span=call.span))


def _declare_entrypoint(env: EnvironmentBuilder, call: BoundCall) -> None:
    if not call["args"]:
        raise CallError("config.entrypoint(): no program given", argument="args")
    entrypoint = ImageEntrypoint(call["args"], span=call.span)
    env.declare_once("config.entrypoint", entrypoint, setting="the entrypoint")


def _declare_repo(env: EnvironmentBuilder, call: BoundCall) -> None:
    if not call["url"].strip():
        raise CallError("config.repo(): empty url", argument="url")
    env.declare_once(
        "config.repo", ImageRepository(call["url"], call["description"], span=call.span)
    )


def _declare_jupyter(env: EnvironmentBuilder, call: BoundCall) -> None:
    server = JupyterServer(call["token"], call["port"], span=call.span)
    env.declare_once("config.jupyter", server)


def _declare_gpu(env: EnvironmentBuilder, call: BoundCall) -> None:
    env.declare_once("config.gpu", GpuCount(call["count"], span=call.span))


def _declare_shm_size(env: EnvironmentBuilder, call: BoundCall) -> None:
    env.declare_once("config.shm_size", SharedMemory(call["size"], span=call.span))


FUNCTIONS = (
    BuildFunction(
        "config.apt_source",
        "Write the image's `/etc/apt/sources.list`.",
        (Parameter("source", TEXT, "the file's text"),),
        declare=_declare_apt_source,
        unique=True,
    ),
    BuildFunction(
        "config.pip_index",
        "Use a Python package index, both to resolve and inside the environment.",
        (
            Parameter("url", TEXT, "the index's URL"),
            Parameter("extra_url", TEXT, "URL of a second index", ""),
            Parameter("trust", FLAG, "do not check its certificate", False),
        ),
        declare=_declare_pip_index,
        unique=True,
        example='config.pip_index(url="https://pypi.example.org/simple")',
    ),
    BuildFunction(
        "config.owner",
        "Set the owner of the environment's files, and the user it runs as: `envd`, with the home "
        "directory `/home/envd`. The user owns copied files and their directories, everything in "
        "the home directory, and the directories of Python and conda packages, so that `pip "
        "install` works. Files of packages, and directories of the distribution, stay root's.",
        (Parameter("uid", USER_ID, "user id"), Parameter("gid", USER_ID, "group id")),
        declare=_declare_owner,
        versions=("v1",),
        unique=True,
        example="config.owner(1000, 1000)",
    ),
    BuildFunction(
        "config.entrypoint",
        "Set the image's entrypoint.",
        (Parameter("args", TEXTS, "the program and its arguments"),),
        declare=_declare_entrypoint,
        unique=True,
        example='config.entrypoint(["python", "main.py"])',
    ),
    BuildFunction(
        "config.jupyter",
        "Serve Jupyter while the environment runs.",
        (
            Parameter("token", TEXT, "the access token; it never enters the image", ""),
            Parameter("port", PORT_OR_ANY, "port on the host, 0 for any", 0),
        ),
        declare=_declare_jupyter,
        unique=True,
        example="config.jupyter(port=8888)",
    ),
    BuildFunction(
        "config.gpu",
        "Set the number of GPUs that the environment gets when it starts.",
        (Parameter("count", integer(0, 1024), "number of GPUs"),),
        declare=_declare_gpu,
        runtime_only=True,
        unique=True,
    ),
    BuildFunction(
        "config.shm_size",
        "Set the size of shared memory when the environment starts.",
        (Parameter("size", integer(1, 1 << 30), "size in MiB"),),
        declare=_declare_shm_size,
        runtime_only=True,
        unique=True,
    ),
    BuildFunction(
        "config.repo",
        "Set the repository that the environment belongs to, as labels of the image.",
        (
            Parameter("url", TEXT, "the repository's address"),
            Parameter("description", TEXT, "a one-line description", ""),
        ),
        declare=_declare_repo,
        unique=True,
        example='config.repo("https://github.com/team/project")',
    ),
)
