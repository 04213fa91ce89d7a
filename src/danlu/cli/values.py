"""Values of options that have a form of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from danlu.errors import UsageError

__all__ = ["Bytes", "parse_bytes", "parse_secrets", "parse_ssh"]

_FORM = "secrets look like id=token,src=PATH or id=token,env=NAME"


@contextmanager
def parse_secrets(texts: Sequence[str]) -> Iterator[tuple[tuple[str, Path], ...]]:
    """``id=…,src=PATH`` values as (id, file).

    ``env=NAME`` puts the variable's value in a file of our own, readable by us only and gone
    afterwards. Raises :class:`UsageError` for a wrong form or a file that cannot be read.
    """
    import shutil

    found: dict[str, Path] = {}
    private: Path | None = None
    try:
        for text in texts:
            name, kind, value = _parts(text)
            if name in found:
                raise UsageError(f"there are two secrets with the id {name!r}")
            if kind == "env":
                private = private or _private_directory()
                found[name] = _from_variable(value, private / str(len(found)))
            else:
                found[name] = _from_file(value)
        yield tuple(found.items())
    finally:
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)


def _private_directory() -> Path:
    import tempfile  # dear, and only these secrets need it

    return Path(tempfile.mkdtemp(prefix="danlu-secrets-"))


def _parts(text: str) -> tuple[str, str, str]:
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if "source" in fields:
        fields["src"] = fields.pop("source")
    fields.pop("type", None)  # docker's type=file and type=env say nothing more
    name = fields.pop("id", "")
    if not name or len(fields) > 1 or not set(fields) <= {"src", "env"}:
        raise UsageError(f"{text!r} is not a secret", hint=_FORM)
    kind, value = next(iter(fields.items()), ("env", name))
    return name, kind, value


def _from_file(value: str) -> Path:
    path = Path(value).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"there is no file {value} for a secret", hint=_FORM)
    if not os.access(path, os.R_OK):
        raise UsageError(f"the secret's file {value} cannot be read")
    return path


def _from_variable(name: str, path: Path) -> Path:
    value = os.environ.get(name)
    if value is None:
        raise UsageError(f"the variable {name} of a secret is not set", hint=_FORM)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.fsencode(value))
    return path


def parse_ssh(text: str) -> Path:
    """``default`` or ``default=SOCKET`` as the socket of an ssh agent.

    Raises :class:`UsageError` for another form, and where no agent is there.
    """
    name, equals, socket = text.partition("=")
    if name != "default":
        raise UsageError(
            f"there is no ssh agent {name!r}: steps know one, default",
            hint="it looks like --ssh default or --ssh default=SOCKET",
        )
    if not equals:
        from danlu.sandbox import ssh

        return ssh.agent()
    path = Path(socket).expanduser().absolute()
    if not path.is_socket():
        raise UsageError(
            f"{socket} is no socket of an ssh agent",
            hint="keys are given to an agent, with ssh-add, and never to a build",
        )
    return path


_UNITS = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}


def parse_bytes(text: str) -> int:
    """``20GB``, ``500M``, ``1GiB`` or a plain number, in bytes.

    Raises :class:`UsageError` for anything else.
    """
    import re

    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"{text!r} is not a size", hint="sizes look like 500MB, 20GB or 1GiB")
    unit = _UNITS[match[2]]
    if match[3]:
        unit = 1 << (10 * " kmgt".index(match[2]))
    return int(float(match[1]) * unit)


class Bytes(click.ParamType[int]):
    """A size in bytes, with a unit."""

    name = "size"

    def convert(self, value: object, param: object, ctx: object) -> int:
        """The bytes that ``value`` says."""
        return value if isinstance(value, int) else parse_bytes(str(value))
