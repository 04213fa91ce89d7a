"""The reference of cells, made from the table of keys: ``python -m danlu.notebook.reference``.

The same table in fewer words is what ``%%distributed --help`` shows.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator

from danlu.notebook import keys
from danlu.notebook.keys import KEYS, Key
from danlu.util.pages import write_pages

__all__ = ["PAGE", "help_text", "main", "reference"]

PAGE = "docs/reference/notebook.md"

_HEAD = """\
# Cells that are jobs

*Made by `python -m danlu.notebook.reference` from the table of keys; do not edit.*

What a cell asks for is said in lines before its code, in ciao's words:

```python
%framework=tensorflow
%ps=1;%cpu=500m;%memory=1Gi
%worker=2
%cleanPolicy=running

import tensorflow as tf
```

or as options, in any IPython:

```python
%%distributed --framework tensorflow --ps "1;cpu=500m;memory=1Gi" --worker 2 --clean-policy running
import tensorflow as tf
```

## How a line is read

* A key stands where a logical line of code begins, unindented: never in a string, in brackets,
  after a backslash, nor in a cell that begins with another `%%magic`. Every other line reaches the
  replicas byte for byte, on the line it has in the cell.
* Blanks around `=` and `;` do not count, nor does letter case in keys, nor `-` and `_`.
* Several keys may share a line, with `;` between them: `%framework=pytorch;%worker=2`. `%cpu`,
  `%memory` and `%gpu` after a replica type are of that type, alone they are of all others.
* One key makes a cell a job. With blanks before `=` it takes `%framework` or a replica type, and
  `%env=A=1` alone does not, since IPython has magics of its own.
* A key that is unknown, misspelt or said twice is an error with its line, before anything starts.
* Lines of IPython (`!pip`, `%matplotlib inline`) are for the notebook: they need a cell of their
  own. `%kubeflow worker=1`, as ciao had it at first, is `%worker=1`.
* After `%%distributed` values are quoted as for a shell, `--key value` or `--key=value`; `--help`
  shows all keys.
"""

_ROLES = """\
## Replica types

How many replicas there are of a type, and after `;` what each of them may use: `%worker=4`,
`%worker=4;%cpu=2;%memory=4Gi;%gpu=1`, `--worker "4;cpu=2"`. A framework of another package brings
its own. Where none is said, it is one replica that computes.
"""

_WIDTH = 79


def reference() -> str:
    """The page."""
    rows = [
        (_shown(key), _option(key), key.takes or "`true` or `false`", key.help, _examples(key))
        for key in KEYS
    ]
    titles = ("key", "option", "value", "meaning", "for example")
    return "\n".join([_HEAD, "## Keys\n", _table(titles, rows), _ROLES, _types()])


def help_text() -> str:
    """What ``%%distributed --help`` shows, for a screen of 79 columns."""
    lines = [
        "%%distributed [--KEY VALUE …]: run the lines below on the replicas of a job.",
        "In the kernel danlu, or after %load_ext danlu.notebook in any, a cell may also",
        "begin with lines of the form %KEY=VALUE.",
        "",
        *_entry("--ROLE N[;cpu=Q][;memory=Q][;gpu=N]", "Replicas of a type: " + _listed()),
    ]
    for key in KEYS:
        names = f"-{key.short}, --{_long(key)}" if key.short else f"--{_long(key)}"
        lines += _entry(f"{names} {key.takes}".rstrip(), key.help.replace("`", ""))
    return "\n".join(lines)


def _entry(head: str, text: str) -> list[str]:
    return [
        f"  {head}",
        *textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6),
    ]


def _listed() -> str:
    return ", ".join(keys.spelled(one) for one in keys.roles().values())


def _types() -> str:
    from danlu.training.registry import BUILT_IN

    rows = [
        (f"`{one.name}`", ", ".join(f"`%{keys.spelled(type)}`" for type in one.types))
        for one in BUILT_IN
    ]
    return _table(("framework", "replica types"), rows)


def _shown(key: Key) -> str:
    return f"`%{key.name}`"


def _long(key: Key) -> str:
    return keys.spelled(key.name)


def _option(key: Key) -> str:
    short = f"`-{key.short}`, " if key.short else ""
    return f"{short}`--{_long(key)}`"


def _examples(key: Key) -> str:
    return ", ".join(f"`%{key.name}={one}`" for one in key.examples)


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(_rows(titles, rows)) + "\n"


def _rows(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    listed = list(titles)
    yield f"| {' | '.join(listed)} |"
    yield "|" + "---|" * len(listed)
    for row in rows:
        yield f"| {' | '.join(one.replace('|', chr(92) + '|') for one in row)} |"


def main(arguments: list[str]) -> int:
    """Write the page, or check it (``--check``)."""
    return write_pages({PAGE: reference()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
