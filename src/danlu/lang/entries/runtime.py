"""``runtime.*``: what happens when the environment starts."""

from __future__ import annotations

from danlu.lang.function import Function, Parameter
from danlu.lang.kinds import ARGUMENT_LISTS, PORT, PORT_OR_ANY, TEXT, TEXT_MAP, TEXTS

__all__ = ["FUNCTIONS"]

FUNCTIONS = (
    Function(
        "runtime.environ",
        "Set environment variables of the image. A later call wins over an earlier one.",
        (
            Parameter("env", TEXT_MAP, "values by name", {}),
            Parameter("extra_path", TEXTS, "directories put before `PATH`", ()),
        ),
        built=True,
        example='runtime.environ({"MODE": "train"}, extra_path=["/opt/bin"])',
    ),
    Function(
        "runtime.command",
        "Name commands for later use.",
        (Parameter("commands", TEXT_MAP, "commands by name"),),
        at_start=True,
        example='runtime.command({"train": "python train.py"})',
    ),
    Function(
        "runtime.expose",
        "Show a port of the environment on the host.",
        (
            Parameter("envd_port", PORT, "port in the environment"),
            Parameter("host_port", PORT_OR_ANY, "port on the host, 0 for any", 0),
            Parameter("service", TEXT, "name of the service", ""),
            Parameter("listen_addr", TEXT, "address of the host to listen on", "127.0.0.1"),
        ),
        at_start=True,
        example='runtime.expose(8888, service="tensorboard")',
    ),
    Function(
        "runtime.daemon",
        "Keep programs running beside yours.",
        (Parameter("commands", ARGUMENT_LISTS, "programs, each with its arguments"),),
        at_start=True,
        example='runtime.daemon([["tensorboard", "--logdir", "logs"]])',
    ),
    Function(
        "runtime.mount",
        "Show a directory of the host in the environment.",
        (
            Parameter("host_path", TEXT, "path on the host, or `data.envd(name)`"),
            Parameter("envd_path", TEXT, "path in the environment"),
        ),
        at_start=True,
        example='runtime.mount("~/datasets", "/data")',
    ),
    Function(
        "runtime.init",
        "Run commands once, when the environment starts.",
        (Parameter("commands", TEXTS, "the commands"),),
        at_start=True,
        example='runtime.init(["mkdir -p /tmp/work"])',
    ),
)
