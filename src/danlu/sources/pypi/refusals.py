"""What uv says when it refuses, as our errors."""

from __future__ import annotations

import re

from danlu.errors import ChecksumError, DanluError, OutsideError, ResolveError, TemporaryError
from danlu.util.space import full_disk

__all__ = ["build_hint", "reason_of", "refusal"]


def _plain(text: str) -> list[str]:
    """uv's message without its drawing: one line a sentence."""
    lines = []
    for raw in text.splitlines():
        line = re.sub(r"^[\s│├╰─▶×]+", "", raw)
        line = re.sub(r"^(error|cause|Caused by|warning):\s*", "", line).strip()
        if line and not raw.startswith("warning:"):
            lines.append(line)
    return lines


def _quietened(text: str) -> str:
    """``text`` without credentials in addresses."""
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", text)


_boilerplate = re.compile(
    r",?( and)?,? we can conclude that (your requirements|the requirements) are unsatisfiable\."
)


def reason_of(text: str, *, lines: int = 4) -> tuple[str, ...]:
    """The few lines of uv's message that say why."""
    plain = [_quietened(line) for line in _plain(text)]
    reasons = [
        _boilerplate.sub(".", line)
        for line in plain
        if not line.startswith(("hint:", "No solution found"))
    ]
    cut = [line if len(line) <= 600 else line[:597] + "…" for line in reasons[:lines]]
    return tuple(cut)


_UNREACHABLE = re.compile(
    r"Failed to fetch: `?(?P<url>[^\s`]+)`?|error sending request for url \((?P<sent>[^)]+)\)"
)
_TEMPORARY = (
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


def build_hint(text: str) -> str:
    """What usually helps after a build that ended like this."""
    if re.search(r"unable to detect version|git.*(not found|No such file)", text):
        return 'its version comes from git, which runs inside: install.apt_packages(["git"])'
    return "compilers and headers are system packages: install.apt_packages(...)"


def refusal(text: str, *, doing: str) -> DanluError:
    """uv's failure as one of our errors; ``doing`` completes "… failed" sentences of ours."""
    reasons = reason_of(text)
    if "Failed to build" in text or "[stderr]" in text:
        # What matters of a build's output is its end.
        return ResolveError(
            reasons[0] if reasons else f"{doing} failed",
            details=tuple(_quietened(line) for line in text.rstrip().splitlines()[-16:]),
            hint=build_hint(text),
        )
    if "No space left on device" in text:
        return full_disk("danlu's downloads")
    if "Hash mismatch" in text:
        return ChecksumError(
            "a package file is not what the lock says", details=reason_of(text, lines=8)
        )
    if "No solution found" in text:
        hints = [line[5:].strip() for line in _plain(text) if line.startswith("hint:")]
        return ResolveError(
            "the Python packages cannot be satisfied",
            hint=_quietened(hints[0]) if hints else "",
            details=reasons,
        )
    if found := _UNREACHABLE.search(text):
        url = _quietened(found["url"] or found["sent"])
        kind = TemporaryError if any(one in text for one in _TEMPORARY) else OutsideError
        return kind(
            f"the package index could not be reached: {url}",
            hint="check the address (pip's and uv's settings are used), the network and the proxy",
            details=reasons[-2:],
        )
    if "Network connectivity is disabled" in text or "--offline" in text:
        return OutsideError(f"{doing} needs the network, which --offline forbids", details=reasons)
    return ResolveError(f"{doing} failed", details=reasons or (text.strip()[:600],))
