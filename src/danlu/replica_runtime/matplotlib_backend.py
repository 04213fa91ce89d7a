"""A matplotlib backend that shows the figures of a replica in the notebook.

Like Jupyter's inline backend it draws with Agg, and ``show()`` shows and closes all figures.
"""

import importlib
from typing import Any

from . import display

_agg = importlib.import_module("matplotlib.backends.backend_agg")
_helpers = importlib.import_module("matplotlib._pylab_helpers")

FigureCanvas = _agg.FigureCanvas
FigureManager = importlib.import_module("matplotlib.backend_bases").FigureManagerBase


def new_figure_manager(number: int, *arguments: Any, **options: Any) -> Any:
    """Create a figure and return its manager."""
    create = options.pop("FigureClass", importlib.import_module("matplotlib.figure").Figure)
    return new_figure_manager_given_figure(number, create(*arguments, **options))


def new_figure_manager_given_figure(number: int, figure: Any) -> Any:
    """Return a manager for a figure."""
    return FigureManager(FigureCanvas(figure), number)


def show(*arguments: object, **options: object) -> None:
    """Show all figures in the notebook and close them."""
    try:
        for manager in _helpers.Gcf.get_all_fig_managers():
            display.display(manager.canvas.figure)
    finally:
        _helpers.Gcf.destroy_all()
