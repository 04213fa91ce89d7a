"""Make the reference page and the stubs from the table: ``python -m danlu.lang.reference``.

Run it at the root of the repository; with ``--check`` it only says what is not current.
"""

from __future__ import annotations

import sys

from danlu.lang.entries.data import DATA_SCHEME
from danlu.lang.function import REQUIRED, Function, Parameter
from danlu.lang.stubs import editor_stub, package_stub, signature, status
from danlu.lang.table import NAMESPACES, PATHS, TABLE
from danlu.util.pages import write_pages

__all__ = ["files", "main", "page"]

_INTRODUCTION = """\
<!-- Made by `python -m danlu.lang.reference` from danlu.lang.table; do not edit. -->

# The build language

An environment is described by a function, in a `build.envd` (Starlark) or in a `build.py`
(Python, `from danlu import base, install, …`). Both have the functions of this page.

```python
def build():
    base(os="debian12", dev=True)
    install.python("3.11")
    install.python_packages(["torch", "numpy"])
    run(["python -c 'import torch'"])
```

* `base`, `install.*`, `config.*` and `runtime.*` *declare*: their order does not matter.
  `io.*` and `run()` are *steps*, and come after everything declared: in a `build.envd` first the
  `io.*`, then the `run()`s, each in the order written; in a `build.py` all in the order written.
* One file can have several build functions: `-f build.envd:serve`. The default is `build`.
* What is called at the top level of a file counts for every build function of it.
* Lists may be tuples. `None` for an argument with a default means: not given.
* Declaring a single-valued thing twice is an error, unless both are equal.
* `load("other.envd", "name")` takes names from a file of the project, `include(url)` all
  functions of a git repository. A `build.py` imports the Python files beside it.
* Files of envd, language v1 and v0, are understood as they are. A `build.envd` is evaluated
  in a process of its own, with 10 seconds and 256 MiB of memory.

*built*: this version builds it. *at start*: changes nothing in the image; it waits for
`danlu up`. *planned*: checked and shown by `danlu plan`, not built by this version.
"""

_TITLES = {
    "": "Functions",
    "install": "install: languages, tools, packages",
    "config": "config: mirrors, services, resources",
    "io": "io: files",
    "runtime": "runtime: when the environment starts",
    "data": "data: directories of the host",
}


def page() -> str:
    """Return the text of the reference page."""
    blocks = [_INTRODUCTION]
    for namespace in ("", *NAMESPACES):
        blocks.append(f"## {_TITLES[namespace]}\n")
        for function in TABLE.values():
            if function.namespace == namespace:
                blocks.append(_entry(function))
        if namespace == "data":
            blocks.append(_paths())
    return "\n".join(blocks)


def _entry(function: Function) -> str:
    prefix = f"{function.namespace}." if function.namespace else ""
    versions = "both" if len(function.versions) == 2 else function.versions[0]
    lines = [
        f"### `{function.name}`\n",
        f"```python\n{prefix}{signature(function, types=False)}\n```\n",
        f"{function.doc}\n",
        f"*{status(function)}* · envd's language: {versions}"
        + (" · once" if function.single else "")
        + "\n",
    ]
    if function.parameters:
        lines += ["| argument | type | default | |", "|---|---|---|---|"]
        lines += [_row(parameter) for parameter in function.parameters]
        lines.append("")
    if function.example:
        lines.append(f"```python\n{function.example}\n```\n")
    return "\n".join(lines)


def _row(parameter: Parameter) -> str:
    default = "required" if parameter.default is REQUIRED else f"`{_shown(parameter.default)}`"
    names = " or ".join(f"`{name}`" for name in (parameter.name, *parameter.aliases))
    return f"| {names} | {parameter.kind.words} | {default} | {parameter.doc} |"


def _shown(value: object) -> str:
    if value == ():
        return "[]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _paths() -> str:
    lines = [
        "### `data.path`\n",
        "Where well-known libraries keep their data, in a user's home; for `runtime.mount`.\n",
        "| value | |",
        "|---|---|",
    ]
    lines += [f"| `data.path.{name}` | `{path}` |" for name, path in PATHS.items()]
    lines += ["", f"The value of `data.envd(name)` is the text `{DATA_SCHEME}name`.", ""]
    return "\n".join(lines)


def files() -> dict[str, str]:
    """Return the texts that are made from the table, by path in the repository."""
    return {
        "docs/reference/build-language.md": page(),
        "docs/reference/stubs/__builtins__.pyi": editor_stub(),
        "src/danlu/__init__.pyi": package_stub(),
    }


def main(arguments: list[str]) -> int:
    """Write the files, or with ``--check`` name those that differ; return the exit code."""
    return write_pages(files(), arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
