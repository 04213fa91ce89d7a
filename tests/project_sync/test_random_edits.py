"""What may never happen, whatever is edited on both sides and whenever an exchange is cut off."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

import pytest

from tests.project_sync.far_sides import SHELLS, TwoSides, install_busybox
from tests.project_sync.random_edits import EditedSides, kill_after

#: Of each check with each shell; together 1,000 in the slow tests.
_QUICK_ROUNDS = 5
_ROUNDS = 250


def edit_both_sides(seed: int, directory: Path, programs: Path | None) -> None:
    """No content is lost, nothing comes from nowhere, and both sides become equal."""
    random = Random(seed)
    sides = TwoSides(directory, programs=programs)
    edited = EditedSides(sides, random)
    edited.edit(sides.here, 8)
    edited.exchange("send", cut=random.random() < 0.2)
    sides.there.mkdir(parents=True, exist_ok=True)
    for _ in range(random.randint(1, 4)):
        edited.edit(sides.here, random.randint(0, 5))
        edited.edit(sides.there, random.randint(0, 5))
        edited.exchange(random.choice(("send", "fetch")), cut=random.random() < 0.4)
        edited.check()
    for action in ("send", "fetch", "send", "fetch"):
        edited.exchange(action, cut=False)
        edited.check()
    unfinished = list(sides.here.rglob(".danlu-sync*"))
    assert not unfinished, unfinished
    here, there = edited.read_both()
    different = [
        path
        for path in here.keys() & there.keys()
        if here[path] != there[path]
        and is_exchanged(path, here[path])
        and is_exchanged(path, there[path])
    ]
    assert not different, different


def edit_one_side(seed: int, directory: Path, programs: Path | None) -> None:
    """Nothing is a conflict, and what was removed does not come back, whatever was cut off."""
    random = Random(seed)
    sides = TwoSides(directory, programs=programs)
    is_here = random.random() < 0.5
    # A file there that has the name of such a link here would be a conflict.
    edited = EditedSides(sides, random, outside_links=is_here)
    edited.edit(sides.here, 8)
    edited.exchange("send", cut=False)
    root = sides.here if is_here else sides.there
    for _ in range(random.randint(1, 4)):
        # What is removed there stays here, and is in the way of what has its name then.
        edited.edit(root, random.randint(1, 6), removes=is_here)
        edited.exchange(random.choice(("send", "fetch")), cut=random.random() < 0.7)
    expected = edited.read_both()[0 if is_here else 1]
    for action in ("fetch", "send", "fetch"):
        edited.exchange(action, cut=False)
    here, there = edited.read_both()
    assert (here if is_here else there) == expected, expected
    assert not [path for path in (*here, *there) if ".remote" in path]
    if is_here:
        sent = {path: text for path, text in here.items() if is_exchanged(path, text)}
        assert {path: text for path, text in there.items() if is_exchanged(path, text)} == sent


def is_exchanged(path: str, text: str) -> bool:
    """Return whether a file is not ignored, and no link that leads outside."""
    return not path.startswith("ignored/") and not text.startswith("../../../..")


def test_a_fetch_may_be_killed_twice(tmp_path: Path) -> None:
    for first, second in product(range(5, 9), range(1, 3)):
        sides = TwoSides(tmp_path / f"{first}-{second}")
        (sides.here / ".danluignore").touch()  # git would have calls of its own
        sides.copy().send_changes()
        (sides.there / "made").write_text("the only copy")
        (sides.there / "out").symlink_to("/outside")
        kill_after(sides.copy(), "fetch", first)
        kill_after(sides.copy(), "send", second)
        sides.copy().send_changes()
        sides.copy().fetch_changes()
        assert (sides.there / "made").read_text() == "the only copy"
        assert sorted(path.name for path in sides.here.iterdir()) == [".danluignore", "made"]
        assert (sides.there / "out").is_symlink()


@pytest.mark.parametrize("check", [edit_both_sides, edit_one_side])
@pytest.mark.parametrize("shell", SHELLS)
def test_no_content_is_lost_or_made_up(check: object, shell: str, tmp_path: Path) -> None:
    run_rounds(check, shell, tmp_path, range(_QUICK_ROUNDS))


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.needs("busybox")
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("check", [edit_both_sides, edit_one_side])
def test_no_content_is_lost_in_many_rounds(check: object, tmp_path: Path) -> None:
    run_rounds(check, "gnu", tmp_path, range(_ROUNDS))
    run_rounds(check, "busybox", tmp_path, range(_ROUNDS, 2 * _ROUNDS))


def run_rounds(check: object, shell: str, directory: Path, seeds: range) -> None:
    """Run a check with each seed; the seed of a failure is its directory's name."""
    assert callable(check)
    programs = install_busybox(directory / f"bin-{shell}") if shell == "busybox" else None
    for seed in seeds:
        check(seed, directory / str(seed), programs)
