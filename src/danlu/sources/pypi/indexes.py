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
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import replace

from danlu.environment.types import PipIndex, PythonPackages
from danlu.errors import ResolveError, Span
from danlu.sandbox.machine_settings import (
    FORMAT_SETTINGS,
    MACHINE_SETTINGS,
    WHEN_LOCKING,
    Decision,
    iter_settings,
    keeps_variable,
)
from danlu.sandbox.network_env import SYSTEM_BUNDLES
from danlu.sandbox.pip_uv_config import (
    TRUE_VALUES,
    read_pip_options,
    read_uv_settings,
    split_values,
)
from danlu.sources.mirrors import replace_server
from danlu.sources.pypi.requirements import (
    RequirementLine,
    attach_span,
    iter_uv_projects,
    list_variables,
    read_declared,
)
from danlu.sources.pypi.uv_project import UvIndex
from danlu.util.safe_paths import confine_to_project
from danlu.util.urls import mask_credentials

if TYPE_CHECKING:
    from danlu.util.config import MirrorConfig


class NamedIndex(msgspec.Struct, frozen=True):
    """An index of ``[[tool.uv.index]]`` that a source of a package may name."""

    name: str
    url: str


class IndexSettings(msgspec.Struct, frozen=True):
    """The project's own index settings; empty fields leave the decision to the user's settings.

    ``default``, ``first`` and ``extra`` are index URLs; a package that one of ``first`` has is
    taken from no other. ``find_links`` are pages or directories, ``trusted`` hosts that are
    accessed without verifying certificates. ``named`` are for packages that name their index, and
    for locked files, whose hash decides.
    """

    default: str = ""
    first: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    no_index: bool = False
    prereleases: bool = False
    named: tuple[NamedIndex, ...] = ()


#: The packages that PyTorch's own indexes have in a build for each backend.
TORCH_PACKAGES = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "torchao", "torchcodec", "torchdata", "torchrec"),
        *("torchtext", "fbgemm-gpu"),
    }
)


def torch_index(backend: str) -> NamedIndex:
    """Return PyTorch's index for ``cpu``, a CUDA (``cu126``), ROCm (``rocm6.4``) or ``xpu``."""
    return NamedIndex(f"pytorch-{backend}", f"https://download.pytorch.org/whl/{backend}")


def read_index_settings(
    pip_index: PipIndex | None,
    declared: Iterable[PythonPackages],
    project: Path,
    environ: Mapping[str, str] | None = None,
    *,
    mirrors: Mapping[str, MirrorConfig] = MappingProxyType({}),
) -> IndexSettings:
    """Return the indexes in an environment's ``config.pip_index`` and ``declared`` packages.

    ``[[tool.uv.index]]`` of a declared ``pyproject.toml`` and its workspace counts.
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
    named: dict[str, NamedIndex] = {}
    for packages in declared:
        if packages.torch_backend:
            _add_index(torch_index(packages.torch_backend), named)
        for index, is_declared in _list_uv_indexes(packages, project):
            if index.name:
                _add_index(NamedIndex(index.name, index.url), named)
            if not is_declared or index.explicit:
                continue
            if index.default:
                options.setdefault("--index-url", []).append(index.url)
            else:
                first.append(index.url)
        for entry, where in read_declared(packages, project, environ):
            value = entry.value
            if entry.option in ("--find-links", "--index-url", "--extra-index-url"):
                value = to_index_url(value, _find_base(entry))
                _confine_index(value, project, where)
            if entry.option == "--index-url" and entry.line == 0:  # in the build file
                first.append(value)
            elif entry.option:
                if entry.option == "--index-url":
                    options.pop("--extra-index-url", None)  # pip replaces those before it
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
        named=tuple(
            NamedIndex(index.name, replace_server(index.url, mirrors, environ))
            for index in named.values()
        ),
    )


def _find_base(entry: RequirementLine) -> Path:
    """Return the directory of a relative path: for ``--find-links`` that of the file comes first.

    In pip, other paths are relative to the working directory.
    """
    beside = entry.file.parent
    is_beside = entry.option == "--find-links" and (beside / entry.value).exists()
    return beside if is_beside else entry.base


def _list_uv_indexes(packages: PythonPackages, project: Path) -> Iterator[tuple[UvIndex, bool]]:
    """Yield the indexes of all projects whose sources may apply, with absolute addresses.

    Each is with whether it applies to all packages: it is in a declared ``pyproject.toml``, or in
    the root of its workspace, and not among the settings of this machine's uv already.
    """
    for known, declared in iter_uv_projects(packages, project):
        for index, owner in known.indexes:
            address = to_index_url(index.url, owner.directory)
            with attach_span(packages.span if packages.span.line else None):
                _confine_index(address, project, packages.span)
            is_read = owner.directory == Path(os.path.abspath(project))
            is_flat = index.format != "simple" and (index.explicit or not is_read)
            if is_flat or (index.ignore_error_codes and not is_read):
                raise ResolveError(
                    f"{owner.place}: the index {mask_credentials(index.url)} has"
                    f" `{'format' if is_flat else 'ignore-error-codes'}`, which is used only for"
                    " all packages and in [tool.uv] of the project's own directory",
                    hint="put the build file next to it",
                )
            yield replace(index, url=address), declared and not is_read


def _add_index(index: NamedIndex, named: dict[str, NamedIndex]) -> None:
    if named.setdefault(index.name, index) != index:
        raise ResolveError(
            f"two indexes of [[tool.uv.index]] have the name {index.name!r}:"
            f" {mask_credentials(named[index.name].url)} and {mask_credentials(index.url)}",
            hint="give one of them another name",
        )


def find_unset_variables(
    declared: Iterable[PythonPackages], project: Path, environ: Mapping[str, str] | None = None
) -> list[tuple[str, Span]]:
    """Return the variables in the URLs of indexes that are not set, with their lines."""
    return [
        (name, where)
        for packages in declared
        for entry, where in read_declared(packages, project, environ)
        # In the build file, variables are not expanded.
        if entry.line and entry.option in ("--find-links", "--index-url", "--extra-index-url")
        for name in list_variables(entry.value)
    ]


def _confine_index(address: str, project: Path, where: Span) -> None:
    path = _file_url_path(address)
    if path is None:
        return
    hint = (
        "copy the packages into the project, or configure the directory for your account:"
        " UV_FIND_LINKS, UV_DEFAULT_INDEX, pip.conf"
    )
    confine_to_project(path, project, hint=hint, span=where if where.line else None)


def _url_host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


def to_index_url(text: str, base: Path) -> str:
    """Return an index as a URL: paths (also with ``~``) become ``file://``."""
    if "://" in text:
        return text
    return "file://" + quote(os.path.normpath(base / os.path.expanduser(text)))


def _list_variables_set_by_uv(settings: Mapping[str, Any]) -> set[str]:
    """Return the variables whose settings are already decided by uv's configuration files."""
    named = settings.get("index", [])
    listed = (
        [index for index in named if isinstance(index, dict)] if isinstance(named, list) else []
    )
    decided = {
        variable
        for setting in MACHINE_SETTINGS
        if settings.keys() & set(setting.uv)
        for variable in setting.variables
    }
    if any(index.get("default") for index in listed):
        decided.add("UV_DEFAULT_INDEX")
    if any(not index.get("default") for index in listed):
        decided.add("UV_INDEX")
    return decided


def _pip_variables(options: Mapping[str, str], project: Path) -> dict[str, str]:
    """Return pip's options as uv's variables."""
    proxy = options.get("proxy", "")
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    keyring = options.get("keyring-provider", "")
    cutoff = options.get("uploaded-prior-to", "")
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", cutoff):
        cutoff += "T00:00:00"  # uv takes a date as the end of that day, pip as its beginning
    variables = {
        **_address_variables(options, project),
        "UV_INSECURE_HOST": " ".join(split_values(options.get("trusted-host", ""))),
        "UV_NO_INDEX": "1" if options.get("no-index", "").lower() in TRUE_VALUES else "",
        "UV_PRERELEASE": "allow" if options.get("pre", "").lower() in TRUE_VALUES else "",
        "UV_EXCLUDE_NEWER": cutoff,
        "UV_KEYRING_PROVIDER": "subprocess" if keyring in ("subprocess", "import") else "",
        "UV_HTTP_TIMEOUT": options.get("timeout", ""),
        "UV_HTTP_RETRIES": options.get("retries", ""),
        "SSL_CLIENT_CERT": options.get("client-cert", ""),
        "HTTP_PROXY": proxy,
        "HTTPS_PROXY": proxy,
    }
    return {name: value for name, value in variables.items() if value}


def _address_variables(options: Mapping[str, str], project: Path) -> dict[str, str]:
    """Return pip's options that are lists of addresses as uv's variables."""
    variables = {}
    for setting in MACHINE_SETTINGS:
        if setting.separator:
            words = split_values(options.get(setting.pip[0], ""))
            # uv splits these lists at a character that paths can contain.
            variables[setting.variables[0]] = setting.separator.join(
                to_index_url(word, project).replace(setting.separator, quote(setting.separator))
                for word in words
            )
    return variables


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


def project_variables(indexes: IndexSettings, *, locked: bool = False) -> dict[str, str]:
    """Return the project's own settings as uv's variables.

    If the files are ``locked``, named indexes are searched for each of them: their hashes decide.
    """
    named = [f"{index.name}={index.url}" for index in indexes.named] if locked else []
    urls = dict.fromkeys((*named, *indexes.first, *indexes.extra))
    strategy = "unsafe-best-match" if named else "first-index" if indexes.first else ""
    variables = {
        "UV_DEFAULT_INDEX": indexes.default,
        "UV_INDEX": " ".join(url.replace(" ", "%20") for url in urls),
        "UV_FIND_LINKS": ",".join(url.replace(",", "%2C") for url in indexes.find_links),
        "UV_INSECURE_HOST": " ".join(indexes.trusted),
        "UV_NO_INDEX": "1" if indexes.no_index else "",
        "UV_PRERELEASE": "allow" if indexes.prereleases else "",
        "UV_INDEX_STRATEGY": strategy,
    }
    return {name: value for name, value in variables.items() if value}


def select_uv_settings(
    variables: Mapping[str, str], project: Path, decisions: Collection[Decision]
) -> dict[str, Any]:
    """Return the settings of uv's files that have one of ``decisions``, for a file of our own.

    Packages that uv may not take from wheels are not among them: with that, it would build some.
    """
    settings = read_uv_settings(variables, project)
    names = [name for setting in iter_settings(decisions) for name in setting.uv]
    return {
        name: settings[name] for name in names if name in settings and name not in FORMAT_SETTINGS
    }


def index_state(variables: Mapping[str, str], project: Path) -> list[Any]:
    """Return everything that determines what uv finds: equal values mean equal results.

    For local directories this includes their modification time, which changes with each new file.
    """
    own = {name: text for name, text in variables.items() if name.startswith("UV_")}
    places = [*own.get("UV_FIND_LINKS", "").split(","), *_list_index_urls(variables)]
    return [
        own,
        select_uv_settings(variables, project, WHEN_LOCKING),
        _modification_times(map(_file_url_path, places)),
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


def uv_environment(
    indexes: IndexSettings,
    project: Path,
    environ: Mapping[str, str] | None = None,
    *,
    decisions: Collection[Decision] = WHEN_LOCKING,
) -> dict[str, str]:
    """Return the complete environment for uv: this process's, with pip's and the project's
    indexes.

    ``project`` is uv's working directory: relative paths and uv's project files are resolved there.
    Of the settings of pip and uv it has those with one of ``decisions``. Lists of constraints and
    overrides are not among them (:mod:`danlu.sources.pypi.restrictions`).
    """
    given = os.environ if environ is None else environ
    settings, options = read_uv_settings(given, project), read_pip_options(given)
    env = {
        name: text
        for name, text in given.items()
        if keeps_variable(name, decisions) and name not in _FILE_VARIABLES
    }
    decided = _list_variables_set_by_uv(settings)
    ours = project_variables(indexes, locked="resolving" not in decisions)
    several = bool({"UV_INDEX", "UV_DEFAULT_INDEX"} & ours.keys())
    for name, value in {
        **_pip_variables(options, project),
        **_certificate_variables(options, env),
    }.items():
        names = _SYNONYMS.get(name, (name,))
        is_given = any(env.get(variable) or variable in decided for variable in names)
        if keeps_variable(name, decisions) and not is_given:
            env[name] = value
            several = several or name in ("UV_INDEX", "UV_DEFAULT_INDEX")
    for name, value in ours.items():
        if not keeps_variable(name, decisions):
            continue
        for alias in _SYNONYMS[name] if name == "UV_DEFAULT_INDEX" else ():
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


def searches_all_indexes(
    indexes: IndexSettings, project: Path, decisions: Collection[Decision]
) -> bool:
    """Return whether uv searches every index for a package, not only the first that has it."""
    variables = uv_environment(indexes, project, decisions=decisions)
    settings = select_uv_settings(variables, project, decisions)
    strategy = variables.get("UV_INDEX_STRATEGY") or settings.get("index-strategy", "")
    return str(strategy).startswith("unsafe-")


def may_skip_denied_index(indexes: IndexSettings, project: Path) -> bool:
    """Return whether uv could take a package from elsewhere if a configured server denies access.

    It needs a second index for that, or a directory or page of files.
    """
    variables = uv_environment(indexes, project)
    settings = select_uv_settings(variables, project, WHEN_LOCKING)
    named = settings.get("index", ())
    urls = {*_list_index_urls(variables), *settings.get("extra-index-url", ())}
    urls |= {index["url"] for index in named} | {settings.get("index-url", "")} - {""}
    defaults = [variables.get("UV_DEFAULT_INDEX"), variables.get("UV_INDEX_URL")]
    defaults += [settings.get("index-url"), *(index.get("default") for index in named)]
    has_links = bool(variables.get("UV_FIND_LINKS") or settings.get("find-links"))
    several = len(urls) + has_links + (not any(defaults)) > 1
    return several and any(_file_url_path(url) is None for url in urls)


#: The names of one setting, by each of them.
_SYNONYMS = {
    variable: setting.variables for setting in MACHINE_SETTINGS for variable in setting.variables
}
_FILE_VARIABLES = frozenset(
    variable for setting in MACHINE_SETTINGS if setting.files for variable in setting.variables
)
