"""Convert uv's error messages into danlu's errors."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from danlu.environment.package_names import normalize_name
from danlu.errors import ChecksumError, DanluError, OutsideError, ResolveError, TemporaryError
from danlu.util.disk_full import disk_full_error, reports_disk_full
from danlu.util.urls import mask_credentials


def _plain_lines(text: str) -> list[str]:
    """Return uv's message without its tree drawing, one sentence per line."""
    lines = []
    for raw in text.splitlines():
        line = re.sub(r"^[\s│├╰─▶×]+", "", raw)
        line = re.sub(r"^(error|cause|Caused by|warning):\s*", "", line).strip()
        if line and not raw.startswith("warning:"):
            lines.append(line)
    return lines


_UNSATISFIABLE = re.compile(
    r",?( and)?,? we can conclude that (your requirements|the requirements) are unsatisfiable\."
)
_CONCLUDE = re.compile(r",?( and)?,? we can conclude that ")


def summarize_reason(text: str, *, lines: int = 4) -> tuple[str, ...]:
    """Return the few lines of uv's message that contain the reason."""
    plain = [mask_credentials(line) for line in _plain_lines(text)]
    cut = [line if len(line) <= 600 else line[:597] + "…" for line in plain[:lines]]
    return tuple(line for line in cut if not line.startswith("hint:"))


def explain_conflict(text: str) -> tuple[str, ...]:
    """Return uv's explanation of an unsolvable set, complete, with its conclusion first.

    uv derives the conclusion step by step, in paragraphs: "Because A, we can conclude that B. And
    because C, we can conclude that your requirements are unsatisfiable". The conclusion that a user
    can act on is the contradiction of the last step: B, and C. The steps that lead to B follow in
    uv's order and words. An element may have several lines, since uv lists ranges of versions below
    each other.
    """
    steps: list[list[str]] = []
    for raw in text.splitlines():
        line = re.sub(r"^[\s│├╰─▶×]*((error|cause|Caused by): *)?", "", raw).rstrip()
        if line.startswith("hint:"):
            break
        if line.startswith(("Because ", "And because ")):
            steps.append([])
        if steps and line:
            steps[-1].append(f"    {line}" if _VERSION_RANGE.fullmatch(line) else line)
    paragraphs = [mask_credentials("\n".join(step)) for step in steps]
    if not paragraphs:
        return summarize_reason(text)
    last = re.sub(r"^(Because|And because) ", "", _UNSATISFIABLE.sub("", paragraphs[-1]))
    if len(paragraphs) == 1:
        return (last,)
    known = re.sub(r"\.( \(\d+\))?$", "", _CONCLUDE.split(paragraphs[-2])[-1])
    joint = "\nand " if "\n" in known else ", and "
    return (f"{known}{joint}{last}", *paragraphs[:-1])


#: An element of a list of uv's, such as ``torch>=2.0,<2.1``.
_VERSION_RANGE = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w.,-]*\])?([<>=!~]=?\S+)?")


_NOT_FOUND = "was not found in the package registry"
_ACCESS_DENIED = re.compile(
    r"An index URL \((?P<queried>[^\s)]+)\) could not be queried due to a lack of valid"
    r"|An index \((?P<forbidden>[^\s)]+)\) returned a 403"
    r"|Failed to fetch: `?(?P<fetched>[^\s`]+)`?(?=[\s\S]*\b40[13] (Unauthorized|Forbidden))"
)
_UNREACHABLE = re.compile(
    r"Failed to fetch: `?(?P<url>[^\s`]+)`?|error sending request for url \((?P<sent>[^)]+)\)"
)
_TEMPORARY_ERRORS = (
    "dns error",
    "Connection refused",
    "Connection reset",
    "operation timed out",
    "timed out",
    "500 Internal",
    "502 Bad",
    "503 Service",
    "504 Gateway",
    "429 Too Many",
    "unexpected EOF",
    "connection closed",
)


_MISSING_EXTRA = re.compile(
    r"^warning: The package `(?P<name>[A-Za-z0-9._-]+)[^`\n]*` does not have an extra named"
    r" `(?P<extra>[A-Za-z0-9._-]+)`$",
    re.MULTILINE,
)


def find_missing_extras(text: str) -> list[tuple[str, str]]:
    """Return each package and extra that uv warns about, since the package does not have it."""
    found = ((match["name"], match["extra"]) for match in _MISSING_EXTRA.finditer(text))
    return list(dict.fromkeys(found))


def format_missing_extra(package: str, extra: str) -> str:
    """Return the warning for an extra that a package does not have."""
    return f"warning: {package} does not provide the extra '{extra}'; nothing is installed for it"


#: Packages whose last release only says that another has replaced it.
_REPLACED = {"sklearn": "scikit-learn", "tensorflow-gpu": "tensorflow"}

_FAILED_BUILD = re.compile(r"Failed to build `(?P<name>[A-Za-z0-9._-]+)")


def build_hint(text: str) -> str:
    """Return a hint for a failed build with this output."""
    failed = _FAILED_BUILD.search(text)
    if failed is not None and (instead := _REPLACED.get(normalize_name(failed["name"]))):
        return f"{failed['name']} is no longer published: use {instead}"
    if re.search(r"unable to detect version|git.*(not found|No such file)", text):
        return (
            'its version is derived from git: add install.apt_packages(["git"]) for a repository;'
            " for a directory without one, set SETUPTOOLS_SCM_PRETEND_VERSION when locking"
        )
    return "if compilers or headers are missing, add them with install.apt_packages(...)"


def names_unknown_package(text: str) -> bool:
    """Return whether uv's message says that a package is on no index."""
    return _NOT_FOUND in text


def lacks_package(error: DanluError, name: str) -> bool:
    """Return whether a resolution failed because no index has any file of a package."""
    text = " ".join(" ".join(error.details).split())
    return re.search(rf"(^|\s){name} was not found in the ", text) is not None


def denies_access(text: str) -> bool:
    """Return whether uv's message says that an index denies access."""
    return _ACCESS_DENIED.search(text) is not None


class AccessDenied(OutsideError):
    """A package index that does not accept the credentials, or requires some."""


def uv_error(text: str, *, doing: str) -> DanluError:
    """Return uv's failure as one of our errors; ``doing`` is the activity, for "… failed"."""
    reasons = summarize_reason(text)
    if "Failed to build" in text or "[stderr]" in text:
        # The relevant part of a build's output is the end.
        return ResolveError(
            reasons[0] if reasons else f"{doing} failed",
            details=tuple(mask_credentials(line) for line in text.rstrip().splitlines()[-16:]),
            hint=build_hint(text),
        )
    if reports_disk_full(text):
        return disk_full_error("danlu's downloads")
    if "Hash mismatch" in text:
        return ChecksumError(
            "checksum mismatch of a package file",
            hint="the index has another file than danlu.lock: check the index, restore danlu.lock"
            " from version control, or run `danlu lock --upgrade NAME`",
            details=summarize_reason(text, lines=8),
        )
    if "Failed to parse: /proc/self/fd" in text:
        return ResolveError(
            "uv rejects a setting in its configuration files",
            hint="correct uv.toml, or [tool.uv] in pyproject.toml",
            details=tuple(line for line in reasons if "/proc/self/fd" not in line),
        )
    if (denied := _ACCESS_DENIED.search(text)) and (
        _NOT_FOUND in text or "No solution found" not in text
    ):
        # uv searches the other indexes and reports that the package does not exist.
        status = "401 Unauthorized" if "401 Unauthorized" in text else "403 Forbidden"
        url = mask_credentials(denied["queried"] or denied["forbidden"] or denied["fetched"])
        return AccessDenied(
            f"the package index denies access: {url} ({status})",
            hint="check its user name and password or token: in the URL where the index is"
            " configured, in ~/.netrc, or in UV_INDEX_NAME_USERNAME and UV_INDEX_NAME_PASSWORD",
            details=explain_conflict(text)[:1] if _NOT_FOUND in text else (),
        )
    if "No solution found" in text:
        hints = [line[5:].strip() for line in _plain_lines(text) if line.startswith("hint:")]
        return ResolveError(
            "cannot resolve Python packages",
            hint=mask_credentials(hints[0]) if hints else "",
            details=explain_conflict(text),
        )
    if found := _UNREACHABLE.search(text):
        url = mask_credentials(found["url"] or found["sent"])
        kind = TemporaryError if any(sign in text for sign in _TEMPORARY_ERRORS) else OutsideError
        return kind(
            f"cannot reach the package index: {url}",
            hint="check the URL (from pip's and uv's settings), the network and the proxy, or set a"
            f' mirror in config.toml: [mirrors."{urlsplit(url).hostname}"] urls = ["https://…"]',
            details=reasons[-2:],
        )
    if "Network connectivity is disabled" in text or "--offline" in text:
        return OutsideError(f"{doing} needs the network, but --offline is set", details=reasons)
    return ResolveError(f"{doing} failed", details=reasons or (text.strip()[:600],))
