"""A stack of layers, mounted and copied: both must show and record the same."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from danlu.oci.tar import NormalizeOptions, extract_layer, write_layer
from danlu.sandbox import _linux, overlay
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.sandbox.types import RootFilesystem
from danlu.util.files import remove_tree
from tests.sandbox.trees import GONE, read, write

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

Forked = Callable[[Callable[[], Any]], Any]

BELOW: tuple[dict[str, object], ...] = (
    {
        "a": "1",
        "d/x": "x",
        "d/y": "y",
        "e/f/g": "deep",
        "link": "->a",
        "old/one": "1",
        "tree/sub/x": "x",
        "tree/sub/y": "y",
        "tree/away/z": "z",
    },
    {"d/x": GONE, "d/z": "z", "e/": "opaque", "e/new": "n", "a": "2"},
    {"top": "t", "file/": "", "file/inner": "i"},
)
CHANGES = """
echo changed > a
rm d/y
mkdir d/more; echo m > d/more/m
rm -r old; mkdir old; echo two > old/two
rm -r file; echo now-a-file > file
rm top; mkdir top
ln a hard
chmod 700 d/z
mv e/new e/moved
mv tree kept; mkdir -p tree/sub; mv kept/sub/x tree/sub/x; mv kept/away tree/away; rm -r kept
mkfifo pipe && rm pipe
rm link; ln -s elsewhere link
"""

# What an overlay and copies do not see alike: opened and not written, made and then renamed.
HABITS = """
: >> d/z
mkdir d/made.new; mkdir d/made.new/in; mv d/made.new d/made
chmod 600 a; chmod 644 a
"""


def layers(home: Path) -> tuple[Path, ...]:
    return tuple(write(home / f"l{number}", below) for number, below in enumerate(BELOW))


def change(merged: Path) -> None:
    subprocess.run(["sh", "-ec", CHANGES], cwd=merged, check=True)


def change_by_mount(home: Path) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    (home / "upper").mkdir(parents=True)
    with overlay.mount_root(RootFilesystem(layers(home), home / "upper"), home) as merged:
        before = read(merged)
        change(merged)
        after = read(merged)
    return before, after, read(home / "upper")


def change_by_copy(home: Path) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    stack = layers(home)
    (home / "merged").mkdir()
    (home / "upper").mkdir()
    with overlay.copy_and_mount(stack, home / "merged", upper=home / "upper"):
        before = read(home / "merged")
        change(home / "merged")
        after = read(home / "merged")
    return before, after, read(home / "upper")


def test_copying_shows_and_records_the_same_as_mounting(
    run_in_namespace: Forked, home: Path
) -> None:
    mounted = run_in_namespace(lambda: change_by_mount(home / "m"))
    copies = run_in_namespace(lambda: change_by_copy(home / "c"))
    assert copies[0] == mounted[0]
    assert copies[1] == mounted[1]
    assert copies[2] == mounted[2]


def test_recorded_changes_reproduce_the_merged_view(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[dict[str, str], dict[str, str]]:
        _, after, _ = change_by_copy(home / "c")
        stack = (*(home / "c" / f"l{number}" for number in range(3)), home / "c" / "upper")
        with overlay.mount_root(RootFilesystem(stack), home) as merged:
            return after, read(merged)

    after, again = run_in_namespace(act)
    assert again == after


def test_a_layer_that_a_stack_has_twice_is_mounted_and_not_copied(
    run_in_namespace: Forked, home: Path
) -> None:
    first, second, third = (
        write(home / name, {"a": name, **more})
        for name, more in (("1", {"d/x": "x"}), ("2", {"d/": "opaque"}), ("3", {"b": "3"}))
    )

    expected = home / "expected"
    expected.mkdir()

    def act() -> tuple[dict[str, str], dict[str, str], str]:
        stack = (first, second, third, first)
        for layer in stack:
            overlay.copy_layer(layer, expected)
        with overlay.mount_root(RootFilesystem(stack), home) as merged:
            mounts = Path("/proc/self/mounts").read_text().splitlines()
            kinds = {line.split()[1]: line.split()[2] for line in mounts}
            return read(merged), read(expected), kinds[str(merged)]

    found, copied, kind = run_in_namespace(act)
    assert kind == "overlay"
    assert found == copied


def mount_overlay(outer: Path) -> Path:
    """A directory on an overlay, where another overlay can have no upper."""
    for name in ("low", "up", "work", "here"):
        (outer / name).mkdir(parents=True)
    options = f"userxattr,lowerdir={outer}/low,upperdir={outer}/up,workdir={outer}/work"
    _linux.mount("x", str(outer / "here"), "overlay", 0, options)
    return outer / "here"


def test_store_on_an_overlay_works(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[bool, dict[str, str], dict[str, str]]:
        directory = mount_overlay(home / "outer")
        stack = layers(directory)
        (directory / "upper").mkdir()
        with overlay.mount_root(RootFilesystem(stack, directory / "upper"), directory) as merged:
            change(merged)
            after = read(merged)
        again = (*stack, directory / "upper")
        with overlay.mount_root(RootFilesystem(again), directory) as merged:
            return overlay.supports_overlay(directory), after, read(merged)

    supported, after, again = run_in_namespace(act)
    assert not supported
    assert again == after


def test_layer_digests_are_the_same_on_an_overlay(run_in_namespace: Forked, home: Path) -> None:
    def digests(place: Path) -> list[str]:
        stack = layers(place)
        upper, again = place / "upper", place / "again"
        upper.mkdir()
        with overlay.mount_root(RootFilesystem(stack, upper), place) as merged:
            subprocess.run(["sh", "-ec", HABITS], cwd=merged, check=True)
            change(merged)
        finalize_upper(upper, 0, below=stack)
        normalise = NormalizeOptions(mtime=0, uid=0, gid=0)
        tar = io.BytesIO()
        write_layer(upper, tar.write, normalise=normalise)
        tar.seek(0)
        again.mkdir()
        extract_layer(tar, again)
        trees = (*stack, upper, again)
        return [write_layer(tree, None, normalise=normalise).diff_id for tree in trees]

    def act() -> tuple[list[str], list[str]]:
        plain = home / "plain"
        plain.mkdir()
        return digests(plain), digests(mount_overlay(home / "outer"))

    elsewhere, on_an_overlay = run_in_namespace(act)
    assert on_an_overlay == elsewhere
    assert elsewhere[-1] == elsewhere[-2]


def test_second_copy_adds_to_the_same_upper(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[dict[str, str], dict[str, str]]:
        stack = layers(home / "c")
        uppers = home / "mounted", home / "copied"
        for upper in uppers:
            upper.mkdir()
        for script in (change, lambda merged: (merged / "again").write_text("x")):
            with overlay.mount_root(RootFilesystem(stack, uppers[0]), home) as merged:
                script(merged)
            target = home / "merged"
            target.mkdir()
            with overlay.copy_and_mount(stack, target, upper=uppers[1]):
                script(target)
            remove_tree(target)
        return read(uppers[0]), read(uppers[1])

    mounted, copies = run_in_namespace(act)
    assert copies == mounted


def test_lower_layers_are_never_changed(run_in_namespace: Forked, home: Path) -> None:
    def act() -> bool:
        stack = layers(home / "c")
        before = [read(layer) for layer in stack]
        for upper in (home / "u1", home / "u2"):
            upper.mkdir()
        with overlay.mount_root(RootFilesystem(stack, home / "u1"), home) as merged:
            change(merged)
        (home / "merged").mkdir()
        with overlay.copy_and_mount(stack, home / "merged", upper=home / "u2"):
            change(home / "merged")
        return before == [read(layer) for layer in stack]

    assert run_in_namespace(act)


def test_root_is_unmounted_even_while_it_is_open(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[int, list[str]]:
        stack = layers(home / "c")
        with overlay.mount_root(RootFilesystem(stack), home) as merged:
            handle = os.open(merged, os.O_RDONLY)
        os.close(handle)
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        # Entering a user namespace records its id maps in the store's directory.
        names = set(os.listdir(home)) - {"store"}
        return sum(str(home) in line for line in lines), sorted(names)

    assert run_in_namespace(act) == (0, ["c"])
