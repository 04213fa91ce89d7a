"""Contexts: places where commands run, by name, and the current one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from danlu.engine.registry import (
    BUILT_IN_NAMES,
    find_engine,
    is_engine,
    list_engine_names,
    name_engine_context,
)
from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.util.danlu_program import CONTEXT_VARIABLE, DEFAULT_ENGINE, LOCAL_CONTEXT
from danlu.util.decoding import decode_json
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
_NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_REGION = re.compile("[a-z]{2,}(-[a-z]+)+-[0-9]+")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
_BUCKET = re.compile("[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_INSTANCE_TYPE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9-]+")
#: The name that earlier versions gave to this machine; it is in files that they wrote.
_FORMER_LOCAL_CONTEXT = "default"


class ClusterAddress(msgspec.Struct, frozen=True):
    """A namespace of a cluster, by context of the kubeconfig; empty means what is configured."""

    context: str = ""
    namespace: str = ""


class SageMakerAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What training jobs of an account use.

    Attributes:
        role: The ARN of the role that jobs have; jobs are of its account.
        bucket: The S3 bucket for code, models and checkpoints.
        registry: Where images are pushed; empty is the account's Amazon ECR.
        instance_type: The type of hosts, unless a job requests more than it has.
    """

    role: str
    bucket: str
    registry: str = ""
    instance_type: str = ""

    @property
    def account(self) -> str:
        """The number of the account."""
        return self.role.split(":", 5)[4]

    def find_registry(self, region: str) -> str:
        """Return the registry that images are pushed to, for jobs in ``region``."""
        if self.registry:
            return self.registry.rstrip("/")
        domain = "amazonaws.com.cn" if self.role.startswith("arn:aws-cn:") else "amazonaws.com"
        return f"{self.account}.dkr.ecr.{region}.{domain}"


class Context(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A place where commands run.

    ``engine`` is the name of an engine of this machine, ``kubernetes[:CONTEXT[/NAMESPACE]]``,
    ``sagemaker:REGION``, ``ssh://[USER@]HOST[:PORT]``, or ``docker-container://NAME``. ``image``
    and ``mounts`` are the container's: its image and the directories that it shares with this
    machine. ``account`` is that of training jobs.
    """

    engine: str
    image: str = ""
    mounts: tuple[str, ...] = ()
    account: SageMakerAccount | None = None

    @property
    def is_remote(self) -> bool:
        """Whether commands run on another machine, which may be a container."""
        return self.engine.startswith(("ssh://", CONTAINER_SCHEME))

    @property
    def engine_name(self) -> str:
        """The engine of this machine that runs environments; empty on another machine."""
        return "" if self.is_remote else self.engine.partition(":")[0]

    @property
    def cluster(self) -> ClusterAddress | None:
        """The cluster that runs environments and jobs, if one does."""
        return parse_cluster(self.engine) if _is_cluster(self.engine_name) else None

    @property
    def region(self) -> str:
        """The region of an account's jobs."""
        return "" if self.account is None else self.engine.partition(":")[2]

    @property
    def container(self) -> str:
        """The name of the container in which commands run; empty for none."""
        return self.engine.removeprefix(CONTAINER_SCHEME) if self.is_container else ""

    @property
    def is_container(self) -> bool:
        """Whether commands run in a container of Docker."""
        return self.engine.startswith(CONTAINER_SCHEME)


#: This machine, with danlu's own engine.
LOCAL = Context(DEFAULT_ENGINE)


def list_built_in_contexts(platform: str = sys.platform) -> Mapping[str, Context]:
    """Return the contexts that exist without being created, by name.

    On other systems than Linux, `docker` runs danlu in a container that it creates.
    """
    contexts = {name_engine_context(name): Context(name) for name in BUILT_IN_NAMES}
    if platform != "linux":
        home = str(Path.home().resolve())
        contexts["docker"] = Context(f"{CONTAINER_SCHEME}danlu", mounts=(home,))
    return contexts


class SshAddress(msgspec.Struct, frozen=True):
    """A host of ssh; ``user`` and ``port`` are empty for what ssh's configuration says."""

    host: str
    user: str = ""
    port: str = ""

    @property
    def command(self) -> str:
        """The beginning of a command line of ssh."""
        port = f" -p {self.port}" if self.port else ""
        return f"ssh{port} {self.user}{'@' if self.user else ''}{self.host}"


class ContextFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``contexts.json``."""

    current: str = LOCAL_CONTEXT
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


def parse_cluster(address: str) -> ClusterAddress:
    """Parse ``kubernetes[:CONTEXT[/NAMESPACE]]``; raise :class:`UsageError` if it is invalid."""
    _, _, rest = address.partition(":")
    # An EKS context is an ARN, which contains slashes and colons; a namespace has neither.
    has_namespace = "/" in rest and not rest.startswith("arn:")
    context, _, namespace = rest.rpartition("/") if has_namespace else (rest, "", "")
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise UsageError(
            f"invalid namespace {namespace!r}",
            hint="use lower-case letters, digits and '-', at most 63 characters",
        )
    return ClusterAddress(context, namespace)


def read_contexts(paths: Paths) -> ContextFile:
    """Read the contexts that were created; raise :class:`UsageError` if the file is damaged."""
    path = _context_file(paths)
    try:
        file = decode_json(path.read_bytes(), ContextFile)
    except FileNotFoundError:
        return ContextFile()
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: {error}", hint="correct or remove the file") from error
    if file.current == _FORMER_LOCAL_CONTEXT:
        return msgspec.structs.replace(file, current=LOCAL_CONTEXT)
    return file


def find_current_context(
    paths: Paths, environ: Mapping[str, str] | None = None, *, chosen: str = ""
) -> tuple[str, Context]:
    """Return the name of the context in which commands run, and the context.

    ``chosen`` is the value of ``--on``, which takes precedence over ``DANLU_CONTEXT``, and that
    over ``danlu context use``. Raises :class:`UsageError` if the context does not exist.
    """
    file = read_contexts(paths)
    variable = (os.environ if environ is None else environ).get(CONTEXT_VARIABLE, "")
    name = chosen or variable or file.current
    if name == _FORMER_LOCAL_CONTEXT and name not in file.contexts:
        name = LOCAL_CONTEXT
    return name, find_context(file, name)


def find_context(file: ContextFile, name: str) -> Context:
    """Return a context by its name or the address of a cluster.

    Raises :class:`UsageError` if no context has that name.
    """
    engine, colon, _ = name.partition(":")
    if colon and _is_cluster(engine):
        parse_cluster(name)
        return Context(name)
    found = file.contexts.get(name) or list_built_in_contexts().get(name)
    if found is None:
        # Only now, because packages are searched.
        known = list_contexts(file)
        if name not in known:
            hint = suggest_name(name, known, what="contexts")
            raise UsageError(f"context {name} not found", hint=hint)
        found = known[name]
    return found


def _is_cluster(engine: str) -> bool:
    return bool(engine) and is_engine(engine) and find_engine(engine).features.is_cluster


def is_same_place(name: str, other: str, paths: Paths) -> bool:
    """Return whether two contexts are one place; not if one was removed and has another name."""
    if name == other:
        return True
    file = read_contexts(paths)
    try:
        return find_context(file, name) == find_context(file, other)
    except UsageError:
        return False


def apply_context(settings: Settings, context: Context, name: str = LOCAL_CONTEXT) -> Settings:
    """Return the settings of commands in a context that is not another machine."""
    cluster = context.cluster
    config = settings.config
    if cluster is not None:
        names = {"context": cluster.context, "namespace": cluster.namespace}
        given = {name: value for name, value in names.items() if value}
        kubernetes = msgspec.structs.replace(config.kubernetes, **given)
        config = msgspec.structs.replace(config, kubernetes=kubernetes)
    return msgspec.structs.replace(
        settings, config=config, engine=context.engine_name or settings.engine, context=name
    )


def describe_context(
    name: str, context: Context, settings: Settings
) -> dict[str, str | tuple[str, ...]]:
    """Return what a context is, for the user: its engine, and where that finds what it needs."""
    fields: dict[str, str | tuple[str, ...]] = {"name": name, "engine": context.engine}
    if context.cluster is not None:
        cluster = apply_context(settings, context).config.kubernetes
        fields |= {
            "context": cluster.context,
            "namespace": cluster.namespace,
            "registry": cluster.registry,
        }
    if context.account is not None:
        fields |= msgspec.structs.asdict(context.account)
        fields |= {
            "region": context.region,
            "registry": context.account.find_registry(context.region),
        }
    if context.is_container:
        fields |= {"image": context.image, "mounts": context.mounts}
    return fields


def list_contexts(file: ContextFile) -> Mapping[str, Context]:
    """Return all contexts by name, those first that exist without being created.

    Earlier versions let the user create contexts with the names of these: they keep their meaning.
    """
    plugins = {name: Context(name) for name in list_engine_names()[len(BUILT_IN_NAMES) :]}
    return {**list_built_in_contexts(), **plugins, **file.contexts}


def create_context(name: str, context: Context, paths: Paths) -> None:
    """Add a context; raise :class:`UsageError` if it is invalid or the name is taken."""
    if name in list_built_in_contexts():
        raise UsageError(f"context {name} exists already", hint="it exists on every machine")
    if not _NAME.fullmatch(name) or name == _FORMER_LOCAL_CONTEXT:
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
        if name == _FORMER_LOCAL_CONTEXT and name not in file.contexts:
            name = LOCAL_CONTEXT
        find_context(file, name)
        _write_contexts(ContextFile(name, file.contexts), paths)


def remove_context(name: str, paths: Paths) -> None:
    """Remove a context; what runs there stays. If it is the current one, this machine becomes it.

    Raises :class:`UsageError` if it was not created.
    """
    with file_lock(_lock_file(paths)):
        file = read_contexts(paths)
        find_context(file, name)
        if name not in file.contexts:
            raise UsageError(f"context {name} always exists, and cannot be removed")
        contexts = {other: value for other, value in file.contexts.items() if other != name}
        current = LOCAL_CONTEXT if file.current == name else file.current
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
    name = context.engine_name
    if is_engine(name) and find_engine(name).features.is_account:
        _check_account(context)
    elif context.account is not None:
        raise UsageError(
            "--role, --bucket, --registry and --instance-type need --engine sagemaker:REGION"
        )
    elif context.cluster is None and not is_engine(context.engine):
        parse_ssh_url(context.engine)


def _check_account(context: Context) -> None:
    account = context.account
    if account is None:
        raise UsageError(
            f"{context.engine} needs the role and the bucket of training jobs",
            hint="--role arn:aws:iam::ACCOUNT:role/NAME --bucket NAME",
        )
    fields = {
        "region": (context.region, _REGION, f"--engine {context.engine_name}:us-east-1"),
        "role": (account.role, _ROLE, "--role arn:aws:iam::123456789012:role/NAME"),
        "bucket": (account.bucket, _BUCKET, "--bucket NAME, without s3://"),
        "instance type": (
            account.instance_type or "ml.m5.large",
            _INSTANCE_TYPE,
            "--instance-type ml.g5.xlarge",
        ),
    }
    for name, (value, pattern, hint) in fields.items():
        if not pattern.fullmatch(value):
            raise UsageError(f"invalid {name} {value!r}", hint=hint)


def _write_contexts(file: ContextFile, paths: Paths) -> None:
    data = msgspec.json.format(msgspec.json.encode(file), indent=2)
    write_atomic(_context_file(paths), data + b"\n")


def _context_file(paths: Paths) -> Path:
    return paths.config / "contexts.json"


def _lock_file(paths: Paths) -> Path:
    return paths.config / ".contexts.lock"
