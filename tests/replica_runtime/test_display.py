"""Displays of rank 0: written for the notebook, else printed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from danlu.notebook.display_reader import DisplayReader, sanitize_output
from danlu.replica_runtime import encoding
from danlu.replica_runtime.display import FILE, MAX_OUTPUT
from tests.replica_runtime.bundles import CellResult, run, write_cell_bundle

PNG = b"\x89PNG\r\n\x1a\n" + b"picture"

#: As much of matplotlib as a backend sees, for a replica that has none.
MATPLOTLIB = {
    "__init__.py": "from .rcsetup import _auto_backend_sentinel as automatic\n"
    "rcParams = {'backend': automatic}\n",
    "rcsetup.py": "_auto_backend_sentinel = object()\n",
    "_pylab_helpers.py": "class Gcf:\n    figures = []\n"
    "    get_all_fig_managers = classmethod(lambda cls: list(cls.figures))\n"
    "    destroy_all = classmethod(lambda cls: cls.figures.clear())\n",
    "backend_bases.py": "class FigureManagerBase:\n"
    "    def __init__(self, canvas, number): self.canvas = canvas\n",
    "backends/__init__.py": "",
    "backends/backend_agg.py": "class FigureCanvas:\n"
    "    def __init__(self, figure): self.figure = figure\n",
    "figure.py": f"class Figure:\n    def savefig(self, file, **options): file.write({PNG!r})\n",
    "pyplot.py": "import importlib, matplotlib\nfrom matplotlib._pylab_helpers import Gcf\n"
    "backend = importlib.import_module(matplotlib.rcParams['backend'].partition('//')[2])\n"
    "def figure(): Gcf.figures.append(backend.new_figure_manager(1))\n"
    "show = backend.show\n",
}


def run_and_read_displays(
    notebook: Path, code: str, **environ: str
) -> tuple[CellResult, list[dict[str, Any]]]:
    """Run a cell whose displays are recorded; return its result and the displays."""
    path = notebook / "displays"
    for name, text in MATPLOTLIB.items():
        file = notebook / "site" / "matplotlib" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    environ = {FILE: str(path), "PYTHONPATH": str(notebook / "site"), **environ}
    result = run(write_cell_bundle(notebook, code, path=[]), environ=environ)
    return result, [encoding.decode(data) for data in records(path)]


def records(path: Path) -> list[bytes]:
    data, result = path.read_bytes() if path.exists() else b"", []
    while data:
        length = 8 + int.from_bytes(data[:8], "big")
        result.append(data[8:length])
        data = data[length:]
    return result


def test_displayed_objects_are_written_in_order(notebook: Path) -> None:
    code = (
        "class Table:\n    def __repr__(self): return 'table'\n"
        "    def _repr_html_(self): return '<b>table</b>'\n"
        "    def _repr_latex_(self): 1 / 0\n"
        f"    def _repr_png_(self): return {PNG!r}\n"
        "display(Table(), Table)\nfrom builtins import display as again\nagain('text')\n"
    )
    result, found = run_and_read_displays(notebook, code)
    assert (result.code, result.out) == (0, "")
    assert result.err == "danlu: Table._repr_latex_ failed: division by zero\n"
    assert found == [
        {"text/plain": "table", "image/png": PNG, "text/html": "<b>table</b>"},
        {"text/plain": "<class '__main__.Table'>"},
        {"text/plain": "'text'"},
    ]


def test_figures_are_displayed_on_show_and_at_the_end(notebook: Path) -> None:
    code = (
        "import matplotlib, matplotlib.pyplot as plt\n"
        "plt.figure()\nplt.show()\ndisplay(1)\nplt.figure()\n"
        "print(matplotlib.rcParams['backend'])\n"
    )
    result, found = run_and_read_displays(notebook, code)
    assert (result.code, result.out, result.err) == (
        0,
        "module://danlu_replica.matplotlib_backend\n",
        "",
    )
    assert [forms.get("image/png") for forms in found] == [PNG, None, PNG]


@pytest.mark.parametrize("name", ["LOCAL_RANK", "PMI_RANK"])
def test_other_ranks_display_nothing(notebook: Path, name: str) -> None:
    result, found = run_and_read_displays(notebook, "display(1)\n", **{name: "1"})
    assert (result.code, result.out, found) == (0, "1\n", [])


def test_without_display_file_values_are_printed(notebook: Path) -> None:
    result = run(write_cell_bundle(notebook, "display({'a': 1}, 'text')\n"), environ={})
    assert (result.out, result.err) == ("{'a': 1}\ntext\n", "")


def test_patched_module_keeps_its_own_loader(notebook: Path) -> None:
    code = "import matplotlib\nprint(type(matplotlib.__loader__).__name__)\n"
    result, _ = run_and_read_displays(notebook, code)
    assert result.out == "SourceFileLoader\n"


def test_too_large_output_is_skipped(notebook: Path) -> None:
    code = (
        "class Big:\n    def __repr__(self): return 'big'\n"
        f"    def _repr_png_(self): return bytes({MAX_OUTPUT})\ndisplay(Big(), 1)\n"
    )
    result, found = run_and_read_displays(notebook, code)
    assert (result.code, len(found)) == (0, 1)
    assert "output not displayed" in result.err


# -- in the notebook ------------------------------------------------------------------------------


def test_markup_requires_a_trusted_environment() -> None:
    forms = {
        "text/plain": "a\x1b[2Jb\nc",
        "image/png": PNG,
        "image/jpeg": b"no jpeg",
        "text/html": "<script>",
        "image/svg+xml": "<svg onload='x'/>",
        "text/markdown": "![](x)",
        "application/javascript": "x()",
        "application/vnd.jupyter.widget-view+json": "{}",
        7: "x",
    }
    plain = {"text/plain": "ab\nc", "image/png": "iVBORw0KGgpwaWN0dXJl"}
    assert sanitize_output(forms, trusted=False) == plain
    assert sanitize_output(forms, trusted=True).keys() == {
        *plain,
        "text/html",
        "image/svg+xml",
        "text/markdown",
    }
    with pytest.raises(encoding.DecodeError):
        sanitize_output([], trusted=True)


def encode_frame(value: Any) -> bytes:
    data = bytes(encoding.encode(value))
    return len(data).to_bytes(8, "big") + data


def reader(path: Path) -> tuple[DisplayReader, list[str]]:
    output: list[str] = []
    result = DisplayReader(
        lambda job: (path, False), lambda data: output.append(data["text/plain"][:60])
    )
    return result, output


def test_complete_outputs_are_shown_once(tmp_path: Path) -> None:
    path = tmp_path / "displays"
    show, output = reader(path)
    show.show_new("job")
    first, second = encode_frame({"text/plain": "one"}), encode_frame({"text/plain": "two"})
    path.write_bytes(first + second[:12])
    show.show_new("job")
    show.show_new("job")
    assert output == ["one"]
    path.write_bytes(first + second)
    show.show_new("job")
    assert output == ["one", "two"]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\xff" * 100, []),
        (
            (10).to_bytes(8, "big") + b"no output!",
            ["cannot read an output of job: the signature of an encoded va"],
        ),
        (encode_frame([1]), ["cannot read an output of job: not a mapping by MIME type"]),
        (encode_frame({"text/plain": b"no text"}), [""]),
    ],
)
def test_invalid_output_is_reported(data: bytes, shown: list[str], tmp_path: Path) -> None:
    path = tmp_path / "displays"
    path.write_bytes(data)
    show, result = reader(path)
    show.show_new("job", everything=True)
    assert result == shown


def test_only_the_first_outputs_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "displays"
    path.write_bytes(encode_frame({"text/plain": "x"}) * 200)
    show, output = reader(path)
    show.show_new("job", everything=True)
    show.show_new("job", everything=True)
    assert output == ["x"] * 99 + ["… only the first 100 outputs of job are shown"]


def test_symlink_in_place_of_the_display_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(encode_frame({"text/plain": "of this machine"}))
    os.symlink(tmp_path / "other", tmp_path / "displays")
    show, output = reader(tmp_path / "displays")
    show.show_new("job", everything=True)
    assert output == []
