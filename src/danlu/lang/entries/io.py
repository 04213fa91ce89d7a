"""``io.*``: files that come into the image, before the commands run."""

from __future__ import annotations

from danlu.lang.function import Function, Parameter
from danlu.lang.kinds import TEXT

__all__ = ["FUNCTIONS"]

FUNCTIONS = (
    Function(
        "io.copy",
        "Copy files into the image: from the project, or from another image.",
        (
            Parameter("source", TEXT, "path in the project or in `image`", aliases=("host_path",)),
            Parameter("target", TEXT, "path in the environment", aliases=("envd_path",)),
            Parameter("image", TEXT, "the image to copy from", ""),
        ),
        built=True,
        example='io.copy("main.py", "/opt/app/")',
    ),
    Function(
        "io.http",
        "Download a file to `/home/envd/extra_source`.",
        (
            Parameter("url", TEXT, "the file's address"),
            Parameter("checksum", TEXT, "`sha256:…`; without it the lock file pins it", ""),
            Parameter("filename", TEXT, "its name; by default the last part of the address", ""),
        ),
        built=True,
        example='io.http("https://example.org/model.bin", filename="model.bin")',
    ),
)
