"""``runtime.*``: environment variables, and what happens when the environment starts."""

from __future__ import annotations

import re
from ipaddress import ip_address

from danlu.environment.types import Declaration
from danlu.lang.arg_types import ARGUMENT_LISTS, PORT, PORT_OR_ANY, TEXT, TEXT_MAP, TEXTS, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, Parameter
from danlu.lang.environment_builder import EnvironmentBuilder

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvironmentVariables(Declaration, frozen=True):
    """``runtime.environ(env, extra_path)``; a later call wins over an earlier one."""

    values: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()

    def variables(self) -> tuple[tuple[str, str], ...]:
        return self.values

    def extra_path(self) -> tuple[str, ...]:
        return self.path


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


def _check_expose(env: EnvironmentBuilder, call: BoundCall) -> None:
    try:
        ip_address(call["listen_addr"])
    except ValueError:
        raise CallError(
            f"runtime.expose(): invalid IP address '{call['listen_addr']}'",
            hint="use 127.0.0.1 for this machine only, 0.0.0.0 for all interfaces",
            argument="listen_addr",
        ) from None


FUNCTIONS = (
    BuildFunction(
        "runtime.environ",
        "Set environment variables of the image. A later call wins over an earlier one.",
        (
            Parameter("env", TEXT_MAP, "values by name", {}),
            Parameter("extra_path", TEXTS, "directories to put before `PATH`", ()),
        ),
        declare=_declare_environ,
        implemented=True,
        example='runtime.environ({"MODE": "train"}, extra_path=["/opt/bin"])',
    ),
    BuildFunction(
        "runtime.command",
        "Name commands for later use.",
        (Parameter("commands", TEXT_MAP, "commands by name"),),
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
        declare=_check_expose,
        runtime_only=True,
        example='runtime.expose(8888, service="tensorboard")',
    ),
    BuildFunction(
        "runtime.daemon",
        "Run programs in the background.",
        (Parameter("commands", ARGUMENT_LISTS, "programs, each with its arguments"),),
        runtime_only=True,
        example='runtime.daemon([["tensorboard", "--logdir", "logs"]])',
    ),
    BuildFunction(
        "runtime.mount",
        "Mount a directory of the host in the environment.",
        (
            Parameter("host_path", TEXT, "path on the host, or `data.envd(name)`"),
            Parameter("envd_path", TEXT, "path in the environment"),
        ),
        runtime_only=True,
        example='runtime.mount("~/datasets", "/data")',
    ),
    BuildFunction(
        "runtime.init",
        "Run commands once, when the environment starts.",
        (Parameter("commands", TEXTS, "the commands"),),
        runtime_only=True,
        example='runtime.init(["mkdir -p /tmp/work"])',
    ),
)
