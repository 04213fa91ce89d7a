"""Options and argument types that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from danlu.cli.session import current_session
from danlu.util.human import parse_size
from danlu.util.paths import Paths

# What completes values is imported when a shell asks: `danlu --help` loads this module.

F = TypeVar("F", bound=Callable[..., Any])


# -- verbosity


def _increase_verbosity(context: click.Context, option: click.Parameter, value: int) -> None:
    if value and not context.resilient_parsing:
        current_session(context).verbosity += value


def _set_quiet(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        current_session(context).terminal.quiet = True


def _verbose_option(*names: str) -> Callable[[F], F]:
    return click.option(
        *names,
        count=True,
        expose_value=False,
        callback=_increase_verbosity,
        help="Verbose output, including tracebacks.",
    )


_quiet_option = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=_set_quiet,
    help="Print errors only.",
)


def verbosity_options(function: F) -> F:
    """Add ``-v`` and ``-q``."""
    return _verbose_option("-v", "--verbose")(_quiet_option(function))


def quiet_options(function: F) -> F:
    """Add ``--verbose`` and ``-q``, for commands whose ``-v`` is another option."""
    return _verbose_option("--verbose")(_quiet_option(function))


# -- output


progress_option = click.option(
    "--progress",
    type=click.Choice(["auto", "plain", "json", "quiet"]),
    default="auto",
    envvar="DANLU_PROGRESS",
    show_default=True,
    help="Progress on stderr; auto is live on a terminal, plain elsewhere.",
)


def format_option(*formats: str) -> Callable[[F], F]:
    """Add ``--format``: text or JSON unless ``formats`` says otherwise."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(formats or ("text", "json")),
        default="text",
        show_default=True,
        help="Output format.",
    )


bytecode_option = click.option(
    "--bytecode",
    is_flag=True,
    help="Include the bytecode of Python packages, for fast first imports.",
)


def compression_option(*, default: str | None, help: str) -> Callable[[F], F]:
    """Add ``--compression``."""
    return click.option(
        "--compression",
        type=click.Choice(["zstd", "gzip", "none"]),
        default=default,
        show_default=default is not None,
        help=help,
    )


# -- builds


class BuildFileParam(click.ParamType[str]):
    """``FILE[:FUNC]``, completed as a file name."""

    name = "FILE[:FUNC]"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        """Let the shell complete file names."""
        return [CompletionItem(incomplete, type="file")]


def file_option(function: F) -> F:
    """Add ``--file`` and ``--set``; the session keeps the values of the latter."""
    function = click.option(
        "--set",
        multiple=True,
        expose_value=False,
        callback=_keep_build_parameters,
        metavar="NAME=VALUE",
        help="Set a parameter of the build function. Repeatable.",
    )(function)
    return click.option(
        "-f",
        "--file",
        "file",
        type=BuildFileParam(),
        metavar="FILE[:FUNC]",
        help="Build file and function [default: build.envd or build.py, build].",
    )(function)


def _keep_build_parameters(
    context: click.Context, _: click.Parameter, values: tuple[str, ...]
) -> None:
    if values and not context.resilient_parsing:
        current_session(context).build_parameters = values


def package_kind_option(function: F) -> F:
    """Add ``--apt`` and ``--conda``: which packages are added or removed."""
    for kind, what in (("conda", "Conda packages"), ("apt", "Packages of the distribution")):
        function = click.option(
            f"--{kind}", "kind", flag_value=kind, help=f"{what} instead of Python packages."
        )(function)
    return function


frozen_option = click.option(
    "--frozen", is_flag=True, help="Fail if the lockfile is missing or out of date."
)

offline_option = click.option("--offline", is_flag=True, help="Use only what is cached locally.")


class ByteSize(click.ParamType[int]):
    """A size in bytes, with a unit: ``20GB``, ``1GiB``."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse the size."""
        if isinstance(value, int):
            return value
        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


# -- images and jobs


class ImageNameParam(click.ParamType[str]):
    """A name or digest of an image, completed from the store."""

    name = "image"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        """Complete names of images."""
        from danlu.image.manage import list_image_names
        from danlu.store import Store

        root = Paths.of().store
        if not root.is_dir():
            return []
        with Store.open(root) as store:
            names = list_image_names(store)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def image_argument(name: str = "image", **options: Any) -> Callable[[F], F]:
    """Add an argument that names an image."""
    return click.argument(name, type=ImageNameParam(), **options)


# -- containers


volume_option = click.option(
    "-v",
    "--volume",
    "volumes",
    multiple=True,
    metavar="SRC:DST[:ro]",
    help="Bind-mount a host file or directory. Repeatable.",
)

variable_option = click.option(
    "-e",
    "--env",
    "environment",
    multiple=True,
    metavar="K=V",
    help="Set a variable (K alone passes its current value). Repeatable.",
)

user_option = click.option(
    "--user", default="", metavar="USER[:GROUP]", help="Run as this user: a name or an id."
)

stop_grace_option = click.option(
    "--grace",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Time to end before SIGKILL.",
)


class EnvironmentNameParam(click.ParamType[str]):
    """The name of an environment, completed from those of this machine."""

    name = "environment"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        """Complete names of environments."""
        from danlu.engine.environment_directory import list_environments

        names = [found.name for found in list_environments(Paths.of().environments)]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class JobNameParam(click.ParamType[str]):
    """The name of a job, completed from those that ``--on`` selects."""

    name = "job"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        """Complete names of jobs."""
        import anyio

        from danlu.engine.settings import load_settings
        from danlu.jobs.backends import select_backend

        on = str(ctx.params.get("on") or "")
        names = anyio.run(select_backend(on, load_settings()).names)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def job_argument(name: str = "name", **options: Any) -> Callable[[F], F]:
    """Add an argument that names a job."""
    return click.argument(name, type=JobNameParam(), **options)


class FrameworkParam(click.ParamType[str]):
    """The name of a training framework, completed from the registry."""

    name = "framework"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        """Complete names of frameworks."""
        from danlu.training.registry import list_frameworks

        names = [framework.name for framework in list_frameworks()]
        return [CompletionItem(name) for name in names if name.startswith(incomplete.lower())]


class ContextParam(click.ParamType[str]):
    """The name of a context, completed from all."""

    name = "context"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        """Complete names of contexts."""
        from danlu.engine.contexts import list_contexts, read_contexts

        names = list_contexts(read_contexts(Paths.of()))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _choose_context(context: click.Context, option: click.Parameter, value: str) -> None:
    if value and not context.resilient_parsing:
        current_session(context).on = value


#: ``--on``, kept in the session. The program has sent the command to another machine before it is
#: parsed here (:mod:`danlu.cli.context_dispatch`).
on_option = click.option(
    "--on",
    "on",
    default="",
    metavar="CONTEXT",
    type=ContextParam(),
    expose_value=False,
    callback=_choose_context,
    help="Context in which to run [default: the current one].",
)


def environment_name_option(function: F) -> F:
    """Add ``-n`` and ``--on``, which select an environment."""
    option = click.option(
        "-n",
        "--name",
        default="",
        type=EnvironmentNameParam(),
        metavar="NAME",
        help="The environment [default: this project's].",
    )
    return option(on_option(function))


def environment_argument(function: F) -> F:
    """Add ``[NAME]``, which ``-n NAME`` also gives, as in ``danlu exec``, and ``--on``.

    With ``-n`` the first argument is the one after the name: ``SERVICE``, or the first of ``CMD``.
    """

    @functools.wraps(function)
    def call(*, name: str, named: str, **values: Any) -> Any:
        if named and name:
            if "service" in values and not values["service"]:
                values["service"] = name
            elif "args" in values:
                values["args"] = (name, *values["args"])
            else:
                raise click.UsageError("the environment is named twice, by NAME and by --name")
        return function(name=named or name, **values)

    argument = click.argument("name", default="", type=EnvironmentNameParam(), metavar="[NAME]")
    option = click.option(
        "-n",
        "--name",
        "named",
        default="",
        type=EnvironmentNameParam(),
        metavar="NAME",
        help="The same as NAME.",
    )
    return cast("F", option(argument(on_option(call))))


def grace_option() -> Callable[[F], F]:
    """Add ``--grace``: the time that replicas have to end when they are stopped."""
    return click.option(
        "--grace",
        type=click.IntRange(min=0),
        metavar="SECONDS",
        help="Time to end before SIGKILL [default: the manifest's, else 30].",
    )
