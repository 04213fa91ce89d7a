"""Build files to start from. Each is a file in ``templates``, whose first line describes it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from danlu.convert.host import PYTHONS
from danlu.errors import UsageError
from danlu.util.suggest import suggest_name

_SUFFIX = ".envd"


def list_templates() -> Mapping[str, str]:
    """Return what each template is for, by name."""
    directory = files("danlu.convert").joinpath("templates")
    return {
        entry.name.removesuffix(_SUFFIX): _read_summary(entry.read_text(encoding="utf-8"))
        for entry in sorted(directory.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(_SUFFIX)
    }


def render_template(name: str, release: str) -> str:
    """Return the build file of a template for a distribution, such as ``debian12``.

    Raises :class:`UsageError` for an unknown name.
    """
    known = list_templates()
    if name not in known:
        hint = suggest_name(name, tuple(known), what="templates")
        raise UsageError(f"unknown template '{name}'", hint=hint)
    path = files("danlu.convert").joinpath("templates", f"{name}{_SUFFIX}")
    text = path.read_text(encoding="utf-8")
    return text.replace("{os}", release).replace("{python}", PYTHONS[release])


def _read_summary(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ").rstrip(".")
