"""Kubeflow's SDK on this machine: its client, and everything else of ``kubeflow.trainer``.

A script or notebook for ``kubeflow.trainer`` runs here after one line is changed::

    from danlu.kubeflow import CustomTrainer, TrainerClient

Nothing of danlu imports this package; it requires the package ``kubeflow``.
"""

from __future__ import annotations

import sys

try:
    import kubeflow.trainer as _sdk
except ImportError as error:
    _install = f"{sys.executable} -m uv pip install --python {sys.executable} kubeflow"
    error.add_note(f"danlu.kubeflow requires Kubeflow's SDK: `{_install}`")
    raise

from danlu.kubeflow.client import LocalBackend, TrainerClient

__all__ = ["LocalBackend", "TrainerClient"]


def __getattr__(name: str) -> object:
    """Return a name of ``kubeflow.trainer``."""
    return getattr(_sdk, name)
