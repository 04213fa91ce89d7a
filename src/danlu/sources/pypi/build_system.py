"""Read the ``build-system`` table of a source tree: which backend builds it, and with what."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import msgspec

from danlu.errors import ResolveError
from danlu.util.decoding import convert_value

#: PEP 518: what to use without a ``build-system`` table.
_DEFAULT_REQUIRES = ("setuptools>=40.8.0",)
_DEFAULT_BACKEND = "setuptools.build_meta:__legacy__"


class BuildSystem(msgspec.Struct, frozen=True, rename="kebab"):
    """The table ``build-system`` of a ``pyproject.toml`` (PEP 518)."""

    requires: tuple[str, ...] = _DEFAULT_REQUIRES
    build_backend: str = _DEFAULT_BACKEND
    backend_path: tuple[str, ...] = ()

    def to_variables(self) -> dict[str, str]:
        """Return the variables that a script calling the backend's hooks reads."""
        path = msgspec.json.encode(self.backend_path).decode()
        return {"BACKEND": self.build_backend, "BACKEND_PATH": path}


#: Start of a Python script that imports the backend.
LOAD_BACKEND = """\
import importlib, json, os, sys
sys.path[:0] = [os.path.abspath(path) for path in json.loads(os.environ["BACKEND_PATH"])]
module, _, name = os.environ["BACKEND"].partition(":")
backend = importlib.import_module(module)
for part in filter(None, name.split(".")):
    backend = getattr(backend, part)
"""


def parse_build_system(text: str, package: str) -> BuildSystem:
    """Return the build system in a ``pyproject.toml``, which anybody may have written.

    Raises :class:`ResolveError` if it is invalid; ``package`` is the name in the message.
    """
    try:
        document: dict[str, Any] = tomllib.loads(text)
        system = convert_value(document.get("build-system", {}), BuildSystem)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ResolveError(f"pyproject.toml of {package} is invalid: {error}") from error
    # PEP 517: directories of backend-path are relative to the source tree, and inside it.
    outside = [path for path in system.backend_path if path.startswith("/") or ".." in path]
    if outside or not re.fullmatch(r"[\w.]+(:[\w.]+)?", system.build_backend):
        raise ResolveError(f"pyproject.toml of {package} names an invalid build backend")
    return system
