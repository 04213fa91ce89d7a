"""Prepare, remove and rename environments that run in Docker or Podman."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

import anyio

from danlu.engine.apt_sources import mount_apt_sources
from danlu.engine.docker.changes import list_container_changes, open_container_changes
from danlu.engine.docker.command import DockerCommand
from danlu.engine.docker.daemon_location import require_local_daemon
from danlu.engine.docker.images import copy_image, engine_image_name
from danlu.engine.docker.settings import (
    DockerSettings,
    HostAccount,
    changes_image,
    container_name,
    detect_network,
    read_settings,
    write_settings,
)
from danlu.engine.engine_commands import EngineCommands, EngineHost
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.environment_image import find_environment_image
from danlu.engine.layer_changes import WriteChanges
from danlu.engine.vscode_servers import find_server_mount
from danlu.errors import OutsideError
from danlu.graph.image_config import parse_image_config
from danlu.sandbox import userns
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.prepare import check_mounts, expand_home
from danlu.sandbox.types import Mount
from danlu.sandbox.users import ResolvedUser, find_user
from danlu.store import Store


@dataclass(frozen=True)
class ImageFacts:
    """What an image says about the user of its programs, and what it needs from this machine."""

    user_text: str
    user: ResolvedUser
    variables: Mapping[str, str]
    mounts: tuple[Mount, ...]
    network: str
    trusted: bool


class DockerCommands(EngineCommands):
    """Images, and the containers of environments that do not run."""

    def __init__(self, name: str) -> None:
        self._command = DockerCommand(name)

    def prepare_container(self, environment: EnvironmentDirectory, host: EngineHost) -> None:
        """Copy the environment's image to its engine, and write how the container is created."""
        spec = environment.read_spec()
        image = self._copy_image(spec.image, host)
        facts = userns.run_inside(host.paths, lambda: _read_facts(environment, spec, host))
        user, account, options = choose_user(
            self._command.name,
            facts.user_text,
            facts.user,
            maps_users=_maps_users(self._command),
        )
        mounts = [*expand_home(facts.mounts, facts.user.home if account is None else account.home)]
        servers = find_server_mount(host.paths.vscode_servers)
        if servers is not None:
            mounts.append(servers)
        write_settings(
            environment,
            DockerSettings(
                image,
                user,
                dict(facts.variables),
                tuple(sorted(mounts, key=lambda mount: mount.target.split("/"))),
                account,
                options,
                facts.network,
                facts.trusted,
                _list_earlier_targets(environment),
            ),
        )

    def deliver_image(self, digest: str, host: EngineHost) -> None:
        """See :class:`EngineCommands`."""
        self._copy_image(digest, host)

    def _copy_image(self, digest: str, host: EngineHost) -> str:
        require_local_daemon(self._command, os.environ)
        return copy_image(self._command, digest, host.paths, host.progress)

    def remove_container(self, environment: EnvironmentDirectory, keep_image: str = "") -> None:
        """Remove the environment's container and, if no other uses it, its image.

        An image with the digest ``keep_image`` stays, for the environment that follows.
        """
        if not environment.was_started():
            return
        image, command = environment.read_spec().image, self._command
        name = container_name(environment)
        if self._has_container(name):
            # Also the anonymous volumes that the image declares, which would stay for ever.
            command.run("rm", "--force", "--volumes", name)
        images = (changes_image(name), *([engine_image_name(image)] * (image != keep_image)))
        for unused in images:
            with suppress(OutsideError):
                command.run("rmi", unused)

    def rename_container(self, old: EnvironmentDirectory, new: EnvironmentDirectory) -> None:
        """Give a stopped environment's container the name of a renamed environment."""
        command = self._command
        before, after = container_name(old), container_name(new)
        with suppress(OutsideError):
            command.run("tag", changes_image(before), changes_image(after))
            command.run("rmi", changes_image(before))
        if self._has_container(before):
            command.run("rename", before, after)

    def _has_container(self, name: str) -> bool:
        # The filter is a regular expression that also matches parts of names.
        words = ("container", "ls", "--all", "--quiet", "--filter", f"name=^{name}$")
        return bool(self._command.run(*words).strip())

    def list_changes(self, environment: EnvironmentDirectory) -> Iterable[str]:
        """See :class:`EngineCommands`."""
        return list_container_changes(self._command, environment)

    def open_changes(
        self, environment: EnvironmentDirectory
    ) -> AbstractContextManager[WriteChanges]:
        """See :class:`EngineCommands`."""
        return open_container_changes(self._command, environment)


def _read_facts(
    environment: EnvironmentDirectory, spec: EnvironmentSpec, host: EngineHost
) -> ImageFacts:
    """Read the image's users, and write configuration files for network access."""
    with Store.open(host.paths.store) as store:
        image, layers = find_environment_image(store, spec)
        network, digest = detect_network(environment, trusted=image.is_built_here)
        config = parse_image_config(image.config)
        view = LayerView([layer.tree for layer in layers])
        defaults = [
            mount for mount in network.defaults if view.entry(view.resolve(mount.target)) is None
        ]
        given = [Mount(item.target, item.source, readonly=item.readonly) for item in spec.mounts]
        check_mounts(given)
        apt = anyio.run(mount_apt_sources, view, host.config, environment.directory / "network")
        text = spec.user or config.user
        own = dict(config.environment)
        return ImageFacts(
            text,
            find_user(view, text),
            {name: value for name, value in network.environment.items() if name not in own},
            (*network.mounts, *defaults, *apt, *given),
            digest,
            image.is_built_here,
        )


def _list_earlier_targets(environment: EnvironmentDirectory) -> tuple[str, ...]:
    """Return where the environment has had mounts, whose mount points stay in its files."""
    try:
        earlier = read_settings(environment)
    except FileNotFoundError:
        return ()
    targets = {*earlier.earlier_targets, *(mount.target for mount in earlier.mounts)}
    return tuple(sorted(targets))


def _maps_users(command: DockerCommand) -> bool:
    """Return whether root in a container is the user of this machine (rootless)."""
    if command.is_podman:
        return os.getuid() != 0
    return "name=rootless" in command.run("info", "-f", "{{json .SecurityOptions}}")


def choose_user(
    engine: str, text: str, user: ResolvedUser, *, maps_users: bool
) -> tuple[str, HostAccount | None, tuple[str, ...]]:
    """Return the user of programs, the account to add for it, and options of ``create``.

    Files that the programs write to the project belong to the user of this machine. ``text`` is
    the image's user, ``user`` what it is there.
    """
    uid, gid = os.getuid(), os.getgid()
    name = text or "0:0"
    if uid == 0 or (maps_users and user.uid == 0):
        return name, None, ()
    if maps_users:
        mapping = f"keep-id:uid={user.uid},gid={user.gid}"
        return name, None, ("--userns", mapping) if engine == "podman" else ()
    account_name = text.partition(":")[0]
    if user.uid == 0 or not account_name or account_name.isdigit():
        account_name = pwd.getpwuid(uid).pw_name
        account = HostAccount(account_name, uid, gid, f"/home/{account_name}")
    else:
        account = HostAccount(account_name, uid, gid, user.home)
    return f"{uid}:{gid}", account, ()
