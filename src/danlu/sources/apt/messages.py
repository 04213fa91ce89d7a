"""What apt printed, turned into danlu's errors. Pure."""

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
from danlu.util.space import full_disk

__all__ = [
    "fetch_outcomes",
    "host_of",
    "install_failure",
    "nearest",
    "providers",
    "unknown_packages",
    "unreachable",
    "update_failure",
]

_FETCH = re.compile(r"^(?:[EW]: Failed to fetch|Err:\d+|Ign:\d+) +(?P<uri>\S+)(?P<rest>.*)$")
_SIGNATURE = re.compile(r"NO_PUBKEY|EXPKEYSIG|REVKEYSIG|BADSIG|GPG error")
_LOCATE = re.compile(
    r"^E: (?:Unable to locate package (?P<name>\S+)"
    r"|Package '(?P<virtual>[^']+)' has no installation candidate"
    r"|Version '(?P<version>[^']+)' for '(?P<pinned>[^']+)' was not found)"
)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def host_of(uri: str) -> str:
    """The host of an address, without credentials."""
    return urlsplit(uri).netloc.rpartition("@")[2] or uri


def _without_credentials(line: str) -> str:
    return re.sub(r"(://)[^/@\s]+@", r"\1", line)


def nearest(name: str, names: Iterable[str], *, count: int = 3) -> tuple[str, ...]:
    """Up to ``count`` of ``names`` that ``name`` may have meant."""
    plausible = [
        one
        for one in names
        if one[:1] == name[:1] and abs(len(one) - len(name)) <= max(2, len(name) // 3)
    ]
    # Letters in another order are the commonest slip, and difflib thinks little of it.
    swapped = [one for one in plausible if sorted(one) == sorted(name)]
    close = difflib.get_close_matches(name, plausible, n=count, cutoff=0.75)
    return tuple(dict.fromkeys((*swapped, *close)))[:count]


def unreachable(output: str, *, what: str) -> DanluError:
    """The error for a request that failed: which host, and why in its own words."""
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return full_disk(f"danlu's downloads, for {what}")
    failures = [match for line in _lines(output) if (match := _FETCH.match(line))]
    hosts = list(dict.fromkeys(host_of(match["uri"]) for match in failures))
    final = [line for line in _lines(output) if line.startswith("E: Failed to fetch")]
    reasons = final or [line for line in _lines(output) if line.startswith(("E:", "W:", "Err:"))]
    details = tuple(dict.fromkeys(_without_credentials(line) for line in reasons))[:3]
    where = " and ".join(hosts) or "the package mirror"
    return TemporaryError(
        f"{what} could not be fetched from {where}",
        hint="check the network, the proxy settings of apt, or name another mirror under "
        "[mirrors] in danlu's config.toml; what is locked and cached builds with --offline",
        details=details,
    )


def update_failure(output: str, *, what: str) -> DanluError:
    """The error for a failed ``apt-get update`` of the lists of ``what`` (``debian12``)."""
    lines = _lines(output)
    signature = [line for line in lines if _SIGNATURE.search(line)]
    fetching = [line for line in lines if _FETCH.match(line)]
    unreached = [line for line in lines if "Could not" in line or "Temporary failure" in line]
    # Without a Release file apt complains of its signature too; with one, only of that.
    unsigned = [line for line in lines if "is not signed" in line and not fetching]
    if (signature or unsigned) and not unreached:
        return MachineError(
            f"the package lists of {what} are signed with a key this machine does not trust",
            hint="install the newest keyring package of that distribution "
            "(debian-archive-keyring, ubuntu-keyring) or name the key file as `keyring` under "
            "[mirrors] in danlu's config.toml",
            details=tuple(_without_credentials(line) for line in (signature or unsigned)[-3:]),
        )
    missing = [line for line in lines if "does not have a Release file" in line]
    if missing and not unreached:
        return OutsideError(
            f"the mirror does not have {what}",
            hint="name one that has it under [mirrors] in danlu's config.toml",
            details=tuple(_without_credentials(line) for line in missing[:4]),
        )
    return unreachable(output, what=f"the package lists of {what}")


def unknown_packages(output: str) -> list[tuple[str, str]]:
    """(name, version asked for or empty) of those that apt did not find."""
    found = []
    for line in _lines(output):
        match = _LOCATE.match(line)
        if match:
            name = match["name"] or match["virtual"] or match["pinned"]
            found.append((name, match["version"] or ""))
    return list(dict.fromkeys(found))


def providers(output: str) -> dict[str, list[str]]:
    """Virtual packages that apt would not choose for, and who provides them."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in output.splitlines():
        match = re.match(r"Package (\S+) is a virtual package provided by:", line)
        if match:
            name = match[1]
            found[name] = []
        elif name and line.startswith("  "):
            found[name].append(line.split()[0])
        elif line and not line.startswith(" "):
            name = ""
    return {name: sorted(names) for name, names in found.items() if names}


def _unmet(lines: Sequence[str]) -> list[str]:
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


def install_failure(output: str, *, what: str) -> ResolveError:
    """The error for packages that cannot be installed together, with apt's reason."""
    lines = _lines(output)
    return ResolveError(
        f"these system packages cannot be installed together on {what}",
        hint="remove a version pin, or one of the packages that exclude each other",
        details=tuple(line.strip() for line in _unmet(lines)[:12]),
    )


def fetch_outcomes(output: str) -> list[tuple[str, str]]:
    """(URI, ``gone`` | ``mismatch`` | ``unreachable``) of each failed fetch, in order."""
    found = []
    for line in _lines(output):
        match = _FETCH.match(line)
        if match is None or not line.startswith("E:"):
            continue
        if re.search(r"\b(404|410)\b|File not found|No such file", match["rest"]):
            kind = "gone"
        elif "mismatch" in match["rest"] or "unexpected size" in match["rest"]:
            kind = "mismatch"
        else:
            kind = "unreachable"
        found.append((match["uri"], kind))
    return found
