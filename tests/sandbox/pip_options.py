"""Answer, for the tests: which options would pip use with these files and variables?

Reads one JSON object per line, ``{"environ": …, "flags": [names]}``, and writes one: the values of
``pip install`` by long name, or ``{"refused": reason}``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys

from pip._internal.commands import create_command

NAMES = ("index-url", "extra-index-url", "find-links", "trusted-host", "no-index", "timeout", "pre")


def read_options() -> dict[str, object]:
    parser = create_command("install").parser
    messages = io.StringIO()
    try:
        with contextlib.redirect_stdout(messages), contextlib.redirect_stderr(messages):
            values, _ = parser.parse_args([])
    except SystemExit:
        return {"refused": messages.getvalue().strip()}
    options = {name: parser.get_option(f"--{name}") for name in NAMES}
    return {name: getattr(values, str(option and option.dest)) for name, option in options.items()}


for line in sys.stdin:
    os.environ.clear()
    os.environ.update(json.loads(line))
    print(json.dumps(read_options()), flush=True)
