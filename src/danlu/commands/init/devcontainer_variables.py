"""Variables in ``devcontainer.json``: those that an environment knows, and those of the host."""

from __future__ import annotations

import re

from danlu.environment.image_layout import PROJECT

_VARIABLE = re.compile(r"\$\{([A-Za-z]+)(?::([^}:]*)(?::([^}]*))?)?\}")


class VariableExpander:
    """Expands variables for a project whose directory is called ``name``.

    Values of the host do not belong in a build file, which others use too: ``${localEnv:NAME}`` is
    replaced only by its default.
    """

    def __init__(self, name: str) -> None:
        self._values = {
            "containerWorkspaceFolder": PROJECT,
            "containerWorkspaceFolderBasename": PROJECT.lstrip("/"),
            "localWorkspaceFolderBasename": name,
        }
        self._note = ""

    def expand(self, text: str) -> tuple[str, str]:
        """Return the expanded text, and what is wrong with it or nothing."""
        problems: list[str] = []

        def find_value(match: re.Match[str]) -> str:
            kind, name, default = match[1], match[2], match[3]
            if kind in self._values and name is None:
                return self._values[kind]
            if kind in ("localEnv", "env") and default is not None:
                self._note = f"{match[0]} was replaced by its default {default!r}"
                return default
            problems.append(_describe_variable(kind, match[0]))
            return match[0]

        expanded = _VARIABLE.sub(find_value, text)
        return expanded, "; ".join(dict.fromkeys(problems))

    def take_note(self) -> str:
        """Return what the user should know about the last expansion, once."""
        note, self._note = self._note, ""
        return note


def _describe_variable(kind: str, text: str) -> str:
    if kind in ("localEnv", "env", "localWorkspaceFolder"):
        return f"{text} is a value of the host, which a build file cannot depend on"
    if kind == "containerEnv":
        return f"{text} is known only in the container"
    return f"{text} has no equivalent"
