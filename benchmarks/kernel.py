"""Start-up time of danlu's kernel and IPython's: ``python -m benchmarks.kernel [--runs 9]``.

Both are started by this Python as Jupyter does, in turns, and measured until they have run a first
cell. danlu's kernel has the magics loaded then.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from jupyter_client.manager import KernelManager

#: The modules of the kernels.
KERNELS = {"danlu": "danlu.notebook.kernel", "IPython": "ipykernel_launcher"}


def start(module: str) -> float:
    """Return the seconds from starting a kernel to the end of its first cell."""
    manager = KernelManager()
    spec = manager.kernel_spec
    assert spec is not None
    command = ["-Xfrozen_modules=off", "-m", module, "-f", "{connection_file}"]
    spec.argv = [sys.executable, *command]
    began = time.monotonic()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        client.execute_interactive("1 + 1", timeout=60, output_hook=lambda message: None)
        return time.monotonic() - began
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def measure(runs: int) -> dict[str, list[float]]:
    """Return the seconds of every start; the first turn only fills caches."""
    figures: dict[str, list[float]] = {name: [] for name in KERNELS}
    for turn in range(runs + 1):
        for name, module in KERNELS.items():
            figure = start(module)
            if turn:
                figures[name].append(figure)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel", description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="starts; the table has the median")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="danlu-bench.") as name:
        os.environ["IPYTHONDIR"] = str(Path(name, "ipython"))
        os.environ["JUPYTER_RUNTIME_DIR"] = str(Path(name, "runtime"))
        os.environ["DANLU_HOME"] = str(Path(name, "home"))
        figures = measure(options.runs)
    print("| kernel | start to the end of the first cell |\n|---|---|")
    for name, some in figures.items():
        print(f"| {name} | {statistics.median(some):.3f} s |")
    pairs = zip(figures["danlu"], figures["IPython"], strict=True)
    print(f"| ratio, median over turns | {statistics.median(a / b for a, b in pairs):.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
