"""Which images can get system packages: those whose package manager is apt."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from danlu.environment.lock import LockedBase
from danlu.errors import ResolveError

_MAX_NAMES_SHOWN = 5


class _PackageManager(msgspec.Struct, frozen=True):
    """Another package manager: the distributions that have it (os-release(5), ID), its command."""

    name: str
    distributions: tuple[str, ...]
    install: str


_OTHERS = (
    _PackageManager(
        "dnf",
        ("almalinux", "amzn", "centos", "fedora", "mariner", "azurelinux", "ol", "rhel", "rocky"),
        "dnf install -y",
    ),
    _PackageManager("apk", ("alpine", "chainguard", "wolfi"), "apk add --no-cache"),
    _PackageManager(
        "zypper",
        ("opensuse", "opensuse-leap", "opensuse-tumbleweed", "sles"),
        "zypper --non-interactive install",
    ),
    _PackageManager("pacman", ("arch", "archarm", "manjaro"), "pacman -Sy --noconfirm"),
)


def require_apt(base: LockedBase, names: Sequence[str] = ()) -> None:
    """Raise :class:`ResolveError` if packages (``names``, if known) of the base are not apt's."""
    if base.image is None:
        return
    for other in _OTHERS:
        if base.distribution in other.distributions:
            listed = " ".join(names[:_MAX_NAMES_SHOWN]) + (
                " …" if len(names) > _MAX_NAMES_SHOWN else ""
            )
            raise ResolveError(
                f"cannot install system packages in the image {base.image.reference}: it is"
                f" {base.distribution}, whose package manager is {other.name}",
                hint="danlu locks and installs packages of Debian and Ubuntu only; in this image"
                f' use run(["{other.install} {listed or "PACKAGE"}"]), which is not locked',
            )
