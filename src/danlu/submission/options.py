"""The options of a training job, for ``danlu train``, ``danlu.train`` and notebook cells alike.

:data:`JOB_OPTIONS` is the table behind the flags of ``danlu train`` and the directives of cells.
An option is written ``--key value`` on the command line and after ``%%distributed``, and
``%key=value`` in a cell. ``danlu.train`` and ``danlu.sweep`` take its field as a keyword
(:class:`TrainKeywords`). An option that means something else in a cell has two rows. ``env`` is an
environment variable in ``danlu run`` and in IPython's ``%env``, and a build file too in ``danlu
train`` and in a cell, where the ``=`` of ``NAME=VALUE`` distinguishes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

import msgspec

from danlu.submission import option_values as convert
from danlu.submission.option_values import Converter
from danlu.training.names import WHOLE_JOB
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from danlu.training.types import CleanPodPolicy, RestartPolicy


class ReplicaResources(msgspec.Struct, frozen=True):
    """The resources of each replica of one type; empty (None) means as for all types."""

    cpu: str = ""
    memory: str = ""
    gpu: int | None = None


class TrainKeywords(TypedDict, total=False):
    """The keyword arguments of :func:`danlu.train` that become :class:`TrainOptions`.

    Each is the field with its name; ``workers`` is short for ``replicas={"worker": …}``. None means
    the default.
    """

    framework: str
    workers: int | None
    replicas: Mapping[str, int] | None
    cpu: float | str
    memory: str
    gpu: int | None
    env: str
    image: str
    host_python: bool
    environment: Mapping[str, str] | None
    name: str
    restart: str | None
    backoff_limit: int | None
    deadline: float | None
    clean_pod_policy: str | None
    queue: str
    volumes: Iterable[str]
    claims: Mapping[str, str] | None
    trust_results: bool
    on: str


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What flags, keywords and cells set in the same way (:data:`JOB_OPTIONS`).

    Empty text and None mean the default. ``cpu`` and ``memory`` are Kubernetes quantities of each
    replica, ``deadline`` is in seconds, ``volumes`` are ``SOURCE:TARGET[:ro]``. ``env``
    (``FILE[:FUNC]``) and ``image`` (a reference) exclude each other. ``on`` is where the job runs
    (:mod:`danlu.jobs.backends`), and ``queue`` one of the cluster's. ``environment`` are variables.
    ``trust_results`` opens pickles that replicas return (SECURITY.md).
    """

    framework: str = ""
    cpu: str = ""
    memory: str = ""
    gpu: int | None = None
    env: str = ""
    image: str = ""
    name: str = ""
    on: str = ""
    backoff_limit: int | None = None
    restart: str = ""
    deadline: float | None = None
    clean_pod_policy: str = ""
    queue: str = ""
    environment: Mapping[str, str] = {}
    volumes: tuple[str, ...] = ()
    trust_results: bool = False


class TrainOptions(JobOptions, frozen=True, kw_only=True):
    """A training job as the user asked for it.

    Exactly one of ``script`` (a path), ``module`` (a dotted name), ``command`` (a program and its
    arguments) and ``file`` (a manifest; ``-`` if it is ``text``) is given. ``args`` follow the
    script or the module.

    * ``replicas`` and ``resources`` are by replica type, in any case; ``cpu``, ``memory`` and
      ``gpu`` are for all types that ``resources`` does not name.
    * ``host_python`` excludes ``env`` and ``image``. Without any the job runs in the environment of
      the script's directory, else ``python`` (a path), else the active Python.
    * ``finish_timeout`` (how long other replicas may go on after the job succeeded) and ``grace``
      (before SIGKILL) are in seconds.
    * ``further_files`` are manifests with the training runtime of a TrainJob in ``file``.
    * ``claims`` are directories by the name of a manifest's PersistentVolumeClaim.
    * ``directory`` is the current directory of the command.
    * ``files``, ``value``, ``tied``, ``displays``, ``code`` and ``labels`` are as in
      :class:`~danlu.jobs.types.Submission`.
    """

    directory: Path
    script: str = ""
    module: str = ""
    command: tuple[str, ...] = ()
    file: str = ""
    further_files: tuple[str, ...] = ()
    text: str = ""
    args: tuple[str, ...] = ()
    replicas: Mapping[str, int] = {}
    resources: Mapping[str, ReplicaResources] = {}
    host_python: bool = False
    python: str = ""
    finish_timeout: float | None = None
    grace: int | None = None
    claims: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    files: Path | None = None
    value: Literal["none", "leader", "all"] = "none"
    tied: bool = False
    displays: bool = False
    code: Mapping[str, Path] = {}
    offline: bool = False
    frozen: bool = False

    @classmethod
    def from_keywords(cls, directory: Path, **keywords: Any) -> Self:
        """Build options from keywords. None means the default, and values are converted.

        Raises :class:`TypeError` for an unknown keyword.
        """
        values: dict[str, Any] = {
            name: value for name, value in keywords.items() if value is not None
        }
        workers = values.pop("workers", None)
        if workers is not None:
            values["replicas"] = {**values.get("replicas", {}), "worker": workers}
        if "cpu" in values:
            values["cpu"] = str(values["cpu"])
        for name in ("args", "volumes"):
            if name in values:
                values[name] = tuple(map(str, values[name]))
        return cls(directory=directory, **values)


# -- the table -------------------------------------------------------------------------------------


class JobOption(msgspec.Struct, frozen=True):
    """An option of a job.

    Attributes:
        metavar: Empty for an option that is true or false.
        examples: Values for the reference of cells; empty for a flag only.
        check: Converts the text of a directive.
        minimum: The smallest value of an integer.
        choices: The values, if only these are valid.
        aliases: Further names in cells; ciao's come first.
        short: The letter after ``-`` in ``%%distributed``.
        field: The field of the options that it sets, if its name differs.
        repeatable: Whether it may be given several times; its values are collected in a tuple.
        flag: Whether ``danlu train`` has it.
    """

    name: str
    metavar: str
    help: str
    examples: tuple[str, ...] = ()
    check: Converter = convert.single_word
    minimum: int | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    short: str = ""
    field: str = ""
    repeatable: bool = False
    flag: bool = True

    @property
    def field_name(self) -> str:
        """The field of the options that it sets."""
        return self.field or self.name.replace("-", "_")

    def read(self, text: str) -> Mapping[str, Any]:
        """Return the fields of a cell's options that the value ``text`` sets."""
        value = self._value_converter(text)
        if isinstance(value, Mapping):
            return {"environment": value}
        if self.repeatable and not isinstance(value, tuple):
            value = (value,)
        return {self.field_name: value}

    @property
    def _value_converter(self) -> Converter:
        if self.choices:
            return convert.choice(*self.choices)
        if self.minimum is not None:
            return convert.whole_number(self.minimum)
        return self.check if self.metavar else convert.boolean


def normalize_option_name(word: str) -> str:
    """Return the form in which names are compared: ``cleanPolicy`` equals ``clean-policy``."""
    return word.replace("-", "").replace("_", "").lower()


def format_option_name(name: str) -> str:
    """Return a name in kebab case, as flags have it: ``worker``, ``tuner-tracker``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


JOB_OPTIONS: tuple[JobOption, ...] = (
    JobOption(
        "framework",
        "NAME",
        "Framework [default: detected from the imports].",
        tuple(framework.name for framework in BUILT_IN_FRAMEWORKS[:2]),
        convert.framework,
    ),
    JobOption("cpu", "Q", "CPUs of each replica: 2 or 500m.", ("2", "500m"), convert.quantity),
    JobOption(
        "memory", "Q", "Memory of each replica: 512Mi, 4G.", ("512Mi", "4G"), convert.quantity
    ),
    JobOption(
        "gpu",
        "N",
        "GPUs of each replica that computes; 0 overrides a manifest's.",
        ("1",),
        minimum=0,
    ),
    JobOption(
        "env",
        "FILE[:FUNC]",
        "Environment to run in [default: the build file next to the script].",
    ),
    JobOption(
        "env",
        "NAME=VALUE or FILE[:FUNC]",
        "Set an environment variable (repeatable), or run in the environment of a build file.",
        ("EPOCHS=3", "build.envd:gpu"),
        convert.env,
        short="e",
        flag=False,
    ),
    JobOption("image", "REF", "Run in this image.", ("registry.example/team/torch:2.8",)),
    JobOption("host-python", "", "Run as processes of the active Python instead of containers."),
    JobOption(
        "name", "NAME", "Name of the job [default: generated].", ("mnist-2",), convert.job_name
    ),
    JobOption(
        "on",
        "CONTEXT",
        "Context in which to run [default: the current one].",
        ("local",),
        flag=False,  # all commands have this flag
    ),
    JobOption("backoff-limit", "N", "Restarts before the job fails.", ("3",), minimum=0),
    JobOption(
        "restart",
        "POLICY",
        "Restart policy of the replicas; `job` recreates all of them if one fails.",
        ("OnFailure",),
        choices=(*(policy.value for policy in RestartPolicy), WHOLE_JOB),
    ),
    JobOption(
        "deadline", "TIME", "Fail the job after: 90s, 1h30m.", ("90s", "1h30m"), convert.duration
    ),
    JobOption(
        "clean-pod-policy",
        "POLICY",
        "Which pods to delete when the job finishes.",
        ("running",),
        choices=tuple(policy.value for policy in CleanPodPolicy),
        aliases=("cleanPolicy", "clean"),
    ),
    JobOption(
        "queue",
        "NAME",
        "Queue of Kueue or Volcano in which the job waits for quota.",
        ("research",),
    ),
    JobOption(
        "volume",
        "SRC:DST[:ro]",
        "Bind-mount a host file or directory. Repeatable.",
        ("data:/data:ro",),
        convert.volume,
        short="v",
        field="volumes",
        repeatable=True,
    ),
    JobOption(
        "claim",
        "NAME=DIR",
        "Directory for a manifest's PersistentVolumeClaim. Repeatable.",
        field="claims",
        repeatable=True,
    ),
    JobOption("finish-timeout", "TIME", "How long replicas may run after success [default: 1h]."),
    JobOption(
        "send",
        "NAME,...",
        "Send variables of the notebook to the replicas. Repeatable.",
        ("x,y",),
        convert.variable_names,
        repeatable=True,
        flag=False,
    ),
    JobOption(
        "return",
        "NAME,...",
        "Set variables in the notebook to their final values on rank 0. Repeatable.",
        ("losses,model",),
        convert.variable_names,
        aliases=("returns",),
        field="returns",
        repeatable=True,
        flag=False,
    ),
    JobOption(
        "every",
        "",
        "Return the variables of every replica, as a dict by replica name.",
        ("true",),
        flag=False,
    ),
    JobOption(
        "module",
        "NAME,...",
        "Send local modules or packages that the cell does not import directly. Repeatable.",
        ("plugins", "package.helpers"),
        convert.module_names,
        aliases=("modules",),
        field="modules",
        repeatable=True,
        flag=False,
    ),
    JobOption(
        "detach",
        "",
        "Return immediately; `%jobs attach NAME` follows the job and sets its results.",
        ("true",),
        flag=False,
    ),
    JobOption("lines", "N", "Number of log lines to show.", ("20",), minimum=0, flag=False),
    JobOption(
        "limit",
        "SIZE",
        "Maximum size to send, and to return per replica [default: transfer_limit].",
        ("10GB",),
        convert.size,
        flag=False,
    ),
    JobOption(
        "trust-results",
        "",
        "Unpickle results of any image, which can run code in the notebook.",
        ("true",),
        flag=False,
    ),
    JobOption(
        "sweep",
        "NAME=VALUES",
        "Run one job per value of NAME: A,B,C or LOW:HIGH[:STEP|:log]. Repeatable.",
        ("lr=0.1,0.01", "depth=2:6", "rate=1e-4:1e-1:log"),
        convert.sweep_axis,
        repeatable=True,
    ),
    JobOption(
        "parallel",
        "N",
        "Concurrent jobs of a sweep [default: what this machine can run].",
        ("2",),
        minimum=1,
    ),
    JobOption("metric", "NAME", "Metric to optimize [default: loss].", ("loss",)),
    JobOption(
        "goal",
        "GOAL",
        "Minimize or maximize the metric [default: min].",
        ("max",),
        choices=("min", "max"),
    ),
    JobOption(
        "metric-pattern",
        "REGEX",
        r"Read the metric from the leader's log: 'loss=(\S+)'.",
        (r"loss=(\S+)",),
        convert.pattern,
        aliases=("pattern",),
        field="pattern",
    ),
    JobOption("trials", "N", "Let Optuna choose N points (requires optuna).", ("20",), minimum=1),
    JobOption(
        "storage",
        "URL",
        "Optuna storage of the study, for optuna-dashboard [default: memory].",
        ("sqlite:///trials.db",),
    ),
)

#: Fields that only make sense with ``sweep``.
SWEEP_FIELDS = ("parallel", "metric", "goal", "pattern", "trials", "storage")
