"""Write a ``devcontainer.json`` for an environment, for teams that use Codespaces or VS Code."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.environment.image_layout import PROJECT, USER_NAME
from danlu.environment.runtime_settings import DATA_SCHEME
from danlu.environment.types import ImageOwner
from danlu.errors import OutsideError, UsageError
from danlu.lang.functions.runtime import EnvironmentVariables
from danlu.lang.functions.vscode import VscodeExtensions
from danlu.util.files import write_atomic

if TYPE_CHECKING:
    from danlu.environment.runtime_settings import RuntimeMount, RuntimeSettings
    from danlu.environment.types import Environment

_FILE = ".devcontainer/devcontainer.json"

#: Where ``danlu build -o type=dockerfile`` writes, relative to the project and to the file.
DOCKERFILE_DIRECTORY = ".devcontainer/image"


class DevcontainerExport(msgspec.Struct, frozen=True):
    """A ``devcontainer.json``; ``skipped`` lists what it cannot express, with the reason."""

    values: dict[str, object]
    skipped: tuple[str, ...] = ()

    def render_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(self.values, indent=2, ensure_ascii=False) + "\n"


def find_export_path(directory: Path, *, force: bool) -> Path:
    """Return the file to write; raises :class:`UsageError` if it exists, unless ``force``."""
    path = directory / _FILE
    if path.exists() and not force:
        raise UsageError(f"{_FILE} already exists", hint="use --force to overwrite it")
    return path


def write_export(path: Path, export: DevcontainerExport) -> None:
    """Write the file and its directory; raises :class:`OutsideError` if they cannot be written."""
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, export.render_json().encode())
    except OSError as error:
        raise OutsideError(f"cannot write {path}: {error.strerror}") from error


def describe_devcontainer(environment: Environment, name: str, image: str) -> DevcontainerExport:
    """Return the ``devcontainer.json`` of ``environment``.

    ``image`` is the reference that the image was pushed under; without it the file names the
    Dockerfile in ``DOCKERFILE_DIRECTORY``.
    """
    settings = environment.runtime_settings()
    values: dict[str, object] = {"name": name}
    if image:
        values["image"] = image
    else:
        values["build"] = {"dockerfile": "image/Dockerfile", "context": "image"}
    values["workspaceMount"] = f"source=${{localWorkspaceFolder}},target={PROJECT},type=bind"
    values["workspaceFolder"] = PROJECT
    owned = environment.find(ImageOwner) is not None
    values["remoteUser"] = USER_NAME if owned else "root"
    variables = dict(
        pair for item in environment.find_all(EnvironmentVariables) for pair in item.values
    )
    if variables:
        values["containerEnv"] = variables
    values |= _describe_ports(settings)
    home = f"/home/{USER_NAME}" if owned else "/root"
    if settings.mounts:
        values["mounts"] = [_format_mount(mount, home) for mount in settings.mounts]
    if settings.init:
        commands = [f"({command})" for command in settings.init]
        one = len(commands) == 1
        values["postStartCommand"] = settings.init[0] if one else " && ".join(commands)
    names = [name for item in environment.find_all(VscodeExtensions) for name in item.names]
    extensions = [name for name in names if not name.endswith(".vsix")]
    if extensions:
        listed = [_format_extension(name) for name in extensions]
        values["customizations"] = {"vscode": {"extensions": listed}}
    if settings.gpus:
        values["hostRequirements"] = {"gpu": True}
    if settings.shm_size is not None:
        values["runArgs"] = [f"--shm-size={settings.shm_size}m"]
    return DevcontainerExport(values, tuple(_list_skipped(settings, names)))


def _describe_ports(settings: RuntimeSettings) -> dict[str, object]:
    if not settings.ports:
        return {}
    described: dict[str, object] = {"forwardPorts": [port.port for port in settings.ports]}
    labels = {str(port.port): {"label": port.service} for port in settings.ports if port.service}
    return {**described, "portsAttributes": labels} if labels else described


def _format_mount(mount: RuntimeMount, home: str) -> str:
    target = home + mount.target[1:] if mount.target.startswith("~/") else mount.target
    if mount.source.startswith(DATA_SCHEME):
        return f"source={mount.source.removeprefix(DATA_SCHEME)},target={target},type=volume"
    source = mount.source
    if source.startswith("~"):
        source = "${localEnv:HOME}" + source[1:]
    elif not source.startswith("/"):
        source = "${localWorkspaceFolder}" + ("" if source == "." else f"/{source}")
    return f"source={source},target={target},type=bind"


def _format_extension(name: str) -> str:
    """Return ``publisher.name@version`` for envd's ``publisher.name-version``."""
    publisher, dot, rest = name.partition(".")
    title, dash, version = rest.rpartition("-")
    if dash and version[:1].isdigit() and "." in version:
        return f"{publisher}{dot}{title}@{version}"
    return name


def _list_skipped(settings: RuntimeSettings, extensions: list[str]) -> Iterator[str]:
    for program in settings.daemons:
        yield f"runtime.daemon: {shlex.join(program)} (a dev container has no services)"
    for name, _ in settings.commands:
        yield f"runtime.command: {name} (a dev container has no named commands)"
    for port in settings.ports:
        if port.host_port not in (0, port.port):
            yield f"runtime.expose: port {port.host_port} of the host (the editor chooses it)"
    if settings.jupyter is not None:
        yield "config.jupyter (editors start Jupyter themselves)"
    for name in extensions:
        if name.endswith(".vsix"):
            yield f"install.vscode_extensions: {name} (only names of extensions can be listed)"
