"""``danlu operator``: run the operator, and print what installs it on a cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from danlu.cli.error_rendering import print_warning
from danlu.cli.groups import group
from danlu.cli.options import verbosity_options
from danlu.cli.session import current_session
from danlu.operator.flags import FLAGS, IGNORED, OperatorFlag, parse_settings
from danlu.operator.installation import (
    list_crds,
    list_manifests,
    list_runtimes,
    render_documents,
    run_operator,
)
from danlu.operator.manifests import NAMESPACE, InstallOptions
from danlu.operator.types import OperatorSettings
from danlu.training.registry import BUILT_IN_FRAMEWORKS, TRAIN_JOB

F = TypeVar("F", bound=Callable[..., Any])

_FLAG_TYPES = {"float": float, "integer": int, "boolean": bool}
_DEFAULTS = OperatorSettings()
_LOG_LEVELS = (logging.INFO, logging.DEBUG)

command = group(
    "operator",
    help=f"""Run training jobs on a Kubernetes cluster.

    The operator reconciles the kubeflow.org/v1 jobs of a cluster:
    {", ".join(framework.kind for framework in BUILT_IN_FRAMEWORKS)}, and
    {TRAIN_JOB.kind}s (trainer.kubeflow.org/v1alpha1).""",
)


def flag_options(*, without: tuple[str, ...] = (), environ: bool = False) -> Callable[[F], F]:
    """Add the operator's flags in the order of its table; ``environ`` also reads variables."""

    def add(function: F) -> F:
        for flag in reversed(FLAGS):
            if flag.name not in without:
                function = _flag_option(flag, environ=environ)(function)
        return function

    return add


def _flag_option(flag: OperatorFlag, *, environ: bool = False) -> Callable[[F], F]:
    attributes: dict[str, Any] = {"help": _flag_help(flag), "metavar": flag.metavar or None}
    if environ and flag.variable:
        attributes |= {"envvar": flag.variable, "show_envvar": True}
    if flag.kind in ("kinds", "pairs", "urls"):
        attributes["multiple"] = True
    else:
        attributes["type"] = _FLAG_TYPES.get(flag.kind, str)
    if flag.kind == "boolean":
        # Go's flag package writes --leader-elect=true.
        attributes |= {"is_flag": False, "flag_value": "true", "metavar": "[=true|false]"}
    return click.option(flag.name, flag.parameter, **attributes)


def _flag_help(flag: OperatorFlag) -> str:
    default = getattr(_DEFAULTS, flag.field)
    has_default = flag.kind in ("text", "name", "address", "float", "integer")
    return f"{flag.help} [default: {default}]" if has_default and default else flag.help


def _kind_options(function: F) -> F:
    """Add the flags that choose kinds and their versions."""
    others = tuple(flag.name for flag in FLAGS if flag.kind not in ("kinds", "version"))
    return flag_options(without=others)(function)


def _ignored_options(function: F) -> F:
    """Accept flags of Kubeflow's operator that have no effect here, so its arguments still work."""
    for name in IGNORED:
        function = click.option(
            name,
            expose_value=False,
            hidden=True,
            is_flag=False,
            flag_value="",
            callback=_warn_ignored,
        )(function)
    return function


def _warn_ignored(context: click.Context, option: click.Parameter, value: object) -> None:
    if value is not None and not context.resilient_parsing:
        print_warning(f"{option.opts[0]} has no effect and is ignored", current_session().terminal)


_yaml_option = click.option(
    "--format",
    "form",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="Output format.",
)


@command.subcommand("run")
@flag_options(environ=True)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="kubeconfig [default: $KUBECONFIG, in-cluster, ~/.kube/config].",
)
@click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig.")
@_ignored_options
@verbosity_options
def run(kubeconfig: Path | None, context: str, **flags: Any) -> None:
    """Run the operator until SIGTERM or Ctrl-C.

    In a cluster it uses its service account, elsewhere a kubeconfig. Flags shared with Kubeflow's
    training operator keep their names.
    """
    settings = parse_settings(flags)
    _log_to_stderr()
    run_operator(settings, kubeconfig=kubeconfig, context=context)


def _log_to_stderr() -> None:
    """Log to stderr, where a cluster collects it; -q logs less, -v more."""
    session = current_session()
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(session.terminal.err)
    handler.setFormatter(formatter)
    logger = logging.getLogger("danlu")
    logger.addHandler(handler)
    level = _LOG_LEVELS[min(session.verbosity, len(_LOG_LEVELS) - 1)]
    logger.setLevel(logging.WARNING if session.quiet else level)


@command.subcommand("crds")
@_kind_options
@_yaml_option
@verbosity_options
def crds(form: Any, **flags: Any) -> None:
    """Print the CRDs.

    Apply them with kubectl apply -f -.
    """
    documents = list_crds(parse_settings(flags))
    current_session().terminal.write_stdout(render_documents(documents, form=form))


@command.subcommand("runtimes")
@_yaml_option
@verbosity_options
def runtimes(form: Any) -> None:
    """Print the cluster's runtimes for TrainJobs.

    They have Kubeflow Trainer's names. Apply them with kubectl apply -f - after the CRDs.
    """
    current_session().terminal.write_stdout(render_documents(list_runtimes(), form=form))


@command.subcommand("manifests")
@click.option("--image", required=True, metavar="REF", help="Image that contains danlu.")
@click.option(
    "--install-namespace",
    default=NAMESPACE,
    show_default=True,
    metavar="NAME",
    help="Namespace of the operator itself.",
)
@click.option(
    "--replicas", default=1, show_default=True, help="Number of pods; one leads, others stand by."
)
@click.option(
    "--image-pull-secret", default="", metavar="NAME", help="Secret for the image's registry."
)
# A deployed operator always elects a leader: two pods run during a rolling update.
@flag_options(without=("--leader-elect",))
@_ignored_options
@_yaml_option
@verbosity_options
def manifests(
    image: str,
    install_namespace: str,
    replicas: int,
    image_pull_secret: str,
    form: Any,
    **flags: Any,
) -> None:
    """Print the manifests that install the operator.

    CRDs, minimal RBAC permissions and a Deployment; apply them with kubectl apply --server-side
    -f -. Flags of `danlu operator run` are passed to the operator.
    """
    options = InstallOptions(
        image=image,
        settings=parse_settings(flags),
        namespace=install_namespace,
        replicas=replicas,
        pull_secret=image_pull_secret,
    )
    documents = render_documents(list_manifests(options), form=form)
    current_session().terminal.write_stdout(documents)
