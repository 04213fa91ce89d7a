"""A manifest of pixi is read as pixi reads its default environment; the rest is refused by line."""

from __future__ import annotations

from textwrap import dedent

import pytest

from danlu.errors import UsageError
from danlu.sources.pixi_manifest import parse_conda_file

HEAD = '[workspace]\nchannels = ["conda-forge"]\nplatforms = ["linux-64"]\n'


def read(body: str, subdir: str = "linux-64") -> tuple[list[str], list[str]]:
    """The match specifications and the lines of requirements of a manifest with ``body``."""
    conda_file = parse_conda_file(HEAD + body, "pixi.toml", subdir=subdir)
    return [spec for _, spec in conda_file.specs], [line for _, line in conda_file.pip]


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        ('"*"', "numpy"),
        ('">=1.2,<2"', "numpy >=1.2,<2"),
        ('"1.26.*"', "numpy 1.26.*"),
        ('{ version = ">=1", channel = "pytorch" }', "pytorch::numpy >=1"),
        ('{ version = "1.2", build = "py311*" }', "numpy[build='py311*',version='1.2']"),
        ('{ channel = "https://h.example/c" }', "https://h.example/c::numpy"),
    ],
)
def test_dependencies_become_match_specifications(value: str, spec: str) -> None:
    assert read(f"[dependencies]\nnumpy = {value}\n") == ([spec], [])


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ('"*"', "via"),
        ('">=1,<2"', "via>=1,<2"),
        ('"1.2"', "via==1.2"),
        ('{ version = "~=1.2", extras = ["a", "b"] }', "via[a,b]~=1.2"),
        ('{ version = "*", env-markers = "sys_platform == \'linux\'" }',
         "via ; sys_platform == 'linux'"),
        ('{ path = "lib/via" }', "./lib/via"),
        ('{ path = "./via", editable = true }', "-e ./via"),
        ('{ git = "https://h.example/via", tag = "v1", subdirectory = "py" }',
         "via @ git+https://h.example/via@v1#subdirectory=py"),
        ('{ url = "https://h.example/via-1-py3-none-any.whl" }',
         "via @ https://h.example/via-1-py3-none-any.whl"),
    ],
)  # fmt: skip
def test_python_packages_become_lines_of_requirements(value: str, line: str) -> None:
    assert read(f"[pypi-dependencies]\nvia = {value}\n") == ([], [line])


def test_the_default_environment_has_its_features_and_targets() -> None:
    body = """
        [dependencies]
        a = "1"
        [host-dependencies]
        b = "*"
        [target.linux-64.dependencies]
        c = "*"
        [target.linux-64.pypi-dependencies]
        via = "*"
        [target.linux-aarch64.dependencies]
        d = "*"
        [target.osx-arm64.dependencies]
        e = "*"
        [feature.cuda]
        channels = ["nvidia"]
        system-requirements = { cuda = "12.4", libc = { family = "glibc", version = "2.28" } }
        dependencies = { f = "*" }
        [feature.docs.dependencies]
        g = "*"
        [environments]
        default = ["cuda"]
        docs = ["docs"]
        [tasks]
        start = "python x.py"
        """
    conda_file = parse_conda_file(HEAD + dedent(body), "pixi.toml", subdir="linux-64")
    assert [spec for _, spec in conda_file.specs] == ["f", "a 1", "b", "c"]
    assert conda_file.pip == ((12, "via ; platform_machine == 'x86_64'"),)
    assert conda_file.channels == ("nvidia", "conda-forge")
    assert conda_file.virtual_packages == {"__cuda": "12.4", "__glibc": "2.28"}
    assert conda_file.specs[1] == (6, "a 1")


def test_indexes_of_pixi_become_options_of_pip() -> None:
    body = """
        [pypi-options]
        index-url = "https://h.example/simple"
        extra-index-urls = ["https://i.example/simple"]
        find-links = [{ path = "./wheels" }]
        no-build = true
        """
    assert read(dedent(body))[1] == [
        "--index-url https://h.example/simple",
        "--extra-index-url https://i.example/simple",
        "--find-links ./wheels",
        "--only-binary :all:",
    ]


@pytest.mark.parametrize(
    ("body", "problem", "line"),
    [
        ('[dependencies]\nx = { git = "https://h" }\n', "x comes from git", 5),
        ('[dependencies]\n\nx = { path = "." }\n', "x comes from path", 6),
        ("[dependencies]\nx = 3\n", "x must be a version or a table", 5),
        ('[dependencies]\n"x; y" = "*"\n', "invalid package name", 4),
        ('[dependencies]\nx = { sha512 = "a" }\n', "sha512 is not supported", 5),
        ('[pypi-dependencies]\nx = { index = "https://h" }\n', "index is not supported", 5),
        ('[pypi-options]\nno-build-isolation = ["x"]\n', "no-build-isolation is not", 5),
        ('[constraints]\nx = "1"\n', "[constraints] is not supported", 4),
        ('[environments]\ndefault = ["gone"]\n', "feature 'gone' not found", 5),
        ("dependencies = 3\n", "", 0),
    ],
)
def test_unsupported_entries_are_rejected_with_their_line(
    body: str, problem: str, line: int
) -> None:
    if not problem:
        assert read(body) == ([], [])  # a key of [workspace], which pixi ignores too
        return
    with pytest.raises(UsageError) as caught:
        read(body)
    assert problem in caught.value.message
    assert caught.value.span is not None
    assert (caught.value.span.file, caught.value.span.line) == ("pixi.toml", line)


def test_other_platforms_and_other_files_are_refused() -> None:
    with pytest.raises(UsageError, match="platforms do not include linux-aarch64") as caught:
        read("", "linux-aarch64")
    assert caught.value.span is not None
    assert caught.value.span.line == 3
    with pytest.raises(UsageError, match=r"no \[workspace\]"):
        parse_conda_file("[dependencies]\n", "pixi.toml")
    with pytest.raises(UsageError, match="is not valid TOML"):
        parse_conda_file("[", "pixi.toml")
    with pytest.raises(UsageError, match="channels is empty"):
        parse_conda_file("[workspace]\nname = 'x'\n", "pixi.toml")


@pytest.mark.parametrize(
    "body",
    [
        "[pypi-dependencies]\nx = { version = 3 }\n",
        '[pypi-dependencies]\nx = { version = "1", extras = 3 }\n',
        "[pypi-dependencies]\nx = { path = 3 }\n",
        "[pypi-options]\nfind-links = [3]\n",
        "[feature]\nx = 3\n[environments]\ndefault = ['x']\n",
        "[environments]\ndefault = 3\n",
        "[target]\nlinux = 3\n",
        "a = " + "[" * 5000 + "]" * 5000 + "\n",
    ],
)
def test_values_of_another_type_are_refused(body: str) -> None:
    with pytest.raises(UsageError, match=r"pixi\.toml"):
        read(body)


def test_an_environment_file_is_still_read() -> None:
    text = "channels: [conda-forge]\ndependencies: [numpy]\n"
    assert parse_conda_file(text, "environment.yml").specs == ((2, "numpy"),)
