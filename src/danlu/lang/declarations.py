"""How each built function becomes a declaration or a step, with the checks that types lack."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from danlu.environment.types import (
    AptSource,
    Base,
    Copy,
    Entrypoint,
    Environ,
    GitConfig,
    Http,
    Jupyter,
    Other,
    Owner,
    PipIndex,
    Python,
    PythonPackages,
    Run,
    Secret,
    Shell,
    SystemPackages,
    Uv,
)
from danlu.errors import Span
from danlu.lang.draft import Draft
from danlu.lang.entries.universe import DEFAULT_IMAGE
from danlu.lang.finding import Finding, suggestion

__all__ = ["DECLARE"]

Values = Mapping[str, Any]

_KNOWN_OS = (
    "debian11", "debian12", "debian13",
    "ubuntu18.04", "ubuntu20.04", "ubuntu22.04", "ubuntu24.04", "ubuntu26.04",
)  # fmt: skip
_OS = re.compile(r"debian[1-9][0-9]|ubuntu[12][0-9]\.(04|10)")
_V0_OS = "ubuntu22.04"
_LANGUAGE = re.compile(r"(python|r|julia)([0-9]+(?:\.[0-9]+)*)?")
_PYTHON = re.compile(r"3(\.[0-9]+){1,2}")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DATA_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_OPTION = re.compile(r"\s+(?=-)")


def _base(draft: Draft, values: Values, span: Span) -> None:
    os, image, language = values["os"], values["image"], values["language"]
    given_image = "image" in values["given"] and image
    if os and given_image:
        raise Finding("base() is given both os and image", hint="keep one", argument="image")
    if os and not _OS.fullmatch(os):
        raise Finding(
            f"base(): there is no distribution '{os}'",
            hint=suggestion(os, _KNOWN_OS, what="such as"),
            argument="os",
        )
    if language and not os and not given_image:
        os = _V0_OS
    dev = values["dev"] if values["dev"] is not None else bool(language and not given_image)
    chosen = "" if os else (image or DEFAULT_IMAGE)
    _check_image(chosen, "base")
    draft.set("base", Base(os=os, image=chosen, dev=dev, language=language, span=span))
    if language:
        _language(draft, language, span)


def _check_image(image: str, function: str) -> None:
    if image != image.strip() or " " in image or "://" in image:
        raise Finding(
            f"{function}(): '{image}' is no image reference",
            hint="an image is named like ubuntu:22.04 or registry/team/image:tag",
            argument="image",
        )


def _language(draft: Draft, language: str, span: Span) -> None:
    match = _LANGUAGE.fullmatch(language)
    if match is None:
        raise Finding(
            f"base(): there is no language '{language}'",
            hint="it is python, r or julia, with a version or without: python3.11",
            argument="language",
        )
    name, version = match[1], match[2] or ""
    if name == "python":
        _set_python(draft, "" if version == "3" else version, span, "base", "language")
    else:
        function = "install.r_lang" if name == "r" else "install.julia"
        draft.other(Other(function, span=span), single=True)


def _python(draft: Draft, values: Values, span: Span) -> None:
    _set_python(draft, values["version"], span, "install.python", "version")


def _set_python(draft: Draft, version: str, span: Span, function: str, argument: str) -> None:
    _check_python(version, function, argument)
    before = draft.one.get("install.python")
    if before is not None and "" in (before.version, version):
        # "any Python 3" and one exact version agree.
        version = version or before.version
        draft.one["install.python"] = Python(version, span=span if version else before.span)
        return
    draft.set("install.python", Python(version, span=span))


def _check_python(version: str, function: str, argument: str) -> None:
    if version and not _PYTHON.fullmatch(version):
        raise Finding(
            f"{function}(): '{version}' is no version of Python 3",
            hint='such as "3.11" or "3.11.2"',
            argument=argument,
        )


def _uv(draft: Draft, values: Values, span: Span) -> None:
    _check_python(values["python_version"], "install.uv", "python_version")
    draft.set("install.uv", Uv(values["python_version"], span=span))


def _apt_packages(draft: Draft, values: Values, span: Span) -> None:
    names = _stripped(values["name"], "install.apt_packages")
    for name in names:
        if re.search(r"\s", name) or name.startswith("-"):
            raise Finding(
                f"install.apt_packages(): '{name}' is no package name",
                hint="one package is one text of the list",
                argument="name",
            )
    if names:
        draft.system_packages.append(SystemPackages(names, span=span))


def _stripped(names: tuple[str, ...], function: str) -> tuple[str, ...]:
    for name in names:
        if not name.strip():
            raise Finding(f"{function}(): an empty name", argument="name")
        if "\n" in name.strip():
            raise Finding(f"{function}(): a name of several lines", argument="name")
    return tuple(name.strip() for name in names)


def _python_packages(draft: Draft, values: Values, span: Span) -> None:
    names: list[str] = []
    for name in _stripped(values["name"], "install.python_packages"):
        names += _requirement_and_options(name)
    wheels = values["local_wheels"]
    for wheel in wheels:
        if not wheel.endswith(".whl"):
            raise Finding(
                f"install.python_packages(): '{wheel}' is no wheel file", argument="local_wheels"
            )
    if names or values["requirements"] or wheels:
        draft.python_packages.append(
            PythonPackages(tuple(names), values["requirements"], wheels, span=span)
        )


def _requirement_and_options(name: str) -> list[str]:
    """Split ``torch --index-url URL`` as envd's files write it into what each part is."""
    parts = _OPTION.split(name)
    if any(part.startswith("--hash") for part in parts):
        return [name]
    return parts


def _apt_source(draft: Draft, values: Values, span: Span) -> None:
    draft.set("config.apt_source", AptSource(values["source"], span=span))


def _pip_index(draft: Draft, values: Values, span: Span) -> None:
    for argument in ("url", "extra_url"):
        if values[argument] or argument == "url":
            _check_url(values[argument], "config.pip_index", argument, ("http", "https", "file"))
    index = PipIndex(values["url"], values["extra_url"], values["trust"], span=span)
    draft.set("config.pip_index", index)


def _check_url(url: str, function: str, argument: str, schemes: tuple[str, ...]) -> None:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in schemes and bool(parts.netloc or parts.scheme == "file")
    except ValueError:
        fits = False
    if not fits or re.search(r"\s", url):
        raise Finding(
            f"{function}(): '{url}' is no address",
            hint=f"an address begins with {schemes[-1] if len(schemes) < 3 else 'https'}://",
            argument=argument,
        )


def _owner(draft: Draft, values: Values, span: Span) -> None:
    draft.set("config.owner", Owner(values["uid"], values["gid"], span=span))


def _entrypoint(draft: Draft, values: Values, span: Span) -> None:
    if not values["args"]:
        raise Finding("config.entrypoint() is given no program", argument="args")
    draft.set("config.entrypoint", Entrypoint(values["args"], span=span))


def _jupyter(draft: Draft, values: Values, span: Span) -> None:
    draft.set("config.jupyter", Jupyter(values["token"], values["port"], span=span))


def _shell(draft: Draft, values: Values, span: Span) -> None:
    draft.set("shell", Shell(values["name"], span=span))


def _git_config(draft: Draft, values: Values, span: Span) -> None:
    config = GitConfig(values["name"], values["email"], values["editor"], span=span)
    draft.set("git_config", config)


def _environ(draft: Draft, values: Values, span: Span) -> None:
    variables = tuple(dict(values["env"]).items())
    for name, _ in variables:
        if not _VARIABLE.fullmatch(name):
            raise Finding(f"runtime.environ(): '{name}' is no variable's name", argument="env")
    for path in values["extra_path"]:
        if not path or ":" in path:
            raise Finding(f"runtime.environ(): '{path}' is no directory", argument="extra_path")
    if variables or values["extra_path"]:
        draft.environ.append(Environ(variables, values["extra_path"], span=span))


def _run(draft: Draft, values: Values, span: Span) -> None:
    secrets = tuple(Secret(identity, target) for identity, target in values["secrets"])
    targets = [secret.target for secret in secrets]
    for target in targets:
        if targets.count(target) > 1:
            raise Finding(f"run(): two secrets have the target {target}", argument="secrets")
    if values["commands"]:
        run = Run(values["commands"], values["mount_host"], secrets, values["ssh"], span=span)
        draft.steps.append(run)


def _copy(draft: Draft, values: Values, span: Span) -> None:
    for argument in ("source", "target"):
        if not values[argument]:
            raise Finding(f"io.copy(): the {argument} is empty", argument=argument)
    if values["image"]:
        _check_image(values["image"], "io.copy")
    draft.steps.append(Copy(values["source"], values["target"], values["image"], span=span))


def _http(draft: Draft, values: Values, span: Span) -> None:
    url, filename, checksum = values["url"], values["filename"], values["checksum"].lower()
    _check_url(url, "io.http", "url", ("http", "https"))
    if checksum and not _SHA256.fullmatch(checksum):
        raise Finding(
            f"io.http(): '{values['checksum']}' is no checksum",
            hint="it is sha256: and 64 hexadecimal digits",
            argument="checksum",
        )
    name = filename or urlsplit(url).path.rpartition("/")[2]
    if not name or "/" in name or name in (".", ".."):
        raise Finding(
            f"io.http(): '{filename}' is no file name" if filename else "io.http() needs a name",
            hint='give filename="…", with no directory',
            argument="filename" if filename else "url",
        )
    draft.steps.append(Http(url, checksum, filename, span=span))


def _conda_packages(draft: Draft, values: Values, span: Span) -> None:
    if values["env_file"] and (values["name"] or values["channel"]):
        raise Finding(
            "install.conda_packages(): env_file stands alone",
            hint="give the environment file, or names and channels",
            argument="env_file",
        )


def _expose(draft: Draft, values: Values, span: Span) -> None:
    from ipaddress import ip_address

    try:
        ip_address(values["listen_addr"])
    except ValueError:
        raise Finding(
            f"runtime.expose(): '{values['listen_addr']}' is no IP address",
            hint="127.0.0.1 for this machine alone, 0.0.0.0 for all",
            argument="listen_addr",
        ) from None


def _data(draft: Draft, values: Values, span: Span) -> None:
    if not _DATA_NAME.fullmatch(values["name"]):
        raise Finding(
            f"data.envd(): '{values['name']}' is no name",
            hint="a name is letters, digits, '_', '-' and '.'",
            argument="name",
        )


DECLARE: Mapping[str, Callable[[Draft, Values, Span], None]] = {
    "base": _base,
    "config.apt_source": _apt_source,
    "config.entrypoint": _entrypoint,
    "config.jupyter": _jupyter,
    "config.owner": _owner,
    "config.pip_index": _pip_index,
    "data.envd": _data,
    "git_config": _git_config,
    "install.apt_packages": _apt_packages,
    "install.conda_packages": _conda_packages,
    "install.python": _python,
    "install.python_packages": _python_packages,
    "install.uv": _uv,
    "io.copy": _copy,
    "io.http": _http,
    "run": _run,
    "runtime.environ": _environ,
    "runtime.expose": _expose,
    "shell": _shell,
}
"""Typed declarations by function; of a function that is not built, only its further checks."""
