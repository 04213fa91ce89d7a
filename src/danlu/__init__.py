"""danlu takes machine-learning work from a laptop to a cluster in one tool.

In a ``build.py`` the functions of the build language are imported from here
(``from danlu import base, install, run``), ``danlu.train`` runs a training job and
``danlu.attach`` waits for one that was left running, ``danlu.sweep`` runs many of them; a job that
fails raises ``danlu.JobFailed``; a training program reports its progress with ``danlu.report``
and saves its checkpoints in ``danlu.checkpoint_dir()``.
``danlu.pack`` packs a trained model into an image.
Attributes are imported lazily.
"""

from importlib import import_module

__version__ = "0.1.0"

__all__ = [
    "JobFailed",
    "attach",
    "base",
    "checkpoint_dir",
    "config",
    "data",
    "git_config",
    "install",
    "io",
    "pack",
    "report",
    "run",
    "runtime",
    "shell",
    "sweep",
    "train",
]


#: By name: every package imports from this one, and stands below the API.
_ELSEWHERE = {
    "JobFailed": "danlu.errors",
    "attach": "danlu.api",
    "checkpoint_dir": "danlu.replica_runtime.report",
    "pack": "danlu.api",
    "report": "danlu.replica_runtime.report",
    "sweep": "danlu.api",
    "train": "danlu.api",
}


def __getattr__(name: str) -> object:  # the types are in __init__.pyi
    if name not in __all__:
        raise AttributeError(f"module 'danlu' has no attribute '{name}'")
    if name in _ELSEWHERE:
        return getattr(import_module(_ELSEWHERE[name]), name)
    from danlu.lang.python_namespace import LANGUAGE

    return LANGUAGE[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
