"""``config.*``: mirrors, services, resources, who owns the environment."""

from __future__ import annotations

from danlu.lang.function import Function, Parameter
from danlu.lang.kinds import FLAG, PORT_OR_ANY, TEXT, TEXTS, USER_ID, integer

__all__ = ["FUNCTIONS"]

FUNCTIONS = (
    Function(
        "config.apt_source",
        "Write the image's `/etc/apt/sources.list`.",
        (Parameter("source", TEXT, "the file's text"),),
        built=True,
        single=True,
    ),
    Function(
        "config.pip_index",
        "Use a Python package index: to resolve, and inside the environment.",
        (
            Parameter("url", TEXT, "the index's address"),
            Parameter("extra_url", TEXT, "address of a second index", ""),
            Parameter("trust", FLAG, "do not check its certificate", False),
        ),
        built=True,
        single=True,
        example='config.pip_index(url="https://pypi.example.org/simple")',
    ),
    Function(
        "config.owner",
        "Say who owns the environment when it starts.",
        (Parameter("uid", USER_ID, "user id"), Parameter("gid", USER_ID, "group id")),
        versions=("v1",),
        built=True,
        single=True,
        example="config.owner(1000, 1000)",
    ),
    Function(
        "config.entrypoint",
        "Set the image's entry program.",
        (Parameter("args", TEXTS, "the program and its arguments"),),
        built=True,
        single=True,
        example='config.entrypoint(["python", "main.py"])',
    ),
    Function(
        "config.jupyter",
        "Serve Jupyter while the environment runs.",
        (
            Parameter("token", TEXT, "the access token; it never enters the image", ""),
            Parameter("port", PORT_OR_ANY, "port on the host, 0 for any", 0),
        ),
        built=True,
        single=True,
        example="config.jupyter(port=8888)",
    ),
    Function(
        "config.gpu",
        "Say how many GPUs the environment gets when it starts.",
        (Parameter("count", integer(0, 1024), "number of GPUs"),),
        at_start=True,
        single=True,
    ),
    Function(
        "config.shm_size",
        "Set the size of the shared memory when the environment starts.",
        (Parameter("size", integer(1, 1 << 30, "megabytes"), "size in megabytes"),),
        at_start=True,
        single=True,
    ),
    Function(
        "config.repo",
        "Name the repository that the environment belongs to.",
        (
            Parameter("url", TEXT, "the repository's address"),
            Parameter("description", TEXT, "a line about it", ""),
        ),
        at_start=True,
        single=True,
    ),
    Function(
        "config.conda_channel",
        "Write conda's configuration.",
        (
            Parameter("channel", TEXT, "the text of a `.condarc`"),
            Parameter("use_mamba", FLAG, "language v0: `install.conda(use_mamba=True)`", False),
        ),
        single=True,
    ),
    Function(
        "config.cran_mirror",
        "Use a mirror of CRAN.",
        (Parameter("url", TEXT, "the mirror's address"),),
        single=True,
    ),
    Function(
        "config.julia_pkg_server",
        "Use a package server of Julia.",
        (Parameter("url", TEXT, "the server's address"),),
        single=True,
    ),
    Function("config.rstudio_server", "Serve RStudio while the environment runs.", single=True),
)
