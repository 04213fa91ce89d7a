"""Convert uv's error messages into danlu's errors."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from danlu.errors import ChecksumError, DanluError, OutsideError, ResolveError, TemporaryError
from danlu.util.disk_full import disk_full_error
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


_BOILERPLATE = re.compile(
    r",?( and)?,? we can conclude that (your requirements|the requirements) are unsatisfiable\."
)


def summarize_reason(text: str, *, lines: int = 4) -> tuple[str, ...]:
    """Return the few lines of uv's message that contain the reason."""
    plain = [mask_credentials(line) for line in _plain_lines(text)]
    reasons = [
        _BOILERPLATE.sub(".", line)
        for line in plain
        if not line.startswith(("hint:", "No solution found"))
    ]
    cut = [line if len(line) <= 600 else line[:597] + "…" for line in reasons[:lines]]
    return tuple(cut)


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


def build_hint(text: str) -> str:
    """Return a hint for a failed build with this output."""
    if re.search(r"unable to detect version|git.*(not found|No such file)", text):
        return 'its version is derived from git: add install.apt_packages(["git"])'
    return "if compilers or headers are missing, add them with install.apt_packages(...)"


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
    if "No space left on device" in text or "Disk quota exceeded" in text:
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
    if "No solution found" in text:
        hints = [line[5:].strip() for line in _plain_lines(text) if line.startswith("hint:")]
        return ResolveError(
            "cannot resolve Python packages",
            hint=mask_credentials(hints[0]) if hints else "",
            details=reasons,
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
