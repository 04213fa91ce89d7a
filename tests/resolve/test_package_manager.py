"""Images that apt cannot install packages in."""

from __future__ import annotations

import pytest

from danlu.environment.lock import LockedBase, LockedImage
from danlu.errors import ResolveError
from danlu.resolve.system import require_apt

IMAGE = LockedImage("registry.example/team:1", "sha256:" + "0" * 64)


@pytest.mark.parametrize(
    ("distribution", "manager"),
    [("rocky", "dnf"), ("wolfi", "apk"), ("sles", "zypper"), ("arch", "pacman")],
)
def test_the_package_manager_and_its_command_are_named(distribution: str, manager: str) -> None:
    base = LockedBase("", 0, distribution=distribution, image=IMAGE)
    with pytest.raises(ResolveError, match=f"whose package manager is {manager}") as caught:
        require_apt(base, [f"p{number}" for number in range(9)])
    assert "p4 …" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("distribution", ["debian", "ubuntu", "linuxmint", ""])
def test_other_images_are_left_to_apt(distribution: str) -> None:
    require_apt(LockedBase("", 0, distribution=distribution, image=IMAGE), ["git"])
