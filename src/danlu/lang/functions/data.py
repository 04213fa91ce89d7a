"""``data.*``: directories of the host that outlive an environment."""

from __future__ import annotations

from danlu.environment.types import RuntimeDeclaration
from danlu.lang.arg_types import TEXT
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.checks import check_data_name

PATHS = {
    "huggingface": "~/.cache/huggingface",
    "dgl": "~/.dgl",
}
"""``data.path.*``: where well-known libraries keep their data, in a user's home."""


class DataDirectory(RuntimeDeclaration, frozen=True):
    """``data.envd(name)``. The directory is created when it is mounted."""

    start_function = "data.envd"

    name: str


def _declare_data(env: EnvironmentBuilder, call: BoundCall) -> None:
    check_data_name(call["name"], function="data.envd", argument="name")
    directory = DataDirectory(call["name"], span=call.span)
    if directory not in env.find_all(DataDirectory):
        env.declare(directory)


FUNCTIONS = (
    BuildFunction(
        "data.envd",
        "Name a directory that danlu keeps on the host, for `runtime.mount`. Environments of all "
        "projects share it.",
        (Parameter("name", TEXT, "letters, digits, `_`, `-` and `.`"),),
        declare=_declare_data,
        runtime_only=True,
        returns="str",
        example='runtime.mount(data.envd("imagenet"), "/data")',
    ),
)
