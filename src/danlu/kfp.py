"""Training jobs as a step of Kubeflow Pipelines; requires the package ``kfp``.

::

    from danlu.kfp import train_component

    train = train_component("registry.example/team/train:1")

    @dsl.pipeline
    def digits(lr: float = 0.1):
        train(program="train.py", args=["--lr", lr], options={"workers": 2, "on": "kubernetes"})
"""

# KFP reads the annotations of `train`, and runs its text with the names of `typing` and `kfp.dsl`.
import sys
from typing import Any, Optional

try:
    from kfp import dsl
    from kfp.dsl import Metrics, Model, Output
except ImportError as error:
    _install = f"{sys.executable} -m uv pip install --python {sys.executable} kfp"
    error.add_note(f"danlu.kfp requires the SDK of Kubeflow Pipelines: `{_install}`")
    raise

__all__ = ["train_component"]


def train_component(base_image: str, **settings: Any) -> Any:
    """Return a component that runs a training job and waits for its end.

    Its inputs are ``program`` (the path of a script or manifest) or ``manifest`` (its text),
    ``args`` of a script, and ``options``, the keywords of :func:`danlu.train`. Its outputs are
    ``metrics``, the last value of each metric that the job reported, ``model``, and ``job``, its
    name. The component fails if the job fails.

    The job finds the directory to which it writes the model in ``DANLU_MODEL_DIR``. On a cluster,
    which does not see the step's files, it writes the model to the address ``DANLU_MODEL_URI``.

    Args:
        base_image: Image of the step, which has danlu and the program.
        **settings: Further arguments of ``kfp.dsl.component``.
    """
    return dsl.component(train, base_image=base_image, **settings)


def train(
    metrics: Output[Metrics],
    model: Output[Model],
    job: dsl.OutputPath(str),  # type: ignore[valid-type]
    program: str = "",
    manifest: str = "",
    args: Optional[list[Any]] = None,  # noqa: UP045
    options: Optional[dict[str, Any]] = None,  # noqa: UP045
) -> None:
    """Run a training job and wait for its end."""
    # KFP sends the text of this function only.
    from danlu.api.pipeline_step import run_step

    run_step(program, manifest, args or [], options or {}, metrics=metrics, model=model, job=job)
