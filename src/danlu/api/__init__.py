"""The Python API for jobs: ``danlu.train``, ``danlu.attach`` and ``danlu.sweep``.

A training script may import these functions, and so does every replica that runs the script. So
this package loads its implementation (:mod:`danlu.api.jobs`) only when a function is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

if TYPE_CHECKING:
    from danlu.jobs.report import JobSummary
    from danlu.submission.options import TrainKeywords
    from danlu.sweeps.report import SweepReport
    from danlu.sweeps.study import OptunaStudy

    class _TrainArguments(TrainKeywords, total=False):
        """The arguments of :func:`train` that do not affect its return type."""

        args: Sequence[Any]
        kwargs: Mapping[str, Any] | None
        log: Callable[[str], object] | None


__all__ = ["attach", "pack", "sweep", "train"]

T = TypeVar("T")


@overload
def train(
    target: Callable[..., Coroutine[Any, Any, T]],
    *,
    every: Literal[False] = ...,
    detach: Literal[False] = ...,
    **options: Unpack[_TrainArguments],
) -> T: ...


@overload
def train(
    target: Callable[..., Coroutine[Any, Any, T]],
    *,
    every: Literal[True],
    detach: Literal[False] = ...,
    **options: Unpack[_TrainArguments],
) -> dict[str, T]: ...


@overload
def train(
    target: Callable[..., T],
    *,
    every: Literal[False] = ...,
    detach: Literal[False] = ...,
    **options: Unpack[_TrainArguments],
) -> T: ...


@overload
def train(
    target: Callable[..., T],
    *,
    every: Literal[True],
    detach: Literal[False] = ...,
    **options: Unpack[_TrainArguments],
) -> dict[str, T]: ...


@overload
def train(
    target: str | os.PathLike[str],
    *,
    detach: Literal[False] = ...,
    **options: Unpack[_TrainArguments],
) -> JobSummary: ...


@overload
def train(
    target: Callable[..., Any] | str | os.PathLike[str],
    *,
    every: bool = ...,
    detach: Literal[True],
    **options: Unpack[_TrainArguments],
) -> str: ...


@overload
def train(
    target: Callable[..., Any] | str | os.PathLike[str],
    *,
    every: bool = ...,
    detach: bool = ...,
    **options: Unpack[_TrainArguments],
) -> Any: ...


def train(
    target: Callable[..., Any] | str | os.PathLike[str],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    every: bool = False,
    detach: bool = False,
    log: Callable[[str], object] | None = print,
    **options: Unpack[TrainKeywords],
) -> Any:
    """Run a training job and wait for it to end.

    ``target`` is one of:

    - A function, which is called on every replica with ``args`` and ``kwargs``. An ``async def``
      function runs in a new event loop. Containers need cloudpickle on this machine and the same
      minor version of Python in the image.
    - The path of a script, run with the arguments ``args``.
    - The path of a manifest (``.yaml``, ``.yml`` or ``.json``).

    Replicas run as processes of the current Python, or in containers of ``env`` or ``image``.

    Args:
        target: What to run.
        args: Arguments of the function or script.
        kwargs: Keyword arguments of the function.
        every: Return the values of all replicas instead of rank 0's.
        detach: Return immediately, and keep the job running when this process exits. By default
            the job stops when this process exits, for whatever reason.
        log: Called with each line of the replicas' output.
        **options: See below; None means the default.

    Keyword Args:
        framework (str): Training framework; by default detected from imports.
        workers (int): Number of workers; short for ``replicas={"worker": …}``.
        replicas (Mapping[str, int]): Number of replicas by replica type.
        cpu (float | str): CPU cores per replica.
        memory (str): Memory per replica, such as ``"4G"``.
        gpu (int): GPUs per replica.
        env (str): Build file of the environment, ``FILE[:FUNC]``.
        image (str): Image to run in.
        host_python (bool): Use the current Python even if the directory has a build file.
        environment (Mapping[str, str]): Additional environment variables.
        name (str): Name of the job.
        restart (str): Restart policy of the replicas; ``"Job"`` recreates all of them if one fails.
        backoff_limit (int): Number of restarts before the job fails.
        deadline (float): Seconds after which the job fails.
        clean_pod_policy (str): Which pods to delete when the job ends.
        queue (str): Queue of the cluster, of Kueue or Volcano, in which the job waits.
        volumes (Sequence[str]): Files and directories to mount into containers,
            ``SOURCE:TARGET[:ro]``.
        claims (Mapping[str, str]): Directories for the PersistentVolumeClaims of a manifest, by
            claim name.
        trust_results (bool): Unpickle results from images and clusters, which can run code in this
            process (see SECURITY.md). By default only plain data, arrays, tensors and data frames
            are accepted from them.
        on (str): Context to run in, as for ``danlu train --on``. On a cluster replicas run in
            containers, and their code is sent with the job.

    Returns:
        For a function its return value on rank 0, or with ``every`` a dict of return values by
        replica name (``worker-0``). For a script or manifest a
        :class:`~danlu.jobs.report.JobSummary`. With ``detach`` the name of the job.

    Raises:
        danlu.errors.JobFailed: If the job fails; raised from the function's exception.
        danlu.errors.UsageError: For invalid arguments.

    An interrupt stops the job.
    """
    # Loaded when called: see the module's docstring.
    from danlu.api import jobs
    from danlu.submission.options import TrainOptions

    train_options = TrainOptions.from_keywords(Path.cwd(), tied=True, **options)
    run = jobs.RunOptions(log, every, detach, train_options.trust_results)
    if not callable(target):
        target = os.fspath(target)
    return jobs.train_target(target, args, kwargs or {}, train_options, run)


def attach(
    name: str,
    *,
    every: bool = False,
    trust_results: bool = False,
    on: str = "",
    log: Callable[[str], object] | None = print,
) -> Any:
    """Wait for a job that was started with ``detach`` and return what :func:`train` would have.

    ``log`` is called with all lines of output from the start of the job. The other arguments and
    the errors are those of :func:`train`. An interrupt leaves the job running.
    """
    # Loaded when called: see the module's docstring.
    from danlu.api import jobs

    run = jobs.RunOptions(log, every, detach=False, trusted=trust_results)
    return jobs.attach_to_job(name, run, on=on)


def sweep(
    script: str | os.PathLike[str],
    space: Mapping[str, str | Sequence[Any]],
    *,
    study: OptunaStudy | None = None,
    trials: int | None = None,
    parallel: int | None = None,
    metric: str = "",
    goal: str = "min",
    pattern: str = "",
    args: Sequence[Any] = (),
    changed: Callable[[SweepReport], object] = lambda report: None,
    **options: Unpack[TrainKeywords],
) -> SweepReport:
    """Train a script or manifest once for every combination of parameters.

    Each parameter is appended to ``args`` as ``--NAME VALUE``, or replaces ``{NAME}`` in them.

    Args:
        script: Path of the script or manifest.
        space: Values by parameter name: a sequence, or a range in the syntax of
            ``danlu train --sweep`` (``"2:6"``, ``"1e-4:1e-1:log"``).
        study: A new Optuna study, which suggests the points instead of the full grid and receives
            the result of each trial.
        trials: Number of points to try; required with a study.
        parallel: Number of jobs at a time; by default as many as fit.
        metric: Name of the metric to optimize; each trial's value is the last one reported.
        goal: ``min`` or ``max``.
        pattern: Regular expression to read the metric from the leader's log (the last match).
        changed: Called with the report after every change of a trial.

    The remaining arguments are those of :func:`train`.

    Returns:
        A report: ``trials`` are all trials, ``best`` is the best one. Failed trials do not raise.

    Raises:
        danlu.errors.UsageError: For invalid arguments.

    An interrupt stops the running jobs.
    """
    # Loaded when called: see the module's docstring.
    from danlu.api import jobs
    from danlu.submission.options import TrainOptions

    program = jobs.program_fields(os.fspath(script), args)
    train_options = TrainOptions.from_keywords(Path.cwd(), tied=True, **program, **options)
    return jobs.run_sweep(
        train_options,
        space,
        study,
        trials=trials,
        parallel=parallel,
        metric=metric,
        goal=goal,
        pattern=pattern,
        changed=changed,
    )


def pack(
    model: Any,
    tag: str,
    *,
    example: Any = None,
    predictor: str = "",
    env: str = "",
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    log: Callable[[str], object] | None = print,
) -> dict[str, Any]:
    """Pack a model into an image, as ``danlu pack`` does, and return its report.

    The image has the packages of the environment that the working directory's build file
    describes, so the model must have been trained with the same versions.

    Args:
        model: A scikit-learn estimator, a PyTorch network, an XGBoost model, or the path of a model
            directory.
        tag: Name of the image.
        example: An input of the predictor: numbers, text, lists, arrays or tensors. A PyTorch
            network is traced with it (TorchScript).
        predictor: ``FILE:CLASS``, or the name of a ready-made one; by default chosen by the files.
        env: Build file of the environment, ``FILE[:FUNC]``.
        keep: Packages to keep in any case.
        drop: Packages to leave out in any case.
        log: Called with each line of the progress.

    Returns:
        The report of ``danlu pack --format json``.

    Raises:
        DanluError: If the image could not be built, or gives other outputs.
    """
    from danlu.api.packing import pack_object

    return pack_object(
        model,
        tag,
        example=example,
        predictor=predictor,
        env=env,
        keep=keep,
        drop=drop,
        log=log,
    )
