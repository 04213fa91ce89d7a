"""The program of a cell's replicas: ``python run.py [--NAME VALUE …]``.

As ``again/danlu_cell.py`` it is also the module by which processes that ``multiprocessing`` spawns,
and launchers that start a program once more with ``python -m``, find the same ``__main__``.
"""

import importlib
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_root = _here if os.path.exists(os.path.join(_here, "order.json")) else os.path.dirname(_here)
sys.path.insert(0, _root)
_cell = importlib.import_module("danlu_guest.cell")
sys.path.remove(_root)

if __name__ == "__main__":
    _cell.leave(_cell.main(_root, sys.argv[1:]))
_cell.again(_root, globals())
