"""``danlu image diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from danlu.cli.options import format_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.image.common import image_argument, opened_store

if TYPE_CHECKING:
    from danlu.cli.terminal import Terminal
    from danlu.commands.imagediff import FileChange, ImageDiff
    from danlu.commands.images import ImageLayer

__all__ = ["command"]

_MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


@click.command(name="diff", short_help="Compare two images; exits with 1 where they differ.")
@image_argument("old")
@image_argument("new")
@click.option("--files", is_flag=True, help="Also every file that differs.")
@format_option()
@verbosity_options
def command(old: str, new: str, files: bool, form: str) -> int:
    """Compare two images; exits with 1 where they differ.

    - is what only OLD has, + what only NEW has.
    """
    from danlu.cli.output import print_json
    from danlu.commands.imagediff import compare, compare_files
    from danlu.commands.images import find_image

    run = session()
    with opened_store(run, as_root=files) as store:
        before, after = find_image(store, old), find_image(store, new)
        found = compare(store, before, after)
        changes = list(compare_files(store, before, after)) if files else []
    if form == "json":
        print_json(_fields(found, changes if files else None), run.terminal)
    else:
        _text(found, changes, run.terminal)
    return 0 if found.same else 1


def _fields(found: ImageDiff, changes: list[FileChange] | None) -> dict[str, Any]:

    fields: dict[str, Any] = {
        "same": found.same,
        "removed": [msgspec.structs.asdict(one) for one in found.removed],
        "added": [msgspec.structs.asdict(one) for one in found.added],
        "common": found.common,
        "settings": [{"name": n, "before": b, "after": a} for n, b, a in found.settings],
    }
    if changes is not None:
        fields["files"] = [msgspec.structs.asdict(one) for one in changes]
    return fields


def _text(found: ImageDiff, changes: list[FileChange], terminal: Terminal) -> None:
    from danlu.cli.terminal import clean
    from danlu.cli.units import plural

    for layer in found.removed:
        terminal.data(terminal.out_style(f"- layer {_layer(layer)}", "red"))
    for layer in found.added:
        terminal.data(terminal.out_style(f"+ layer {_layer(layer)}", "green"))
    for name, before, after in found.settings:
        if before:
            terminal.data(terminal.out_style(f"- {name}: {clean(before)}", "red"))
        if after:
            terminal.data(terminal.out_style(f"+ {name}: {clean(after)}", "green"))
    for one in changes:
        mark, style = _MARKS[one.kind]
        terminal.data(terminal.out_style(f"{mark} {clean(one.path)}{_sizes(one)}", style))
    if found.reordered:
        terminal.say("the layers that both have are in another order")
    same = "; the images are the same" if found.same else ""
    terminal.say(f"{plural(found.common, 'layer')} in common{same}")


def _layer(layer: ImageLayer) -> str:
    from danlu.cli.terminal import clean
    from danlu.cli.units import short_digest, size

    made = clean(" ".join(layer.created_by.split()))
    return f"{short_digest(layer.diff_id)}  {size(max(0, layer.size))}  {made}"


def _sizes(change: FileChange) -> str:
    from danlu.cli.units import size

    if change.kind == "changed":
        return f"  {size(change.before)} -> {size(change.after)}"
    number = change.before or change.after
    return f"  {size(number)}" if number else ""
