"""``data.*``: directories of the host that outlive an environment."""

from __future__ import annotations

from danlu.lang.function import Function, Parameter
from danlu.lang.kinds import TEXT

__all__ = ["DATA_SCHEME", "FUNCTIONS", "PATHS"]

DATA_SCHEME = "data://"
"""A ``runtime.mount`` whose host path starts so names a directory that danlu keeps for data."""

PATHS = {
    "huggingface": "~/.cache/huggingface",
    "dgl": "~/.dgl",
}
"""``data.path.*``: where well-known libraries keep their data, in a user's home."""

FUNCTIONS = (
    Function(
        "data.envd",
        "Name a directory that danlu keeps on the host; for `runtime.mount`.",
        (Parameter("name", TEXT, "letters, digits, `_`, `-` and `.`"),),
        at_start=True,
        returns="str",
        example='runtime.mount(data.envd("imagenet"), "/data")',
    ),
)
