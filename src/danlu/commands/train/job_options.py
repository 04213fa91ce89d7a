"""The options of a job: the table behind the flags of ``danlu train`` and the directives of cells.

An option is written ``--key value`` on the command line and after ``%%distributed``, and
``%key=value`` in a cell. ``danlu.train`` and ``danlu.sweep`` take its field as a keyword
(:class:`~danlu.commands.train.options.TrainKeywords`). An option that means something else in a
cell has two rows: ``env`` is a build file in ``danlu train``, an environment variable in
``danlu run`` and in IPython's ``%env``, and both in a cell, where the ``=`` of ``NAME=VALUE``
distinguishes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from danlu.commands.train import option_values as values
from danlu.commands.train.option_values import Converter
from danlu.training.types import CleanPodPolicy, RestartPolicy


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
    check: Converter = values.single_word
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
        value = self._find_converter(text)
        if isinstance(value, Mapping):
            return {"environment": value}
        if self.repeatable and not isinstance(value, tuple):
            value = (value,)
        return {self.field_name: value}

    @property
    def _find_converter(self) -> Converter:
        if self.choices:
            return values.choice(*self.choices)
        if self.minimum is not None:
            return values.whole_number(self.minimum)
        return self.check if self.metavar else values.boolean


JOB_OPTIONS: tuple[JobOption, ...] = (
    JobOption(
        "framework",
        "NAME",
        "Framework [default: detected from the imports].",
        ("pytorch", "tensorflow"),
        values.framework,
    ),
    JobOption("cpu", "Q", "CPUs of each replica: 2 or 500m.", ("2", "500m"), values.quantity),
    JobOption(
        "memory", "Q", "Memory of each replica: 512Mi, 4G.", ("512Mi", "4G"), values.quantity
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
        values.env,
        short="e",
        flag=False,
    ),
    JobOption("image", "REF", "Run in this image.", ("registry.example/team/torch:2.8",)),
    JobOption("host-python", "", "Run as processes of the active Python instead of containers."),
    JobOption(
        "name", "NAME", "Name of the job [default: generated].", ("mnist-2",), values.job_name
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
        "Restart policy of the replicas.",
        ("OnFailure",),
        choices=tuple(policy.value for policy in RestartPolicy),
    ),
    JobOption(
        "deadline", "TIME", "Fail the job after: 90s, 1h30m.", ("90s", "1h30m"), values.duration
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
        "volume",
        "SRC:DST[:ro]",
        "Bind-mount a host file or directory. Repeatable.",
        ("data:/data:ro",),
        values.volume,
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
        values.variable_names,
        repeatable=True,
        flag=False,
    ),
    JobOption(
        "return",
        "NAME,...",
        "Set variables in the notebook to their final values on rank 0. Repeatable.",
        ("losses,model",),
        values.variable_names,
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
        values.module_names,
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
        values.size,
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
        values.sweep_axis,
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
        "Read the metric from the leader's log: 'loss=([0-9.]+)'.",
        ("loss=([0-9.]+)",),
        values.pattern,
        aliases=("pattern",),
        field="pattern",
    ),
    JobOption("trials", "N", "Let Optuna choose N points (requires optuna).", ("20",), minimum=1),
)

#: Fields that only make sense with ``sweep``.
SWEEP_FIELDS = ("parallel", "metric", "goal", "pattern", "trials")
