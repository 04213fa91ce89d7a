"""The program that replicas of a cell run: ``python run.py [--NAME VALUE …]``.

A second copy, ``spawned_main/danlu_cell.py``, is the module by which processes that
``multiprocessing`` spawns, and launchers that run ``python -m``, find the same ``__main__``.
"""

import importlib
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_root = _here if os.path.exists(os.path.join(_here, "manifest.json")) else os.path.dirname(_here)
sys.path.insert(0, _root)
_cell = importlib.import_module("danlu_replica.cell_entry")
sys.path.remove(_root)

if __name__ == "__main__":
    _cell.exit_process(_cell.main(_root, sys.argv[1:]))
_cell.run_as_spawned_main(_root, globals())
