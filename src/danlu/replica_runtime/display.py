"""Show objects and figures of rank 0 in the notebook: ``display(…)`` and pyplot's ``show()``.

Outputs are appended to the file named by ``DANLU_DISPLAY_FILE``: 8 bytes of length, then a mapping
by MIME type in the format of ``encoding.py``. The notebook decides what of it is safe to show. If
the variable is not set, ``display`` prints, and matplotlib is left alone.
"""

import builtins
import importlib.util
import io
import os
import sys
from typing import Any

from . import encoding

FILE = "DANLU_DISPLAY_FILE"

#: The maximum size of one output and of all outputs in bytes, and of a text in characters.
MAX_OUTPUT, MAX_FILE, MAX_TEXT = 8 << 20, 64 << 20, 1 << 18

#: IPython's rich display methods.
_METHODS = (
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("image/svg+xml", "_repr_svg_"),
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
)

#: The rank of a process among those that a launcher started (torchrun, Open MPI, MPICH).
_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def install() -> None:
    """Provide ``display`` as a builtin, and let matplotlib draw for the notebook."""
    vars(builtins).setdefault("display", display)
    if _is_enabled():
        sys.meta_path.insert(0, _PatchingFinder())


def _is_enabled() -> bool:
    return FILE in os.environ and all(os.environ.get(name, "0") == "0" for name in _RANKS)


def display(*values: object, **options: object) -> None:
    """Show values as a notebook does; the options of IPython's function are ignored."""
    for value in values:
        if _is_enabled():
            _write_output(_render_value(value))
        else:
            print(value if isinstance(value, str) else repr(value))


def _render_value(value: Any) -> "dict[str, Any]":
    """Return the forms of a value by MIME type."""
    forms = {"text/plain": repr(value)[:MAX_TEXT]}  # type: dict[str, Any]
    if type(value).__module__.partition(".")[0] == "matplotlib" and hasattr(value, "savefig"):
        file = io.BytesIO()
        value.savefig(file, format="png", bbox_inches="tight")
        forms["image/png"] = file.getvalue()
        return forms
    for mime, name in _METHODS:
        method = None if isinstance(value, type) else getattr(value, name, None)
        if callable(method):
            try:
                form = method()
            except Exception as error:
                sys.stderr.write(f"danlu: {type(value).__name__}.{name} failed: {error}\n")
                continue
            # The method may return (data, metadata).
            form = form[0] if isinstance(form, tuple) and form else form
            if isinstance(form, (str, bytes)) and form:
                forms[mime] = form
    return forms


def _write_output(forms: "dict[str, Any]") -> None:
    data = bytes(encoding.encode(forms))
    path = os.environ[FILE]
    try:
        size = os.path.getsize(path) if os.path.exists(path) else 0
        if len(data) > MAX_OUTPUT or size + len(data) > MAX_FILE:
            sys.stderr.write("danlu: output not displayed: too large\n")
            return
        with open(path, "ab") as file:
            file.write(len(data).to_bytes(8, "big") + data)
    except OSError as error:
        sys.stderr.write(f"danlu: output not displayed: {error}\n")


def flush_figures() -> None:
    """Show the figures that are still open, as at the end of a notebook's cell."""
    backend = sys.modules.get(f"{__package__}.matplotlib_backend")
    if backend is not None and _is_enabled():
        try:
            backend.show()
        except Exception as error:
            sys.stderr.write(f"danlu: figure not displayed: {error}\n")


# -- patches applied to modules when they are imported --------------------------------------------


def _select_backend(matplotlib: Any) -> None:
    """Select our backend unless the user or a configuration file chose one."""
    setup = sys.modules.get("matplotlib.rcsetup")
    automatic = getattr(setup, "_auto_backend_sentinel", None)
    # dict.__getitem__: rcParams["backend"] would resolve the automatic choice.
    if dict.__getitem__(matplotlib.rcParams, "backend") is automatic:
        matplotlib.rcParams["backend"] = f"module://{__package__}.matplotlib_backend"


def _replace_display(functions: Any) -> None:
    functions.display = display


_PATCHES = {
    "matplotlib": _select_backend,
    "IPython.core.display_functions": _replace_display,
}


class _PatchingFinder:
    """A meta path finder that patches the modules in :data:`_PATCHES` after they are loaded."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _PATCHES or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader)  # type: ignore[assignment]
        return spec


class _PatchingLoader:
    """Loads a module with its original loader, restores that loader, and applies the patch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            _PATCHES[module.__name__](module)
        except Exception as error:
            sys.stderr.write(f"danlu: cannot display figures of {module.__name__}: {error}\n")
