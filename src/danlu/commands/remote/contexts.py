"""Contexts: named places where commands run, and the current one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import msgspec

from danlu.errors import UsageError
from danlu.util.config import EngineName
from danlu.util.danlu_program import CONTEXT_VARIABLE, DEFAULT_CONTEXT
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock
from danlu.util.paths import Paths
from danlu.util.suggest import suggest_name

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
# Neither may begin with a dash, because both become arguments of ssh.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")
#: As in BuildKit's ``BUILDKIT_HOST``.
CONTAINER_SCHEME = "docker-container://"
_CONTAINER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place where commands run.

    ``engine`` is the name of an engine of this machine, ``ssh://[USER@]HOST[:PORT]``, or
    ``docker-container://NAME``. ``image`` and ``mounts`` are the container's: its image and the
    directories that it shares with this machine.
    """

    engine: str
    image: str = ""
    mounts: tuple[str, ...] = ()

    @property
    def is_remote(self) -> bool:
        """Whether commands run on another machine, which may be a container."""
        return self.engine.startswith(("ssh://", CONTAINER_SCHEME))

    @property
    def container(self) -> str:
        """The name of the container in which commands run; empty for none."""
        return self.engine.removeprefix(CONTAINER_SCHEME) if self.is_container else ""

    @property
    def is_container(self) -> bool:
        """Whether commands run in a container of Docker."""
        return self.engine.startswith(CONTAINER_SCHEME)


class SshAddress(msgspec.Struct, frozen=True):
    """A host of ssh; ``user`` and ``port`` are empty for what ssh's configuration says."""

    host: str
    user: str = ""
    port: str = ""


class ContextFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``contexts.json``."""

    current: str = DEFAULT_CONTEXT
    contexts: dict[str, Context] = {}


def parse_ssh_url(url: str) -> SshAddress:
    """Parse ``ssh://[USER@]HOST[:PORT]``; raise :class:`UsageError` if it is invalid."""
    hint = "use ssh://USER@HOST or ssh://HOST; other options belong in ~/.ssh/config"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"invalid address {url!r}: {error}", hint=hint) from error
    host, user = parts.hostname or "", parts.username or ""
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.password
    if parts.scheme != "ssh" or extra or not _HOST.fullmatch(host):
        raise UsageError(f"invalid address {url!r}", hint=hint)
    if user and not _USER.fullmatch(user):
        raise UsageError(f"invalid user in {url!r}", hint=hint)
    return SshAddress(host, user, str(port) if port else "")


def read_contexts(paths: Paths) -> ContextFile:
    """Read all contexts; raise :class:`UsageError` if the file is damaged."""
    path = _context_file(paths)
    try:
        return msgspec.json.decode(path.read_bytes(), type=ContextFile)
    except FileNotFoundError:
        return ContextFile()
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: {error}", hint="correct or remove the file") from error


def find_current_context(
    paths: Paths, environ: Mapping[str, str] | None = None
) -> tuple[str, Context | None]:
    """Return the name of the current context, and the context unless it is the default.

    ``DANLU_CONTEXT`` takes precedence over ``danlu context use``. Raises :class:`UsageError` if
    the context does not exist.
    """
    chosen = (os.environ if environ is None else environ).get(CONTEXT_VARIABLE, "")
    if chosen == DEFAULT_CONTEXT or not (chosen or _context_file(paths).exists()):
        return DEFAULT_CONTEXT, None
    file = read_contexts(paths)
    name = chosen or file.current
    return name, None if name == DEFAULT_CONTEXT else find_context(file, name)


def find_context(file: ContextFile, name: str) -> Context:
    """Return a context; raise :class:`UsageError` if no context has that name."""
    if name not in file.contexts:
        known = (DEFAULT_CONTEXT, *file.contexts)
        raise UsageError(
            f"context {name} not found", hint=suggest_name(name, known, what="contexts")
        )
    return file.contexts[name]


def create_context(name: str, context: Context, paths: Paths) -> None:
    """Add a context; raise :class:`UsageError` if it is invalid or the name is taken."""
    if not _NAME.fullmatch(name) or name == DEFAULT_CONTEXT:
        raise UsageError(
            f"invalid context name {name!r}",
            hint="use lowercase letters, digits, '.', '_' and '-'",
        )
    _check_context(context)
    with file_lock(_lock_file(paths)):
        file = read_contexts(paths)
        if name in file.contexts:
            raise UsageError(
                f"context {name} exists already", hint=f"remove it with `danlu context rm {name}`"
            )
        if context.is_remote:
            _check_hosts(name, file)
        contexts = {**file.contexts, name: context}
        _write_contexts(ContextFile(file.current, contexts), paths)


def use_context(name: str, paths: Paths) -> None:
    """Make a context the current one; raise :class:`UsageError` if no context has that name."""
    with file_lock(_lock_file(paths)):
        file = read_contexts(paths)
        if name != DEFAULT_CONTEXT:
            find_context(file, name)
        _write_contexts(ContextFile(name, file.contexts), paths)


def remove_context(name: str, paths: Paths) -> None:
    """Remove a context; what runs there stays. The current one is replaced by the default."""
    with file_lock(_lock_file(paths)):
        file = read_contexts(paths)
        find_context(file, name)
        contexts = {other: value for other, value in file.contexts.items() if other != name}
        current = DEFAULT_CONTEXT if file.current == name else file.current
        _write_contexts(ContextFile(current, contexts), paths)


def _check_hosts(name: str, file: ContextFile) -> None:
    """Raise :class:`UsageError` if two environments could have one SSH host.

    ``a`` in a context ``b.c`` has that of ``a.b`` in a context ``c``.
    """
    for other, context in file.contexts.items():
        if context.is_remote and (name.endswith(f".{other}") or other.endswith(f".{name}")):
            raise UsageError(
                f"the SSH hosts of context {name} could be confused with those of context {other}",
                hint=f"choose a name such as {name.replace('.', '-')}-2",
            )


def _check_context(context: Context) -> None:
    if context.is_container:
        if not _CONTAINER.fullmatch(context.container):
            raise UsageError(
                f"invalid address {context.engine!r}", hint=f"use {CONTAINER_SCHEME}danlu"
            )
        for mount in context.mounts:
            # Docker's --mount is a line of CSV.
            if not mount.startswith("/") or any(letter in mount for letter in ',"\n'):
                raise UsageError(
                    f"cannot mount {mount!r}", hint="use an absolute path without commas and quotes"
                )
        return
    if context.image or context.mounts:
        raise UsageError(f"--image and --mount need an engine {CONTAINER_SCHEME}NAME")
    if context.engine not in get_args(EngineName):
        parse_ssh_url(context.engine)


def _write_contexts(file: ContextFile, paths: Paths) -> None:
    data = msgspec.json.format(msgspec.json.encode(file), indent=2)
    write_atomic(_context_file(paths), data + b"\n")


def _context_file(paths: Paths) -> Path:
    return paths.config / "contexts.json"


def _lock_file(paths: Paths) -> Path:
    return paths.config / ".contexts.lock"
