"""What is quoted from uv, and which files uv is told to accept."""

from __future__ import annotations

import platform

import pytest

from danlu.graph.ops import InstallScheme, Wheel, WheelSource
from danlu.sources.pypi.uv_errors import build_hint, summarize_reason
from danlu.sources.pypi.uv_install import platform_options

SCHEME = InstallScheme("/opt/venv", "3.11", "lib/python3.11/site-packages", "/usr/bin/python3")


def test_reason_has_neither_warnings_nor_hints_nor_the_drawing() -> None:
    text = """\
warning: `UV_X` is deprecated
  × No solution found when resolving dependencies:
  ╰─▶ Because a==1 depends on b, and b was not found
hint: use another index

error: the server did not answer
"""
    assert summarize_reason(text) == (
        "No solution found when resolving dependencies:",
        "Because a==1 depends on b, and b was not found",
        "the server did not answer",
    )


def test_a_package_that_another_has_replaced_is_named_with_it() -> None:
    text = "× Failed to build `tensorflow-gpu==2.12.0`\n  Traceback (most recent call last):"
    assert build_hint(text) == "tensorflow-gpu is no longer published: use tensorflow"
    assert "compilers" in build_hint(text.replace("tensorflow-gpu", "psycopg2"))


@pytest.mark.parametrize(("length", "shown"), [(600, 600), (601, 598)])
def test_long_line_is_cut(length: int, shown: int) -> None:
    (line,) = summarize_reason("x" * length)
    assert len(line) == shown
    assert line.endswith("…") is (length > 600)


def test_reason_has_a_few_lines() -> None:
    assert summarize_reason("\n".join("abcdef"), lines=2) == ("a", "b")


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("manylinux_2_17_x86_64", "x86_64-manylinux_2_"),
        ("manylinux_2_17_aarch64", "aarch64-manylinux_2_"),
        ("musllinux_1_2_x86_64", "x86_64-unknown-linux-musl"),
        ("musllinux_1_2_aarch64", "aarch64-unknown-linux-musl"),
        ("any", f"{platform.machine()}-manylinux_2_"),
    ],
)
def test_files_of_the_lock_are_accepted_whatever_this_machine_is(tag: str, expected: str) -> None:
    source = WheelSource("index", "a")
    wheel = Wheel("a", "1", f"a-1-py3-none-{tag}.whl", "0" * 64, source, SCHEME)
    options = platform_options([wheel])
    assert options[options.index("--python-version") + 1] == "3.11.99"
    assert options[options.index("--python-platform") + 1].startswith(expected)
