"""Where Python packages come from for one project, and the same in the variables uv reads.

Who decides, from the strongest: the environment's ``config.pip_index``; options in its
requirements files; ``UV_*`` variables; uv's configuration files; pip's configuration. Each option
is decided on its own, as pip does between its files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from danlu.environment.types import PipIndex
from danlu.sandbox.installerconfig import TRUE, pip_options, uv_settings, words
from danlu.sandbox.trust import SYSTEM_BUNDLES
from danlu.sources.pypi.requirements import read_requirements

__all__ = [
    "Indexes",
    "as_address",
    "index_state",
    "indexes_of",
    "local_pages",
    "project_variables",
    "uv_environment",
]

#: Variables of uv's that say where the host's own things are; danlu decides those.
_HOST = (
    "UV_CACHE_DIR",
    "UV_COMPILE_BYTECODE",
    "UV_CUSTOM_COMPILE_COMMAND",
    "UV_LINK_MODE",
    "UV_NO_CACHE",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_REQUIRE_HASHES",
    "UV_SYSTEM_PYTHON",
    "UV_WORKING_DIR",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONHOME",
    "PYTHONPATH",
)


class Indexes(msgspec.Struct, frozen=True):
    """What a project itself says of package indexes; all empty leaves it to the user's settings.

    ``default`` and ``extra`` are index addresses, ``find_links`` pages or directories,
    ``trusted`` hosts reached without verified certificates.
    """

    default: str = ""
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    no_index: bool = False
    prereleases: bool = False


def indexes_of(
    pip_index: PipIndex | None,
    requirements: Iterable[Path],
    environ: Mapping[str, str] | None = None,
) -> Indexes:
    """The indexes that an environment's ``config.pip_index`` and requirements files name."""
    found: dict[str, list[str]] = {}
    for path in requirements:
        for entry in read_requirements(path, environ):
            if entry.option:
                value = entry.value
                if entry.option in ("--find-links", "--index-url", "--extra-index-url"):
                    value = as_address(value, entry.file.parent)
                found.setdefault(entry.option, []).append(value)
    default = next(iter(reversed(found.get("--index-url", []))), "")
    extra = tuple(found.get("--extra-index-url", ()))
    trusted = list(found.get("--trusted-host", ()))
    if pip_index is not None:
        default = pip_index.url or default
        extra = (*words(pip_index.extra_url), *extra)
        if pip_index.trust:
            trusted += [_host(one) for one in (pip_index.url, *words(pip_index.extra_url)) if one]
    return Indexes(
        default=default,
        extra=tuple(dict.fromkeys(extra)),
        find_links=tuple(dict.fromkeys(found.get("--find-links", ()))),
        trusted=tuple(dict.fromkeys(trusted)),
        no_index="--no-index" in found,
        prereleases="--pre" in found,
    )


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


def as_address(text: str, base: Path) -> str:
    """An index as an address: paths (``~`` too) become ``file://``, others stay as they are."""
    if "://" in text:
        return text
    return "file://" + quote(os.path.normpath(base / os.path.expanduser(text)))


def _uv_decides(settings: Mapping[str, Any]) -> set[str]:
    """The variables of uv's that its files have already answered."""
    named = settings.get("index", [])
    listed = [one for one in named if isinstance(one, dict)] if isinstance(named, list) else []
    decided = set()
    if "index-url" in settings or any(one.get("default") for one in listed):
        decided.add("UV_DEFAULT_INDEX")
    if "extra-index-url" in settings or any(not one.get("default") for one in listed):
        decided.add("UV_INDEX")
    for key, variable in (
        ("find-links", "UV_FIND_LINKS"),
        ("no-index", "UV_NO_INDEX"),
        ("index-strategy", "UV_INDEX_STRATEGY"),
        ("allow-insecure-host", "UV_INSECURE_HOST"),
        ("native-tls", "UV_SYSTEM_CERTS"),
        ("system-certs", "UV_SYSTEM_CERTS"),
        ("prerelease", "UV_PRERELEASE"),
        ("keyring-provider", "UV_KEYRING_PROVIDER"),
    ):
        if key in settings:
            decided.add(variable)
    return decided


def _from_pip(options: Mapping[str, str], project: Path) -> dict[str, str]:
    """pip's options in uv's variables."""

    def addresses(name: str, separator: str = " ") -> str:
        found = [as_address(one, project) for one in words(options.get(name, ""))]
        # uv parts these lists by a character that a path may hold.
        return separator.join(one.replace(separator, quote(separator)) for one in found)

    proxy = options.get("proxy", "")
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    keyring = options.get("keyring-provider", "")
    found = {
        "UV_DEFAULT_INDEX": addresses("index-url"),
        "UV_INDEX": addresses("extra-index-url"),
        "UV_FIND_LINKS": addresses("find-links", ","),
        "UV_INSECURE_HOST": " ".join(words(options.get("trusted-host", ""))),
        "UV_NO_INDEX": "1" if options.get("no-index", "").lower() in TRUE else "",
        "UV_PRERELEASE": "allow" if options.get("pre", "").lower() in TRUE else "",
        "UV_KEYRING_PROVIDER": "subprocess" if keyring in ("subprocess", "import") else "",
        "UV_HTTP_TIMEOUT": options.get("timeout", ""),
        "UV_HTTP_RETRIES": options.get("retries", ""),
        "UV_CONSTRAINT": addresses("constraint").replace("file://", ""),
        "SSL_CLIENT_CERT": options.get("client-cert", ""),
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
    }
    return {name: value for name, value in found.items() if value}


def _certificates(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """What uv is to trust: what pip was told, else the system's bundle (as pip does since 24.2)."""
    if environ.get("SSL_CERT_FILE") or environ.get("SSL_CERT_DIR"):
        return {}
    for named in (
        options.get("cert", ""),
        environ.get("REQUESTS_CA_BUNDLE", ""),
        environ.get("CURL_CA_BUNDLE", ""),
    ):
        if named:
            path = os.path.expanduser(named)
            return {"SSL_CERT_DIR" if os.path.isdir(path) else "SSL_CERT_FILE": path}
    if any(os.path.exists(one) for one in SYSTEM_BUNDLES):
        return {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
    return {}


def project_variables(indexes: Indexes) -> dict[str, str]:
    """What the project itself says, in uv's variables."""
    found = {
        "UV_DEFAULT_INDEX": indexes.default,
        "UV_INDEX": " ".join(one.replace(" ", "%20") for one in indexes.extra),
        "UV_FIND_LINKS": ",".join(one.replace(",", "%2C") for one in indexes.find_links),
        "UV_INSECURE_HOST": " ".join(indexes.trusted),
        "UV_NO_INDEX": "1" if indexes.no_index else "",
        "UV_PRERELEASE": "allow" if indexes.prereleases else "",
    }
    return {name: value for name, value in found.items() if value}


def index_state(variables: Mapping[str, str], project: Path) -> list[Any]:
    """All that decides what uv finds, given its variables: equal where that is the same.

    Of directories on this machine that is their time, which a new file in them changes.
    """
    own = {name: text for name, text in variables.items() if name.startswith(("UV_", "PIP_"))}
    places = [*own.get("UV_FIND_LINKS", "").split(","), *_indexes_named(variables)]
    return [own, uv_settings(variables, project), _times(_local(one) for one in places)]


def local_pages(variables: Mapping[str, str], names: Iterable[str]) -> dict[str, int]:
    """The times of the pages that indexes on this machine have of packages ``names``."""
    roots = [root for one in _indexes_named(variables) if (root := _local(one)) is not None]
    pages = [root / name / page for root in roots for name in names for page in ("", "index.html")]
    return _times(pages)


def _indexes_named(variables: Mapping[str, str]) -> list[str]:
    named = (variables.get(one, "") for one in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX"))
    return [
        word for text in (*named, variables.get("UV_EXTRA_INDEX_URL", "")) for word in words(text)
    ]


def _local(address: str) -> Path | None:
    """The path of ``file://`` addresses, also of those that are given a name (``NAME=URL``)."""
    start = address.find("file://")
    return Path(unquote(address[start + len("file://") :])) if start >= 0 else None


def _times(paths: Iterable[Path | None]) -> dict[str, int]:
    found = {}
    for path in paths:
        if path is not None:
            try:
                found[str(path)] = path.stat().st_mtime_ns
            except OSError:
                found[str(path)] = 0
    return found


_ALIASES = {
    "UV_DEFAULT_INDEX": ("UV_INDEX_URL",),
    "UV_INDEX": ("UV_EXTRA_INDEX_URL",),
    "UV_SYSTEM_CERTS": ("UV_NATIVE_TLS",),
    "UV_NATIVE_TLS": ("UV_SYSTEM_CERTS",),
    "HTTP_PROXY": ("http_proxy", "ALL_PROXY", "all_proxy"),
    "HTTPS_PROXY": ("https_proxy", "ALL_PROXY", "all_proxy"),
}


def uv_environment(
    indexes: Indexes, project: Path, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The whole environment to run uv in: this process's, with pip's and the project's indexes.

    ``project`` is where uv will run: relative paths start there, and so do uv's own files.
    """
    env = dict(os.environ if environ is None else environ)
    settings = uv_settings(env, project)
    options = pip_options(env)
    for name in _HOST:
        env.pop(name, None)
    decided = _uv_decides(settings)
    ours = project_variables(indexes)
    several = bool({"UV_INDEX", "UV_DEFAULT_INDEX"} & ours.keys())
    for name, value in {**_from_pip(options, project), **_certificates(options, env)}.items():
        names = (name, *_ALIASES.get(name, ()))
        if not any(env.get(one) or one in decided for one in names):
            env[name] = value
            several = several or name in ("UV_INDEX", "UV_DEFAULT_INDEX")
    for name, value in ours.items():
        for alias in _ALIASES.get(name, ()) if name == "UV_DEFAULT_INDEX" else ():
            env.pop(alias, None)
        together = name in ("UV_INDEX", "UV_FIND_LINKS", "UV_INSECURE_HOST")
        separator = "," if name == "UV_FIND_LINKS" else " "
        env[name] = separator.join(filter(None, (value, env.get(name) if together else "")))
    # pip looks at all indexes and takes the best; uv stops at the first that has the name. Indexes
    # named in pip's words are searched in pip's way, those named in uv's words in uv's.
    if several and "UV_INDEX_STRATEGY" not in decided:
        env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    env["UV_NO_PROGRESS"] = "1"
    env["NO_COLOR"] = "1"
    env["UV_PYTHON_DOWNLOADS"] = "never"
    return env
