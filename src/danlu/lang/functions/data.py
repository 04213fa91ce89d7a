"""``data.*``: directories of the host that outlive an environment."""

from __future__ import annotations

import re

from danlu.lang.arg_types import TEXT, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, Parameter
from danlu.lang.environment_builder import EnvironmentBuilder

DATA_SCHEME = "data://"
"""Prefix of a ``runtime.mount`` host path that names a directory which danlu keeps for data."""

PATHS = {
    "huggingface": "~/.cache/huggingface",
    "dgl": "~/.dgl",
}
"""``data.path.*``: where well-known libraries keep their data, in a user's home."""

_DATA_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def _check_data_name(env: EnvironmentBuilder, call: BoundCall) -> None:
    if not _DATA_NAME.fullmatch(call["name"]):
        raise CallError(
            f"data.envd(): invalid name '{call['name']}'",
            hint="use letters, digits, '_', '-' and '.'",
            argument="name",
        )


FUNCTIONS = (
    BuildFunction(
        "data.envd",
        "Name a directory that danlu keeps on the host, for `runtime.mount`.",
        (Parameter("name", TEXT, "letters, digits, `_`, `-` and `.`"),),
        declare=_check_data_name,
        runtime_only=True,
        returns="str",
        example='runtime.mount(data.envd("imagenet"), "/data")',
    ),
)
