"""Convert apt's output into danlu's errors, without I/O."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from danlu.errors import (
    DanluError,
    MachineError,
    OutsideError,
    ResolveError,
    TemporaryError,
)
from danlu.util.disk_full import disk_full_error, reports_disk_full
from danlu.util.urls import strip_credentials

_FETCH = re.compile(r"^(?:[EW]: Failed to fetch|Err:\d+|Ign:\d+) +(?P<uri>\S+)(?P<rest>.*)$")
_SIGNATURE = re.compile(r"NO_PUBKEY|EXPKEYSIG|REVKEYSIG|BADSIG|GPG error")
_LOCATE = re.compile(
    r"^E: (?:Unable to locate package (?P<name>\S+)"
    r"|Package '(?P<virtual>[^']+)' has no installation candidate"
    r"|Version '(?P<version>[^']+)' for '(?P<pinned>[^']+)' was not found)"
)


def _nonempty_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def host_of(uri: str) -> str:
    """Return the host of a URL, without credentials."""
    return urlsplit(uri).netloc.rpartition("@")[2] or uri


def suggest_names(name: str, names: Iterable[str], *, count: int = 3) -> tuple[str, ...]:
    """Return up to ``count`` of ``names`` that ``name`` may be a misspelling of."""
    plausible = [
        candidate
        for candidate in names
        if candidate[:1] == name[:1] and abs(len(candidate) - len(name)) <= max(2, len(name) // 3)
    ]
    # Swapped letters are the most common mistake, but difflib gives them a low ratio.
    swapped = [candidate for candidate in plausible if sorted(candidate) == sorted(name)]
    close = difflib.get_close_matches(name, plausible, n=count, cutoff=0.75)
    return tuple(dict.fromkeys((*swapped, *close)))[:count]


def unreachable_error(output: str, *, what: str) -> DanluError:
    """Return the error for a failed download, with the hosts and apt's reasons."""
    if reports_disk_full(output):
        return disk_full_error(f"danlu's downloads, for {what}")
    failures = [match for line in _nonempty_lines(output) if (match := _FETCH.match(line))]
    hosts = list(dict.fromkeys(host_of(match["uri"]) for match in failures))
    final = [line for line in _nonempty_lines(output) if line.startswith("E: Failed to fetch")]
    reasons = final or [
        line for line in _nonempty_lines(output) if line.startswith(("E:", "W:", "Err:"))
    ]
    details = tuple(dict.fromkeys(strip_credentials(line) for line in reasons))[:3]
    where = " and ".join(hosts) or "the package mirror"
    return TemporaryError(
        f"cannot fetch {what} from {where}",
        hint="check the network and apt's proxy settings, or set a mirror in danlu's config.toml:"
        ' [mirrors.FAMILY], or [mirrors."HOST"] for a host of config.apt_source; locked and cached'
        " packages build with --offline",
        details=details,
    )


def update_error(output: str, *, what: str) -> DanluError:
    """Return the error for a failed ``apt-get update`` of a release (``debian12``)."""
    lines = _nonempty_lines(output)
    signature = [line for line in lines if _SIGNATURE.search(line)]
    fetching = [line for line in lines if _FETCH.match(line)]
    unreached = [line for line in lines if "Could not" in line or "Temporary failure" in line]
    # If the Release file is missing, apt reports a missing signature as well, which is not the
    # cause; only without fetch errors is the signature itself the problem.
    unsigned = [line for line in lines if "is not signed" in line and not fetching]
    if (signature or unsigned) and not unreached:
        return MachineError(
            f"cannot verify the signature of {what}'s package lists: the key is not trusted",
            hint="install the latest keyring package of the distribution "
            "(debian-archive-keyring, ubuntu-keyring), or set `keyring` under [mirrors] in "
            "danlu's config.toml",
            details=tuple(strip_credentials(line) for line in (signature or unsigned)[-3:]),
        )
    missing = [line for line in lines if "does not have a Release file" in line]
    if missing and not unreached:
        return OutsideError(
            f"{what} not found on the mirror",
            hint="configure a mirror that has it under [mirrors] in danlu's config.toml",
            details=tuple(strip_credentials(line) for line in missing[:4]),
        )
    return unreachable_error(output, what=f"the package lists of {what}")


def parse_unknown_packages(output: str) -> list[tuple[str, str]]:
    """Return (name, requested version or empty) of the packages that apt did not find."""
    unknown = []
    for line in _nonempty_lines(output):
        match = _LOCATE.match(line)
        if match:
            name = match["name"] or match["virtual"] or match["pinned"]
            unknown.append((name, match["version"] or ""))
    return list(dict.fromkeys(unknown))


def parse_providers(output: str) -> dict[str, list[str]]:
    """Return the virtual packages that have several providers, with the providers' names."""
    providers: dict[str, list[str]] = {}
    name = ""
    for line in output.splitlines():
        match = re.match(r"Package (\S+) is a virtual package provided by:", line)
        if match:
            name = match[1]
            providers[name] = []
        elif name and line.startswith("  "):
            providers[name].append(line.split()[0])
        elif line and not line.startswith(" "):
            name = ""
    return {name: sorted(names) for name, names in providers.items() if names}


def _find_unmet_dependencies(lines: Sequence[str]) -> list[str]:
    start = next(
        (
            i
            for i, line in enumerate(lines)
            if "unmet dependencies" in line or "held broken" in line
        ),
        None,
    )
    if start is None:
        return [line for line in lines if line.startswith("E:")]
    return [
        line
        for line in lines[start + 1 :]
        if not line.startswith(("'", "Reading ", "Building ", "N:", "W:"))
    ]


def install_error(output: str, *, what: str) -> ResolveError:
    """Return the error for packages that cannot be installed together, with apt's reason."""
    lines = _nonempty_lines(output)
    return ResolveError(
        f"cannot install these system packages together on {what}",
        hint="remove a version pin, or one of the conflicting packages",
        details=tuple(line.strip() for line in _find_unmet_dependencies(lines)[:12]),
    )


def parse_fetch_outcomes(output: str) -> list[tuple[str, str]]:
    """Return (URI, ``gone`` | ``mismatch`` | ``unreachable``) of each failed fetch, in order."""
    outcomes = []
    for line in _nonempty_lines(output):
        match = _FETCH.match(line)
        if match is None or not line.startswith("E:"):
            continue
        if re.search(r"\b(404|410)\b|File not found|No such file", match["rest"]):
            kind = "gone"
        elif "mismatch" in match["rest"] or "unexpected size" in match["rest"]:
            kind = "mismatch"
        else:
            kind = "unreachable"
        outcomes.append((match["uri"], kind))
    return outcomes
