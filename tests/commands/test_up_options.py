"""Options of ``danlu up``: ports, names of services and environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.commands.environments.manage import default_name
from danlu.commands.environments.spec import name_services, parse_port
from danlu.engine.environment_directory import PortForward, check_environment_name
from danlu.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8888", PortForward(8888, 8888)),
        ("80:8888", PortForward(8888, 80)),
        ("0.0.0.0:80:8888", PortForward(8888, 80, "0.0.0.0")),
        ("[::1]:80:8888", PortForward(8888, 80, "::1")),
    ],
)
def test_ports_are_parsed(text: str, expected: PortForward) -> None:
    assert parse_port(text) == expected


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "1:", ":1", "1:2:3", "1:0", "-1", "1.5"])
def test_an_invalid_port_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="invalid port"):
        parse_port(text)


def test_services_are_named_after_their_programs() -> None:
    services = name_services((("/bin/tensorboard", "x"), ("tensorboard",), ("a b",)))
    assert [service.name for service in services] == ["tensorboard", "tensorboard#2", "a-b"]


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/home/me/Digits", "digits"),
        ("/tmp/a b", "a-b"),
        ("/", "environment"),
        ("/x/数据", "environment"),
    ],
)
def test_an_environment_is_named_after_its_directory(directory: str, expected: str) -> None:
    assert check_environment_name(default_name(Path(directory))) == expected


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "A", "-a", "a" * 64, "a\n"])
def test_an_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="invalid environment name"):
        check_environment_name(name)
