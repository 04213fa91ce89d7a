"""A directory with a real quota: writes fail with EDQUOT, while the disk has space."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.programs import has_program

#: btrfs needs some 110 MB for itself. The file is sparse.
_DISK_BYTES = 4 << 30


@contextmanager
def mount_quota(place: Path, limit: int) -> Iterator[Path]:
    """Mount a new btrfs in ``place``, and yield a subvolume limited to ``limit`` bytes.

    Everybody's writes count, root's too. Skips the test if this machine has no btrfs.
    """
    if not has_program("mkfs.btrfs"):
        pytest.skip("mkfs.btrfs not found: install btrfs-progs")
    image, mounted = place / "btrfs-image", place / "btrfs"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    subprocess.run(["mkfs.btrfs", "--quiet", image], check=True, capture_output=True)
    if subprocess.run(["mount", "-o", "loop", image, mounted], check=False).returncode:
        pytest.skip("cannot mount btrfs here")
    try:
        limited = mounted / "limited"
        for arguments in (
            ("quota", "enable", mounted),
            ("subvolume", "create", limited),
            ("qgroup", "limit", str(limit), limited),
        ):
            subprocess.run(["btrfs", *arguments], check=True, stdout=subprocess.DEVNULL)
        yield limited
    finally:
        subprocess.run(["umount", "--lazy", mounted], check=True)
        image.unlink()
