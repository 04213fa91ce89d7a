"""Files of vendors' archives (CRAN, go.dev, npm …), from the mirrors that are configured.

A file is named by its mirror and its path there, which is the same on every mirror, so that locks
contain no addresses. In order of precedence: the mirror that the build file sets, the user's
(``DANLU_MIRROR_NAME``, ``[mirrors.NAME]`` in ``config.toml``, variables of other tools), the
vendor's own server; for npm, the registry that npm is configured with. A mirror is a URL or a
directory of this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from danlu.errors import (
    ChecksumError,
    DanluError,
    MachineError,
    OutsideError,
    TemporaryError,
    UsageError,
)
from danlu.sources.http import FetchedFile, fetch, redact_url
from danlu.util.urls import mask_credentials

if TYPE_CHECKING:
    from danlu.util.config import Configuration, MirrorConfig

#: The vendors' own servers.
VENDORS: Mapping[str, str] = MappingProxyType(
    {
        "cran": "https://cloud.r-project.org",
        "go": "https://go.dev/dl",
        "julia": "https://julialang-s3.julialang.org/bin",
        "julia-packages": "https://pkg.julialang.org",
        "nodejs": "https://nodejs.org/dist",
        "openvsx": "https://open-vsx.org",
        "python": "https://github.com/astral-sh/python-build-standalone/releases/download",
        "rstudio": "https://download2.rstudio.org/server",
        "rust": "https://static.rust-lang.org/dist",
    }
)

#: Environment variables of other tools that set a mirror, and what to append to their value.
_VARIABLES = {
    "julia-packages": ("JULIA_PKG_SERVER", ""),
    "nodejs": ("NODEJS_ORG_MIRROR", ""),
    "npm": ("NPM_CONFIG_REGISTRY", ""),
    "openvsx": ("OVSX_REGISTRY_URL", ""),
    "python": ("UV_PYTHON_INSTALL_MIRROR", ""),
    "rust": ("RUSTUP_DIST_SERVER", "/dist"),
}

#: npm is an interpreter and many files: on a busy machine it takes seconds to start.
_NPM_TIMEOUT_SECONDS = 60


def list_mirrors(
    name: str,
    config: Configuration,
    declared: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return the URLs of a mirror in the order to try them; ``declared`` are the build file's.

    Directories are ``file`` URLs. Raises :class:`UsageError` naming the setting that is invalid,
    and :class:`MachineError` if none is configured.
    """
    environ = os.environ if environ is None else environ
    configured = config.mirrors.get(name)
    variable, suffix = _VARIABLES.get(name, ("", ""))
    other = environ.get(variable, "").rstrip("/")
    if name == "julia-packages" and other and "://" not in other:
        other = f"https://{other}"  # Julia takes a host as well
    choices = (
        ("the build file", (declared.get(name, ""),)),
        (_variable_name(name), (environ.get(_variable_name(name), ""),)),
        (f"[mirrors.{name}]", configured.urls if configured else ()),
        (variable, (other and other + suffix,)),
        ("", (VENDORS.get(name, ""),)),
    )
    for source, texts in choices:
        if any(texts):
            return tuple(_normalise_mirror(text, source) for text in texts if text)
    if name == "npm" and (registry := _read_npm_registry(environ)):
        return (_normalise_mirror(registry, "npm's configuration"),)
    raise MachineError(f"no mirror is configured for {name}", hint=suggest_mirror(name))


def _read_npm_registry(environ: Mapping[str, str]) -> str:
    """Return the registry that npm is configured with; empty if npm is not installed."""
    npm = shutil.which("npm", path=environ.get("PATH", ""))
    if npm is None:
        return ""
    # In the root directory: a project's .npmrc must not decide where a build file's files are from.
    try:
        completed = subprocess.run(
            [npm, "config", "get", "registry"],
            cwd="/",
            env=dict(environ),
            capture_output=True,
            text=True,
            check=False,
            timeout=_NPM_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise TemporaryError(
            f"npm did not name its registry within {_NPM_TIMEOUT_SECONDS} s",
            hint=suggest_mirror("npm"),
        ) from error
    registry = completed.stdout.strip()
    return registry if urlsplit(registry).scheme in ("http", "https") else ""


def replace_server(
    url: str, mirrors: Mapping[str, MirrorConfig], environ: Mapping[str, str] | None = None
) -> str:
    """Return a URL of the build file on the mirror that the user set for its server, if any.

    The server is a host, in ``config.toml`` also with the beginning of a path:
    ``[mirrors."download.pytorch.org/whl"]``. Credentials of the URL are not sent to a mirror.
    Raises :class:`UsageError` for an invalid mirror, and for a path that leaves the directory
    which is the mirror.
    """
    environ = os.environ if environ is None else environ
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return url
    place = parts.hostname + parts.path.rstrip("/")
    choices = {name: mirror.urls[0] for name, mirror in mirrors.items() if mirror.urls}
    if chosen := environ.get(_variable_name(parts.hostname)):
        choices[parts.hostname] = chosen
    for name in sorted(choices, key=len, reverse=True):
        prefix = name.rstrip("/")
        if place == prefix or place.startswith(f"{prefix}/"):
            mirror = _normalise_mirror(choices[name], f"[mirrors.{name}]")
            return _join_path(mirror, place[len(prefix) :], parts.query)
    return url


def _join_path(mirror: str, path: str, query: str) -> str:
    if not mirror.startswith("file:"):
        return f"{mirror}{path}?{query}" if query else mirror + path
    # The path may be a stranger's (an included build file), and the directory is this machine's.
    parts = unquote(path).split("/")
    if ".." in parts or any("\0" in part for part in parts):
        raise UsageError(
            f"invalid path '{path}' for the mirror {mirror}",
            hint="the path must name a file in the mirror's directory",
        )
    return mirror + path


async def fetch_from_server(
    url: str,
    sha256: str | None,
    *,
    mirrors: Mapping[str, MirrorConfig],
    cache: Path,
    offline: bool = False,
) -> FetchedFile:
    """Return the file at a URL of the build file, from the mirror that the user set if any.

    Raises as :func:`danlu.sources.http.fetch`.
    """
    address = replace_server(url, mirrors)
    try:
        return await fetch(address, sha256, cache=cache, offline=offline)
    except ChecksumError as error:
        if address != url:
            error.hint = "the file on the mirror is not the file that was locked or declared"
        raise
    except OutsideError as error:
        host = urlsplit(url).hostname or ""
        if address == url and not offline and not is_missing(error):
            error.hint = (
                f"check the URL, the network and the proxy settings, or {_describe_mirror(host)}"
            )
        raise


def _describe_mirror(name: str) -> str:
    """Return how to set a mirror for a host."""
    variable = _variable_name(name)
    return (
        f'set a mirror in config.toml: [mirrors."{name}"] urls = ["https://…"], or with {variable}'
    )


def _normalise_mirror(text: str, source: str) -> str:
    url = text.rstrip("/") or "/"
    if url.startswith(("/", "~")):
        return Path(url).expanduser().as_uri()
    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise UsageError(
            f"{source}: invalid mirror '{mask_credentials(text)}'",
            hint="set an http, https or file URL, or the absolute path of a directory",
        )
    return url


def _variable_name(name: str) -> str:
    return f"DANLU_MIRROR_{re.sub('[-.]', '_', name.upper())}"


async def fetch_archive(
    name: str,
    path: str,
    sha256: str,
    *,
    mirrors: Sequence[str],
    cache: Path,
    offline: bool = False,
) -> FetchedFile:
    """Return a locked archive, which is cached by its hash.

    Raises as :func:`fetch_from_mirror`, but :class:`OutsideError` if no mirror has it.
    """
    file = path.rpartition("/")[2]
    try:
        return await fetch_from_mirror(
            name, path, sha256, mirrors=mirrors, cache=cache, offline=offline
        )
    except FileNotFoundError as error:
        hosts = ", ".join(redact_url(mirror) for mirror in mirrors)
        raise OutsideError(f"{file} not found on {hosts}", hint=suggest_mirror(name)) from error


async def fetch_from_mirror(
    name: str,
    path: str,
    sha256: str | None,
    *,
    mirrors: Sequence[str],
    cache: Path,
    offline: bool = False,
) -> FetchedFile:
    """Return the file ``path`` of the first of ``mirrors`` that has it.

    Raises :class:`FileNotFoundError` if a mirror answered and none has it, :class:`ChecksumError`
    if it is another file than ``sha256``, :class:`OutsideError` if no mirror can be reached.
    """
    problems: list[DanluError] = []
    for mirror in mirrors:
        try:
            url = _locate_file(mirror, path)
            return await fetch(url, sha256, cache=cache, offline=offline)
        except ChecksumError as error:
            file = path.rpartition("/")[2]
            error.hint = f"{file} on the mirror is not the file that was published or locked; "
            error.hint += suggest_mirror(name)
            raise
        except OutsideError as error:
            problems.append(error)
    if any(is_missing(error) for error in problems):
        raise FileNotFoundError(path)
    kind = TemporaryError if isinstance(problems[-1], TemporaryError) else OutsideError
    hosts = ", ".join(redact_url(mirror) for mirror in mirrors)
    file = path.rpartition("/")[2]
    raise kind(
        f"cannot fetch {file} from {hosts}",
        details=tuple(error.message for error in problems),
        hint="build once without --offline" if offline else suggest_mirror(name),
    )


async def read_from_mirror(
    name: str, path: str, *, mirrors: Sequence[str], cache: Path, offline: bool = False
) -> bytes:
    """Return the content of an index file, which is not cached.

    Raises as :func:`fetch_from_mirror`.
    """
    pages = cache / "pages"
    fetched = await fetch_from_mirror(
        name, path, None, mirrors=mirrors, cache=pages, offline=offline
    )
    data = fetched.path.read_bytes()
    fetched.path.unlink(missing_ok=True)
    return data


def is_missing(error: DanluError) -> bool:
    """Return whether a server answered that it does not have a file."""
    # Servers word the reason as they like.
    return bool(re.search(r"responded with (404|410)\b|No such file or directory$", error.message))


def _locate_file(mirror: str, path: str) -> str:
    """Return the URL of a file; a directory may have it without the directories of ``path``."""
    if not mirror.startswith("file:"):
        return f"{mirror}/{path}"
    directory = Path(unquote(urlsplit(mirror).path))
    flat = directory / path.rpartition("/")[2]
    return (flat if flat.is_file() else directory / path).as_uri()


def suggest_mirror(name: str) -> str:
    """Return the hint for a mirror that cannot be reached or does not have what was asked for."""
    names = [_variable_name(name), *(_VARIABLES[name][:1] if name in _VARIABLES else ())]
    return (
        f'set a mirror or a directory in config.toml: [mirrors.{name}] urls = ["https://…"], '
        f"or with {' or '.join(names)}"
    )
