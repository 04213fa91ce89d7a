"""``runtime.*``: environment variables, and what happens when the environment starts."""

from __future__ import annotations

import re
from ipaddress import ip_address

from msgspec.structs import replace

from danlu.environment.runtime_settings import (
    DATA_SCHEME,
    ExposedPort,
    RuntimeMount,
    RuntimeSettings,
)
from danlu.environment.types import Declaration, RuntimeDeclaration
from danlu.lang.arg_types import ARGUMENT_LISTS, PORT, PORT_OR_ANY, TEXT, TEXT_MAP, TEXTS, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.checks import check_data_name

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMAND_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.:+@ -]*[A-Za-z0-9_.:+@-])?")
_KERNEL_DIRECTORIES = ("proc", "sys", "dev")


class EnvironmentVariables(Declaration, frozen=True):
    """``runtime.environ(env, extra_path)``; a later call wins over an earlier one."""

    values: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()

    def variables(self) -> tuple[tuple[str, str], ...]:
        return self.values

    def extra_path(self) -> tuple[str, ...]:
        return self.path


class NamedCommands(RuntimeDeclaration, frozen=True):
    """``runtime.command(commands)``: (name, shell command)."""

    start_function = "runtime.command"

    commands: tuple[tuple[str, str], ...]

    def configure_runtime(self, settings: RuntimeSettings) -> RuntimeSettings:
        merged = dict((*settings.commands, *self.commands))
        return replace(settings, commands=tuple(merged.items()))


class PortExposure(RuntimeDeclaration, frozen=True):
    """``runtime.expose(envd_port, host_port, service, listen_addr)``."""

    start_function = "runtime.expose"

    port: ExposedPort

    def configure_runtime(self, settings: RuntimeSettings) -> RuntimeSettings:
        return replace(settings, ports=(*settings.ports, self.port))


class BackgroundPrograms(RuntimeDeclaration, frozen=True):
    """``runtime.daemon(commands)``."""

    start_function = "runtime.daemon"

    programs: tuple[tuple[str, ...], ...]

    def configure_runtime(self, settings: RuntimeSettings) -> RuntimeSettings:
        return replace(settings, daemons=(*settings.daemons, *self.programs))


class HostMount(RuntimeDeclaration, frozen=True):
    """``runtime.mount(host_path, envd_path)``."""

    start_function = "runtime.mount"

    mount: RuntimeMount

    def configure_runtime(self, settings: RuntimeSettings) -> RuntimeSettings:
        return replace(settings, mounts=(*settings.mounts, self.mount))


class InitCommands(RuntimeDeclaration, frozen=True):
    """``runtime.init(commands)``."""

    start_function = "runtime.init"

    commands: tuple[str, ...]

    def configure_runtime(self, settings: RuntimeSettings) -> RuntimeSettings:
        return replace(settings, init=(*settings.init, *self.commands))


def _declare_environ(env: EnvironmentBuilder, call: BoundCall) -> None:
    variables = tuple(dict(call["env"]).items())
    for name, _ in variables:
        if not _VARIABLE.fullmatch(name):
            raise CallError(f"runtime.environ(): invalid variable name '{name}'", argument="env")
    for path in call["extra_path"]:
        if not path or ":" in path:
            raise CallError(f"runtime.environ(): invalid directory '{path}'", argument="extra_path")
    if variables or call["extra_path"]:
        env.declare(EnvironmentVariables(variables, call["extra_path"], span=call.span))


def _declare_commands(env: EnvironmentBuilder, call: BoundCall) -> None:
    before = {
        name: (text, item.span)
        for item in env.find_all(NamedCommands)
        for name, text in item.commands
    }
    for name, text in call["commands"]:
        if not _COMMAND_NAME.fullmatch(name):
            raise CallError(
                f"runtime.command(): invalid name '{name}'",
                hint="use letters, digits and '_'; '-', '.', ':', '+', '@' and spaces inside",
                argument="commands",
            )
        if not text.strip():
            raise CallError(f"runtime.command(): command '{name}' is empty", argument="commands")
        if name in before and before[name][0] != text:
            raise CallError(
                f"runtime.command(): duplicate command name '{name}'",
                hint=f"the first is at {before[name][1]}; rename one of them",
                argument="commands",
            )
    if call["commands"]:
        env.declare(NamedCommands(call["commands"], span=call.span))


def _declare_daemons(env: EnvironmentBuilder, call: BoundCall) -> None:
    for position, program in enumerate(call["commands"], 1):
        if not program or not program[0].strip():
            raise CallError(
                f"runtime.daemon(): program {position} is empty",
                hint='write [["program", "argument"]]: one inner list per program',
                argument="commands",
            )
    if call["commands"]:
        env.declare(BackgroundPrograms(call["commands"], span=call.span))


def _declare_init(env: EnvironmentBuilder, call: BoundCall) -> None:
    for position, command in enumerate(call["commands"], 1):
        if not command.strip():
            raise CallError(f"runtime.init(): command {position} is empty", argument="commands")
    if call["commands"]:
        env.declare(InitCommands(call["commands"], span=call.span))


def _declare_mount(env: EnvironmentBuilder, call: BoundCall) -> None:
    source, target = call["host_path"], call["envd_path"]
    _check_mount_source(source)
    _check_mount_target(target)
    mount = RuntimeMount(source, target, call.included_from)
    for other in env.find_all(HostMount):
        if other.mount.source == source and other.mount.target == target:
            if other.mount.included_from and not mount.included_from:
                env.replace(other, HostMount(mount, span=call.span))
            return
        if _split_path(other.mount.target) == _split_path(target):
            raise CallError(
                f"runtime.mount(): something else is mounted at {target} already",
                hint=f"the first is at {other.span}; use another path",
                argument="envd_path",
            )
    env.declare(HostMount(mount, span=call.span))


def _check_mount_source(source: str) -> None:
    if source.startswith(DATA_SCHEME):
        name = source.removeprefix(DATA_SCHEME)
        check_data_name(name, function="runtime.mount", argument="host_path")
    elif not source.strip():
        raise CallError("runtime.mount(): empty path", argument="host_path")
    elif source.startswith("~") and source != "~" and not source.startswith("~/"):
        raise CallError(
            f"runtime.mount(): invalid path '{source}'",
            hint="~/ is your home directory; write that of another user in full",
            argument="host_path",
        )


def _check_mount_target(target: str) -> None:
    parts = _split_path(target)
    if not target.startswith(("/", "~/")) or ".." in parts or parts in ([], ["~"]):
        raise CallError(
            f"runtime.mount(): invalid path '{target}' in the environment",
            hint="use an absolute path such as /data, or ~/data below the user's home directory",
            argument="envd_path",
        )
    if parts[0] in _KERNEL_DIRECTORIES:
        raise CallError(
            f"runtime.mount(): cannot mount at {target}: /{parts[0]} belongs to the kernel",
            hint="config.shm_size sets the size of /dev/shm" if parts[:2] == ["dev", "shm"] else "",
            argument="envd_path",
        )


def _split_path(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _declare_port(env: EnvironmentBuilder, call: BoundCall) -> None:
    try:
        ip_address(call["listen_addr"])
    except ValueError:
        raise CallError(
            f"runtime.expose(): invalid IP address '{call['listen_addr']}'",
            hint="use 127.0.0.1 for this machine only, 0.0.0.0 for all interfaces",
            argument="listen_addr",
        ) from None
    port = ExposedPort(call["envd_port"], call["host_port"], call["service"], call["listen_addr"])
    exposure = PortExposure(port, span=call.span)
    for other in env.find_all(PortExposure):
        if other == exposure:
            return
        if other.port.port == port.port:
            raise CallError(
                f"runtime.expose(): port {port.port} is exposed twice",
                hint=f"the first is at {other.span}; keep one of them",
                argument="envd_port",
            )
        if port.host_port and other.port.host_port == port.host_port:
            raise CallError(
                f"runtime.expose(): port {port.host_port} of the host is used twice",
                hint=f"the first is at {other.span}; use another one, or 0 for any",
                argument="host_port",
            )
    env.declare(exposure)


FUNCTIONS = (
    BuildFunction(
        "runtime.environ",
        "Set environment variables of the image. A later call wins over an earlier one.",
        (
            Parameter("env", TEXT_MAP, "values by name", {}),
            Parameter("extra_path", TEXTS, "directories to put before `PATH`", ()),
        ),
        declare=_declare_environ,
        example='runtime.environ({"MODE": "train"}, extra_path=["/opt/bin"])',
    ),
    BuildFunction(
        "runtime.command",
        "Define named shell commands: `danlu run NAME` runs one, with further arguments appended.",
        (Parameter("commands", TEXT_MAP, "commands by name"),),
        declare=_declare_commands,
        runtime_only=True,
        example='runtime.command({"train": "python train.py"})',
    ),
    BuildFunction(
        "runtime.expose",
        "Expose a port of the environment on the host.",
        (
            Parameter("envd_port", PORT, "port in the environment"),
            Parameter("host_port", PORT_OR_ANY, "port on the host, 0 for any", 0),
            Parameter("service", TEXT, "name of the service", ""),
            Parameter("listen_addr", TEXT, "address of the host to listen on", "127.0.0.1"),
        ),
        declare=_declare_port,
        runtime_only=True,
        example='runtime.expose(8888, service="tensorboard")',
    ),
    BuildFunction(
        "runtime.daemon",
        "Run programs in the background.",
        (Parameter("commands", ARGUMENT_LISTS, "programs, each with its arguments"),),
        declare=_declare_daemons,
        runtime_only=True,
        example='runtime.daemon([["tensorboard", "--logdir", "logs"]])',
    ),
    BuildFunction(
        "runtime.mount",
        "Mount a directory or file of the host in the environment.",
        (
            Parameter(
                "host_path",
                TEXT,
                "path on the host, relative to the project or below `~/`, or `data.envd(name)`",
            ),
            Parameter("envd_path", TEXT, "absolute path in the environment, or below `~/`"),
        ),
        declare=_declare_mount,
        runtime_only=True,
        example='runtime.mount("~/datasets", "/data")',
    ),
    BuildFunction(
        "runtime.init",
        "Run shell commands in order when the environment starts, before anything else.",
        (Parameter("commands", TEXTS, "the commands"),),
        declare=_declare_init,
        runtime_only=True,
        example='runtime.init(["mkdir -p /tmp/work"])',
    ),
)
