"""``install.*``: languages, package managers, packages, editors' extensions."""

from __future__ import annotations

from danlu.lang.function import Function, Parameter
from danlu.lang.kinds import FLAG, TEXT, TEXTS

__all__ = ["FUNCTIONS"]

_V1 = ("v1",)


def _version(doc: str) -> tuple[Parameter, ...]:
    return (Parameter("version", TEXT, doc, ""),)


FUNCTIONS = (
    Function(
        "install.python",
        "Install Python.",
        (
            Parameter(
                "version",
                TEXT,
                "`3.11` or `3.11.2`; empty for the distribution's own Python",
                "3.11",
            ),
        ),
        versions=_V1,
        built=True,
        single=True,
        example='install.python("3.11")',
    ),
    Function(
        "install.uv",
        "Install uv, and a Python for it.",
        (Parameter("python_version", TEXT, "the version of Python", "3.11"),),
        versions=_V1,
        built=True,
        single=True,
        example="install.uv()",
    ),
    Function(
        "install.apt_packages",
        "Install packages of the distribution. Calls add up.",
        (Parameter("name", TEXTS, "package names; one may be pinned: `git=1:2.39*`", ()),),
        built=True,
        example='install.apt_packages(["git", "ffmpeg"])',
    ),
    Function(
        "install.python_packages",
        "Install Python packages. Calls add up and are resolved together.",
        (
            Parameter(
                "name",
                TEXTS,
                "requirements: `numpy`, `torch==2.4.*`, `pkg @ git+https://…`; options of the "
                "installer such as `--extra-index-url URL` are accepted too",
                (),
            ),
            Parameter("requirements", TEXT, "path of a requirements file of the project", ""),
            Parameter("local_wheels", TEXTS, "paths of wheel files of the project", ()),
        ),
        built=True,
        example='install.python_packages(["numpy", "torch"], requirements="requirements.txt")',
    ),
    Function(
        "install.conda",
        "Install conda.",
        (Parameter("use_mamba", FLAG, "micromamba instead of Miniconda", False),),
        versions=_V1,
        single=True,
    ),
    Function(
        "install.conda_packages",
        "Install conda packages: by name, or all of an environment file.",
        (
            Parameter("name", TEXTS, "package names, such as `tensorflow==1.13.0`", ()),
            Parameter("channel", TEXTS, "further channels", ()),
            Parameter("env_file", TEXT, "path of a conda environment file of the project", ""),
        ),
        example='install.conda_packages(["gcc"], channel=["conda-forge"])',
    ),
    Function(
        "install.pixi",
        "Install pixi.",
        (
            Parameter("use_pixi_mirror", FLAG, "use pixi's mirror", False),
            Parameter("pypi_index", TEXT, "address of a Python package index", ""),
        ),
        versions=_V1,
        single=True,
    ),
    Function("install.r_lang", "Install R.", versions=_V1, single=True),
    Function(
        "install.r_packages",
        "Install R packages.",
        (Parameter("name", TEXTS, "package names"),),
    ),
    Function("install.julia", "Install Julia.", versions=_V1, single=True),
    Function(
        "install.julia_packages",
        "Install Julia packages.",
        (Parameter("name", TEXTS, "package names"),),
    ),
    Function(
        "install.rust",
        "Install Rust.",
        _version("version of the toolchain, such as `1.72.0`; empty for the stable one"),
        versions=_V1,
        single=True,
    ),
    Function(
        "install.go",
        "Install Go.",
        _version("such as `1.25.3`; empty for the present one"),
        versions=_V1,
        single=True,
    ),
    Function(
        "install.nodejs",
        "Install Node.js.",
        _version("such as `25.1.0`; empty for the present one"),
        versions=_V1,
        single=True,
    ),
    Function(
        "install.codex",
        "Install the Codex agent.",
        _version("a release, such as `rust-v0.98.0`; empty for the present one"),
        versions=_V1,
        single=True,
    ),
    Function(
        "install.cuda",
        "Stand on CUDA and cuDNN of that version.",
        (
            Parameter("version", TEXT, "version of CUDA, such as `11.6.2`"),
            Parameter("cudnn", TEXT, "version of cuDNN", "8"),
        ),
        single=True,
        example='install.cuda(version="11.6.2", cudnn="8")',
    ),
    Function(
        "install.vscode_extensions",
        "Install extensions of VS Code.",
        (Parameter("name", TEXTS, "`publisher.extension`, with `-version` or without"),),
        example='install.vscode_extensions(["ms-python.python"])',
    ),
)
