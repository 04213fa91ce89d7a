"""The package indexes of a project, and the environment variables that make uv use them.

In order of precedence: the environment's ``config.pip_index``; options in its requirements files
and lists of packages; ``UV_*`` variables; uv's configuration files; pip's configuration. Each
option is decided separately, as pip does among its configuration files.

``--index-url`` in a list of packages is different: it applies to a call of
``install.python_packages``, but all calls are resolved together. Such an index is searched first,
and the others only for packages that it does not have.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec

from danlu.environment.types import PipIndex, PythonPackages
from danlu.errors import Span, UsageError
from danlu.sandbox.network_env import SYSTEM_BUNDLES
from danlu.sandbox.pip_indexes import render_uv_toml, select_uv_sources
from danlu.sandbox.pip_uv_config import (
    TRUE_VALUES,
    read_pip_options,
    read_uv_settings,
    split_values,
)
from danlu.sources.mirrors import replace_server
from danlu.sources.pypi.requirements import read_declared
from danlu.util.safe_paths import ProjectTree

if TYPE_CHECKING:
    from danlu.util.config import MirrorConfig

#: Variables of uv that refer to the user's own caches and environments; danlu sets its own.
_HOST_VARIABLES = (
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

#: Variables and settings of uv that choose versions, or leave packages out.
_RESOLVER_VARIABLES = (
    "UV_BUILD_CONSTRAINT",
    "UV_CONSTRAINT",
    "UV_EXCLUDE",
    "UV_EXCLUDE_NEWER",
    "UV_EXCLUDE_NEWER_PACKAGE",
    "UV_NO_VERIFY_HASHES",
    "UV_OVERRIDE",
    "UV_PRERELEASE",
    "UV_RESOLUTION",
)
_RESOLVER_SETTINGS = frozenset(
    {
        "constraint-dependencies",
        "exclude-dependencies",
        "exclude-newer",
        "exclude-newer-package",
        "no-verify-hashes",
        "override-dependencies",
        "prerelease",
        "resolution",
    }
)


class IndexSettings(msgspec.Struct, frozen=True):
    """The project's own index settings; empty fields leave the decision to the user's settings.

    ``default``, ``first`` and ``extra`` are index URLs; a package that one of ``first`` has is
    taken from no other. ``find_links`` are pages or directories, ``trusted`` hosts that are
    accessed without verifying certificates.
    """

    default: str = ""
    first: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    no_index: bool = False
    prereleases: bool = False


def read_index_settings(
    pip_index: PipIndex | None,
    declared: Iterable[PythonPackages],
    project: Path,
    environ: Mapping[str, str] | None = None,
    *,
    mirrors: Mapping[str, MirrorConfig] = MappingProxyType({}),
) -> IndexSettings:
    """Return the indexes in an environment's ``config.pip_index`` and ``declared`` packages.

    ``mirrors`` are the user's, which take the place of servers that these name.

    Raises :class:`UsageError`, with its location, for a local directory outside ``project``. Only
    the user's own configuration may name one: packages are installed from it, and untrusted build
    code can read it.
    """
    options: dict[str, list[str]] = {}
    if pip_index is not None:
        for address in (pip_index.url, *split_values(pip_index.extra_url)):
            _confine_index(address, project, pip_index.span)
    first: list[str] = []
    for packages in declared:
        for entry, where in read_declared(packages, project, environ):
            value = entry.value
            if entry.option in ("--find-links", "--index-url", "--extra-index-url"):
                value = to_index_url(value, entry.file.parent)
                _confine_index(value, project, where)
            if entry.option == "--index-url" and entry.line == 0:  # in the build file
                first.append(value)
            elif entry.option:
                options.setdefault(entry.option, []).append(value)
    default = next(iter(reversed(options.get("--index-url", []))), "")
    extra = tuple(options.get("--extra-index-url", ()))
    trusted = list(options.get("--trusted-host", ()))
    if pip_index is not None:
        default = pip_index.url or default
        extra = (*split_values(pip_index.extra_url), *extra)
        if pip_index.trust:
            trusted += [
                _url_host(url) for url in (pip_index.url, *split_values(pip_index.extra_url)) if url
            ]

    def locate(urls: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(replace_server(url, mirrors, environ) for url in urls))

    return IndexSettings(
        default=replace_server(default, mirrors, environ),
        first=locate(first),
        extra=locate(extra),
        find_links=locate(options.get("--find-links", ())),
        trusted=tuple(dict.fromkeys(trusted)),
        no_index="--no-index" in options,
        prereleases="--pre" in options,
    )


def _confine_index(address: str, project: Path, where: Span) -> None:
    path = _file_url_path(address)
    if path is None:
        return
    try:
        with ProjectTree(project) as tree:
            tree.real_path(path)
    except UsageError as error:
        error.hint = (
            "copy the packages into the project, or configure the directory for your account:"
            " UV_FIND_LINKS, UV_DEFAULT_INDEX, pip.conf"
        )
        error.span = where if where.line else None
        raise


def _url_host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


def to_index_url(text: str, base: Path) -> str:
    """Return an index as a URL: paths (also with ``~``) become ``file://``."""
    if "://" in text:
        return text
    return "file://" + quote(os.path.normpath(base / os.path.expanduser(text)))


def _variables_set_by_uv(settings: Mapping[str, Any]) -> set[str]:
    """Return the variables whose settings are already decided by uv's configuration files."""
    named = settings.get("index", [])
    listed = (
        [index for index in named if isinstance(index, dict)] if isinstance(named, list) else []
    )
    decided = set()
    if "index-url" in settings or any(index.get("default") for index in listed):
        decided.add("UV_DEFAULT_INDEX")
    if "extra-index-url" in settings or any(not index.get("default") for index in listed):
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


def _pip_variables(options: Mapping[str, str], project: Path) -> dict[str, str]:
    """Return pip's options as uv's variables."""

    def addresses(name: str, separator: str = " ") -> str:
        urls = [to_index_url(word, project) for word in split_values(options.get(name, ""))]
        # uv splits these lists at a character that paths can contain.
        return separator.join(url.replace(separator, quote(separator)) for url in urls)

    proxy = options.get("proxy", "")
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    keyring = options.get("keyring-provider", "")
    variables = {
        "UV_DEFAULT_INDEX": addresses("index-url"),
        "UV_INDEX": addresses("extra-index-url"),
        "UV_FIND_LINKS": addresses("find-links", ","),
        "UV_INSECURE_HOST": " ".join(split_values(options.get("trusted-host", ""))),
        "UV_NO_INDEX": "1" if options.get("no-index", "").lower() in TRUE_VALUES else "",
        "UV_PRERELEASE": "allow" if options.get("pre", "").lower() in TRUE_VALUES else "",
        "UV_KEYRING_PROVIDER": "subprocess" if keyring in ("subprocess", "import") else "",
        "UV_HTTP_TIMEOUT": options.get("timeout", ""),
        "UV_HTTP_RETRIES": options.get("retries", ""),
        "UV_CONSTRAINT": " ".join(
            word if "://" in word else os.path.normpath(project / os.path.expanduser(word))
            for word in split_values(options.get("constraint", ""))
        ),
        "SSL_CLIENT_CERT": options.get("client-cert", ""),
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
    }
    return {name: value for name, value in variables.items() if value}


def _certificate_variables(
    options: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return uv's certificates: pip's setting, or the system's (as in pip 24.2)."""
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
    if any(os.path.exists(bundle) for bundle in SYSTEM_BUNDLES):
        return {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
    return {}


def project_variables(indexes: IndexSettings) -> dict[str, str]:
    """Return the project's own settings as uv's variables."""
    variables = {
        "UV_DEFAULT_INDEX": indexes.default,
        "UV_INDEX": " ".join(
            url.replace(" ", "%20") for url in dict.fromkeys((*indexes.first, *indexes.extra))
        ),
        "UV_FIND_LINKS": ",".join(url.replace(",", "%2C") for url in indexes.find_links),
        "UV_INSECURE_HOST": " ".join(indexes.trusted),
        "UV_NO_INDEX": "1" if indexes.no_index else "",
        "UV_PRERELEASE": "allow" if indexes.prereleases else "",
        "UV_INDEX_STRATEGY": "first-index" if indexes.first else "",
    }
    return {name: value for name, value in variables.items() if value}


def without_resolver_settings(
    variables: Mapping[str, str], project: Path, settings_file: Path
) -> dict[str, str]:
    """Return uv's environment for installing what is locked already.

    The user's constraints and overrides were applied when the lock was made. Here uv would refuse
    them next to hashes, or leave a locked package out. If its configuration files have some, those
    of their settings that say where packages are go to ``settings_file``, which uv reads instead.
    """
    env = {name: text for name, text in variables.items() if name not in _RESOLVER_VARIABLES}
    settings = read_uv_settings(env, project)
    if settings.keys() & _RESOLVER_SETTINGS:
        kept = select_uv_sources(settings)
        if "keyring-provider" in settings:
            kept["keyring-provider"] = settings["keyring-provider"]
        settings_file.write_text(render_uv_toml(kept), encoding="utf-8")
        env["UV_CONFIG_FILE"] = str(settings_file)
    return env


def index_state(variables: Mapping[str, str], project: Path) -> list[Any]:
    """Return everything that determines what uv finds: equal values mean equal results.

    For local directories this includes their modification time, which changes with each new file,
    and for files of constraints theirs.
    """
    own = {name: text for name, text in variables.items() if name.startswith(("UV_", "PIP_"))}
    places = [*own.get("UV_FIND_LINKS", "").split(","), *_list_index_urls(variables)]
    listed = [
        project / path
        for name in ("UV_CONSTRAINT", "UV_OVERRIDE")
        for path in split_values(own.get(name, ""))
    ]
    return [
        own,
        read_uv_settings(variables, project),
        _modification_times((*map(_file_url_path, places), *listed)),
    ]


def local_page_times(variables: Mapping[str, str], names: Iterable[str]) -> dict[str, int]:
    """Return the modification times of the pages that local indexes have for packages ``names``."""
    roots = [
        root for url in _list_index_urls(variables) if (root := _file_url_path(url)) is not None
    ]
    pages = [root / name / page for root in roots for name in names for page in ("", "index.html")]
    return _modification_times(pages)


def _list_index_urls(variables: Mapping[str, str]) -> list[str]:
    named = (
        variables.get(variable, "") for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX")
    )
    return [
        word
        for text in (*named, variables.get("UV_EXTRA_INDEX_URL", ""))
        for word in split_values(text)
    ]


def _file_url_path(address: str) -> Path | None:
    """Return the path of a ``file://`` URL, also of a named one (``NAME=URL``)."""
    start = address.find("file://")
    return Path(unquote(address[start + len("file://") :])) if start >= 0 else None


def _modification_times(paths: Iterable[Path | None]) -> dict[str, int]:
    times = {}
    for path in paths:
        if path is not None:
            try:
                times[str(path)] = path.stat().st_mtime_ns
            except OSError:
                times[str(path)] = 0
    return times


_ALIASES = {
    "UV_DEFAULT_INDEX": ("UV_INDEX_URL",),
    "UV_INDEX": ("UV_EXTRA_INDEX_URL",),
    "UV_SYSTEM_CERTS": ("UV_NATIVE_TLS",),
    "UV_NATIVE_TLS": ("UV_SYSTEM_CERTS",),
    "HTTP_PROXY": ("http_proxy", "ALL_PROXY", "all_proxy"),
    "HTTPS_PROXY": ("https_proxy", "ALL_PROXY", "all_proxy"),
}


def uv_environment(
    indexes: IndexSettings, project: Path, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the complete environment for uv: this process's, with pip's and the project's
    indexes.

    ``project`` is uv's working directory: relative paths and uv's project files are resolved there.
    """
    env = dict(os.environ if environ is None else environ)
    settings = read_uv_settings(env, project)
    options = read_pip_options(env)
    for name in _HOST_VARIABLES:
        env.pop(name, None)
    decided = _variables_set_by_uv(settings)
    ours = project_variables(indexes)
    several = bool({"UV_INDEX", "UV_DEFAULT_INDEX"} & ours.keys())
    for name, value in {
        **_pip_variables(options, project),
        **_certificate_variables(options, env),
    }.items():
        names = (name, *_ALIASES.get(name, ()))
        if not any(env.get(variable) or variable in decided for variable in names):
            env[name] = value
            several = several or name in ("UV_INDEX", "UV_DEFAULT_INDEX")
    for name, value in ours.items():
        for alias in _ALIASES.get(name, ()) if name == "UV_DEFAULT_INDEX" else ():
            env.pop(alias, None)
        together = name in ("UV_INDEX", "UV_FIND_LINKS", "UV_INSECURE_HOST")
        separator = "," if name == "UV_FIND_LINKS" else " "
        env[name] = separator.join(filter(None, (value, env.get(name) if together else "")))
    # pip searches all indexes and takes the best version; uv stops at the first index that has the
    # package. Indexes from pip's settings are searched like pip does, those from uv's like uv does.
    if several and "UV_INDEX_STRATEGY" not in decided:
        env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    env["UV_NO_PROGRESS"] = "1"
    env["NO_COLOR"] = "1"
    env["UV_PYTHON_DOWNLOADS"] = "never"
    return env
