"""How an environment's container is created in Docker or Podman."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from danlu.engine.container_scripts import HOLD_SCRIPT
from danlu.engine.docker.command import render_variables
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.gpu.selection import parse_gpus
from danlu.errors import UsageError
from danlu.sandbox.network_env import NetworkEnvironment, detect_network_environment
from danlu.sandbox.types import PROJECT_DIRECTORY, Mount
from danlu.util.files import write_atomic
from danlu.util.json_codec import decode, encode

LABEL = "dev.danlu.environment"
SPEC_LABEL = "dev.danlu.spec"
_SETTINGS_FILE = "docker.json"


class HostAccount(msgspec.Struct, frozen=True):
    """The user of this machine as a user of the container, so that new files belong to them.

    ``name`` is the user of the image whose ids are replaced, or a new user's.
    """

    name: str
    uid: int
    gid: int
    home: str


class DockerSettings(msgspec.Struct, frozen=True):
    """What was found out about the image and this machine before the container is created.

    Attributes:
        image: The image's name in the engine.
        user: The user of programs, as ``--user`` takes it.
        variables: Variables of all programs in addition to the image's.
        mounts: Files of this machine for network access, and what the user mounts.
        account: The user to add or change at start; None if the engine maps users itself.
        options: More options of ``create``.
        network: Digest of what this machine gave for network access (:func:`detect_network`).
        trusted: Whether the image was built here.
        earlier_targets: Where earlier settings of the environment mounted something.
    """

    image: str
    user: str
    variables: dict[str, str]
    mounts: tuple[Mount, ...] = ()
    account: HostAccount | None = None
    options: tuple[str, ...] = ()
    network: str = ""
    trusted: bool = False
    earlier_targets: tuple[str, ...] = ()


def detect_network(
    environment: EnvironmentDirectory, *, trusted: bool
) -> tuple[NetworkEnvironment, str]:
    """Return what this machine gives the container for network access, and its digest.

    Configuration files are written to the environment's directory.
    """
    work = environment.directory / "network"
    work.mkdir(exist_ok=True)
    network = detect_network_environment(work, trusted=trusted)
    return network, hashlib.sha256(encode(network)).hexdigest()


def read_settings(environment: EnvironmentDirectory) -> DockerSettings:
    """Read the settings that the command which starts the supervisor has written."""
    return decode((environment.directory / _SETTINGS_FILE).read_bytes(), DockerSettings)


def write_settings(environment: EnvironmentDirectory, settings: DockerSettings) -> None:
    """Write the settings; readable by their owner only."""
    write_atomic(environment.directory / _SETTINGS_FILE, encode(settings), mode=0o600)


def container_name(environment: EnvironmentDirectory) -> str:
    """Return the name of an environment's container, unique among the users of the engine."""
    place = hashlib.sha256(str(environment.directory).encode()).hexdigest()[:8]
    return f"danlu-{environment.name}-{place}"


def changes_image(container: str) -> str:
    """Return the name of the image with the files of a container that was created again."""
    return f"danlu.local/changes:{container}"


def render_create(
    name: str, spec: EnvironmentSpec, settings: DockerSettings, image: str = ""
) -> tuple[list[str], Mapping[str, str]]:
    """Return the arguments of ``create`` and the variables to pass along.

    ``image`` replaces the settings' image. The first process only waits until its input ends,
    which it does when the supervisor ends. Raises :class:`UsageError` for a mount that the
    engines' syntax cannot express.
    """
    variables = {**settings.variables, "DANLU_ENVIRONMENT": spec.name, **spec.environment}
    environment, passed = render_variables(variables)
    args = [
        "create",
        # The image is the one that danlu copied to the engine, not a registry's of the same name.
        "--pull",
        "never",
        "--interactive",
        "--name",
        name,
        "--label",
        f"{LABEL}={spec.name}",
    ]
    args += ["--network", "host", "--user", "0:0", "--entrypoint", "/bin/sh", *environment]
    if spec.project:
        args += ["--workdir", PROJECT_DIRECTORY]
        args += _render_mount(Mount(PROJECT_DIRECTORY, Path(spec.project)))
    for mount in settings.mounts:
        args += _render_mount(mount)
    if spec.limits.cpu is not None:
        args += ["--cpus", f"{spec.limits.cpu:g}"]
    if spec.limits.memory is not None:
        args += ["--memory", str(spec.limits.memory)]
    if spec.shm_size:
        args += ["--shm-size", str(spec.shm_size)]
    account = settings.account
    words = () if account is None else (account.name, account.uid, account.gid, account.home)
    args += [*settings.options, image or settings.image]
    return [*args, "-c", HOLD_SCRIPT, "danlu", *map(str, words)], passed


def render_gpus(engine: str, gpus: str) -> tuple[str, ...]:
    """Return the options of ``create`` for a value of ``--gpus``.

    Both engines need NVIDIA's toolkit: Podman, and Docker without a runtime for it, find the
    devices by its CDI spec.
    """
    selection = parse_gpus(gpus)
    if not selection:
        return ()
    if engine == "podman":
        names = selection.names or tuple(map(str, range(selection.count))) or ("all",)
        return tuple(word for name in names for word in ("--device", f"nvidia.com/gpu={name}"))
    if selection.names:
        # The quotes are for the parser of the option, in which a comma separates fields.
        return ("--gpus", f'"device={",".join(selection.names)}"')
    return ("--gpus", "all" if selection.every else str(selection.count))


def _render_mount(mount: Mount) -> list[str]:
    source, target = str(mount.source), mount.target
    # The value of --mount is a line of CSV.
    if any(char in path for path in (source, target) for char in ',"\n'):
        raise UsageError(
            f"cannot mount {source!r} at {target!r}: a path contains a comma or a quote",
            hint="the embedded engine can: danlu up --on local",
        )
    options = f"type=bind,source={source},target={target}"
    return ["--mount", f"{options},readonly" if mount.readonly else options]
