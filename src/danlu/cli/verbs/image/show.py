"""``danlu image show``."""

from __future__ import annotations

from typing import Any

import click

from danlu.cli.options import format_option, verbosity_options
from danlu.cli.session import session
from danlu.cli.verbs.image.common import image_argument, opened_store

__all__ = ["command"]


@click.command(name="show", short_help="Show one image: names, configuration, layers.")
@image_argument()
@format_option()
@verbosity_options
def command(image: str, form: str) -> None:
    """Show one image: names, configuration, layers."""
    import msgspec

    from danlu.cli.output import print_json
    from danlu.commands.images import find_image, layers_of, parsed_config, summary_fields

    run = session()
    with opened_store(run) as store:
        found = find_image(store, image)
        layers = layers_of(store, found)
        fields: dict[str, Any] = summary_fields(store, found)
    fields |= {
        "metadata": dict(found.metadata),
        "config": msgspec.to_builtins(parsed_config(found)),
        "layers": [msgspec.to_builtins(one) for one in layers],
    }
    if form == "json":
        print_json(fields, run.terminal)
    else:
        _text(fields)


def _text(fields: dict[str, Any]) -> None:
    import time

    from danlu.cli.terminal import clean
    from danlu.cli.units import ago, size

    terminal = session().terminal
    config = fields["config"]
    run = config.get("config") or {}
    rows = {
        "image": fields["digest"],
        "names": ", ".join(fields["names"]) or "-",
        "platform": f"{config['os']}/{config['architecture']}",
        "size": f"{size(fields['size'])} in {len(fields['layers'])} layers",
        "put here": ago(time.time() - fields["created"]),
        "from": fields["source"],
        "user": run.get("User", ""),
        "directory": run.get("WorkingDir", ""),
        "entrypoint": _words(run.get("Entrypoint")),
        "command": _words(run.get("Cmd")),
        "ports": ", ".join(run.get("ExposedPorts") or ()),
    }
    for name, value in rows.items():
        if value:
            terminal.data(f"{terminal.out_style(name.ljust(11), 'bold')} {clean(value)}")
    for name in ("Env", "Labels"):
        values = run.get(name) or ()
        lines = [f"{k}={v}" for k, v in values.items()] if isinstance(values, dict) else values
        for index, line in enumerate(lines):
            title = terminal.out_style(name.lower().ljust(11), "bold") if not index else " " * 11
            terminal.data(f"{title} {clean(line)}")


def _words(words: list[str] | None) -> str:
    import shlex

    return shlex.join(words or ())
