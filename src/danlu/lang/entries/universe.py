"""The plain functions: ``base``, ``shell``, ``run``, ``git_config``, ``include``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from danlu.lang.finding import Finding
from danlu.lang.function import Function, Parameter
from danlu.lang.kinds import FLAG, SECRETS, TEXT, TEXTS, choice

__all__ = ["DEFAULT_IMAGE", "FUNCTIONS", "SHELLS"]

DEFAULT_IMAGE = "ubuntu:22.04"
SHELLS = ("bash", "zsh", "fish")

_DISTRIBUTION = re.compile(r"(debian|ubuntu)[0-9][0-9.]*")


def _base_positions(args: tuple[object, ...]) -> Mapping[str, object]:
    """Read ``base``'s positional arguments: v1 has ``image, dev``, v0 ``os, language, image``."""
    if len(args) > 3:
        raise Finding("base() takes at most 3 arguments by position", argument=3)
    first = args[0] if args else None
    old = isinstance(first, str) and _DISTRIBUTION.fullmatch(first) is not None
    if len(args) > 1 and isinstance(args[1], str):
        old = True
    names = ("os", "language", "image") if old else ("image", "dev")
    if len(args) > len(names):
        raise Finding("base() takes at most 2 arguments by position: image, dev", argument=2)
    return dict(zip(names, args, strict=False))


FUNCTIONS = (
    Function(
        "base",
        "Say what the environment stands on: a distribution (`os`) or an image. Without either it "
        f"is the image `{DEFAULT_IMAGE}`.",
        (
            Parameter(
                "image",
                TEXT,
                "a Debian-like image; `os` and `image` exclude each other",
                DEFAULT_IMAGE,
            ),
            Parameter(
                "dev",
                FLAG,
                "add what living in the environment needs: ssh, git, an editor, a user. Where "
                "`language` is given (language v0) it is True, else False",
                None,
            ),
            Parameter(
                "os",
                TEXT,
                "a distribution and its version, such as `debian12` or `ubuntu22.04`",
                "",
                keyword_only=True,
            ),
            Parameter(
                "language",
                TEXT,
                "language v0: `python3.8`, `r` or `julia`, installed as by `install.*`",
                "",
                keyword_only=True,
            ),
        ),
        built=True,
        single=True,
        example='base(os="debian12", dev=True)',
        spread=_base_positions,
    ),
    Function(
        "shell",
        "Choose the shell that a user of the environment gets.",
        (Parameter("name", choice(SHELLS), "the shell", "bash"),),
        built=True,
        single=True,
        example='shell("zsh")',
    ),
    Function(
        "run",
        "Run shell commands while building. One call is one bash script (`set -euo pipefail`) and "
        "one layer. Runs keep the order in which they are written, after everything declared.",
        (
            Parameter("commands", TEXTS, "the lines of the script"),
            Parameter(
                "mount_host",
                FLAG,
                "show the project's files while it runs; it runs again when one of them changes",
                False,
            ),
            Parameter(
                "secrets",
                SECRETS,
                "secrets that the commands may read, each as a file: by default "
                "`/run/secrets/ID`. They never enter the image",
                (),
            ),
            Parameter(
                "ssh",
                FLAG,
                "let the commands use the ssh agent that `danlu build --ssh default` forwards",
                False,
            ),
        ),
        built=True,
        example='run(["make", "make install"], secrets=["token"])',
    ),
    Function(
        "git_config",
        "Write the user's git configuration.",
        (
            Parameter("name", TEXT, "`user.name`", ""),
            Parameter("email", TEXT, "`user.email`", ""),
            Parameter("editor", TEXT, "`core.editor`", ""),
        ),
        built=True,
        single=True,
        example='git_config(name="Ada", email="ada@example.org", editor="vim")',
    ),
    Function(
        "include",
        "Load the functions of another git repository: all its `*.envd` files. Its value holds "
        "them by name. The commit is pinned by the lock file.",
        (
            Parameter("url", TEXT, "the repository's address", aliases=("git",)),
            Parameter("ref", TEXT, "a branch, a tag or a commit; empty for the default branch", ""),
        ),
        built=True,
        returns="Any",
        example='lib = include("https://github.com/tensorchord/envdlib", ref="main")',
    ),
)
