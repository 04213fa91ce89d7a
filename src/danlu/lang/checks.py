"""Checks of arguments that several build functions share; all raise :class:`CallError`."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from danlu.environment.types import PythonInterpreter
from danlu.errors import Span
from danlu.lang.arg_types import CallError
from danlu.lang.build_function import EnvironmentBuilder
from danlu.util.urls import mask_credentials

_DATA_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PYTHON = re.compile(r"3(\.[0-9]+){1,2}t?")


def check_image(image: str, function: str) -> None:
    """Check the argument ``image``, an image reference; its registry is not asked."""
    if image != image.strip() or " " in image or "://" in image:
        raise CallError(
            f"{function}(): invalid image reference '{image}'",
            hint="write it as ubuntu:22.04 or registry/team/image:tag",
            argument="image",
        )


def check_url(url: str, function: str, argument: str, schemes: tuple[str, ...]) -> None:
    """Check an address whose scheme must be one of ``schemes``."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in schemes and bool(parts.netloc or parts.scheme == "file")
    except ValueError:
        is_valid = False
    if not is_valid or re.search(r"\s", url):
        raise CallError(
            f"{function}(): invalid URL '{mask_credentials(url)}'",
            hint=f"a URL starts with {schemes[-1] if len(schemes) < 3 else 'https'}://",
            argument=argument,
        )


def check_data_name(name: str, *, function: str, argument: str) -> None:
    """Check the name of a directory that danlu keeps for data."""
    if not _DATA_NAME.fullmatch(name):
        raise CallError(
            f"{function}(): invalid name '{name}'",
            hint="use letters, digits, '_', '-' and '.'",
            argument=argument,
        )


def strip_names(names: tuple[str, ...], function: str) -> tuple[str, ...]:
    """Return the argument ``name``, a list of names, without surrounding white space."""
    for name in names:
        if not name.strip():
            raise CallError(f"{function}(): empty name", argument="name")
        if "\n" in name.strip():
            raise CallError(f"{function}(): name with a line break", argument="name")
    return tuple(name.strip() for name in names)


def check_python_version(version: str, function: str, argument: str) -> None:
    """Check a version of Python 3; empty means any."""
    if version and not _PYTHON.fullmatch(version):
        raise CallError(
            f"{function}(): invalid Python version '{version}'",
            hint='use a version of Python 3 such as "3.11" or "3.11.2"',
            argument=argument,
        )


def declare_python(
    env: EnvironmentBuilder, version: str, span: Span, *, function: str, argument: str
) -> None:
    """Declare the interpreter. "Any Python 3" and one exact version agree."""
    check_python_version(version, function, argument)
    before = env.find(PythonInterpreter)
    if before is not None and "" in (before.version, version):
        if version:
            env.replace(before, PythonInterpreter(version, span=span))
    else:
        env.declare_once("install.python", PythonInterpreter(version, span=span))
    if version:
        env.request_python("install.python", version, span)
