"""``danlu context``: where commands run."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from danlu.cli.groups import group
from danlu.cli.options import ContextParam, format_option, verbosity_options
from danlu.cli.output import TableCell, print_json, print_table
from danlu.cli.session import current_session
from danlu.engine.contexts import (
    CONTAINER_SCHEME,
    Context,
    SageMakerAccount,
    create_context,
    describe_context,
    find_current_context,
    list_built_in_contexts,
    list_contexts,
    read_contexts,
    remove_context,
    use_context,
)
from danlu.engine.settings import load_settings
from danlu.environments.manage import check_new_context
from danlu.errors import UsageError
from danlu.remote.connection import connect_host
from danlu.remote.project_sync import open_remote_project
from danlu.remote.ssh_access import ContextHosts
from danlu.util.sanitize import escape_unprintable

_MAX_PATH_LENGTH = 4096

command = group(
    "context",
    help=f"""Choose where commands run: here or elsewhere.

The contexts {", ".join(f"`{name}`" for name in list_built_in_contexts("linux"))} always exist, and
those of engines that packages add. In a context of another machine, `danlu up`, `run`, `exec`,
`train` and the commands about environments, jobs and images run there, with the project of the
current directory. `--on` selects a context for one command.""",
)


@command.subcommand("create")
@click.argument("name")
@click.option(
    "--engine",
    required=True,
    metavar="ENGINE",
    help="ssh://HOST, kubernetes:CONTEXT, sagemaker:REGION, docker-container://NAME.",
)
@click.option(
    "--image", default="", metavar="IMAGE", help="Image of a docker-container; default: Debian."
)
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="DIRECTORY",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Share a directory with a docker-container; default: your home.",
)
@click.option("--role", default="", metavar="ARN", help="Role of SageMaker's training jobs.")
@click.option("--bucket", default="", metavar="NAME", help="S3 bucket for their code and models.")
@click.option(
    "--registry", default="", metavar="REF", help="Their images; default: the account's ECR."
)
@click.option(
    "--instance-type", default="", metavar="TYPE", help="Their hosts; default: what a job requests."
)
@verbosity_options
def create(
    name: str,
    engine: str,
    image: str,
    mounts: tuple[str, ...],
    role: str,
    bucket: str,
    registry: str,
    instance_type: str,
) -> None:
    """Add a context.

    The machine of ssh:// needs sshd, Python 3.11 or later, and what danlu needs to run containers;
    danlu copies itself there. CONTEXT is one of the kubeconfig. docker-container:// is a container
    that danlu creates, with the capabilities that mounting and starting containers needs; it is
    meant for macOS. In sagemaker:REGION only training jobs run.
    """
    run = current_session()
    if engine.startswith(CONTAINER_SCHEME) and not mounts:
        mounts = (str(Path.home().resolve()),)
    account = SageMakerAccount(role, bucket, registry, instance_type)
    given = any(msgspec.structs.astuple(account))
    context = Context(engine, image, mounts, account if given else None)
    if context.is_remote:
        check_new_context(name, run.paths)
    create_context(name, context, run.paths)
    run.terminal.info(
        f"context {name} created; `danlu context use {name}` makes it the current one"
    )


@command.subcommand("use")
@click.argument("name", type=ContextParam())
@verbosity_options
def use(name: str) -> None:
    """Make a context the current one.

    `local` is this machine with danlu's own engine. DANLU_CONTEXT and --on take precedence.
    """
    run = current_session()
    use_context(name, run.paths)
    run.terminal.info(f"commands now run in context {name}")


@command.subcommand("ls")
@format_option()
@verbosity_options
def list_all(form: str) -> None:
    """List contexts."""
    run = current_session()
    current, _ = find_current_context(run.paths)
    engines = {name: item.engine for name, item in list_contexts(read_contexts(run.paths)).items()}
    if form == "json":
        rows = [
            {"name": name, "engine": engine, "current": name == current}
            for name, engine in engines.items()
        ]
        print_json(rows, run.terminal)
        return
    cells: list[list[str | TableCell]] = [
        ["*" if name == current else "", name, engine] for name, engine in engines.items()
    ]
    print_table(["", "NAME", "ENGINE"], cells, run.terminal)


@command.subcommand("show")
@click.argument("name", default="", type=ContextParam(), metavar="[NAME]")
@format_option()
@verbosity_options
def show(name: str, form: str) -> None:
    """Show where a context runs commands; by default the current one."""
    run = current_session()
    name, context = find_current_context(run.paths, chosen=name)
    fields = describe_context(name, context, load_settings(run.paths))
    if form == "json":
        print_json(fields, run.terminal)
        return
    width = max(map(len, fields))
    for key, value in fields.items():
        text = ", ".join(value) if isinstance(value, tuple) else str(value)
        run.terminal.write_stdout(f"{key.ljust(width)}  {text or '-'}")


@command.subcommand("rm")
@click.argument("name", type=ContextParam())
@verbosity_options
def remove(name: str) -> None:
    """Remove a context and its hosts of SSH; what runs there stays."""
    run = current_session()
    remove_context(name, run.paths)
    ContextHosts(name, load_settings(run.paths)).remove_all()
    run.terminal.info(f"context {name} removed")


@command.subcommand("fetch")
@click.argument("patterns", nargs=-1, metavar="[PATH]...")
@verbosity_options
def fetch(patterns: tuple[str, ...]) -> None:
    """Copy files that were made or changed on the other machine to this one.

    Files that were also changed here are kept: the other version gets the suffix `.remote`. Ignored
    files stay there and are listed, unless PATH is one of them, a directory above, or a pattern:
    then exactly that is copied.
    """
    run = current_session()
    name, context = find_current_context(run.paths)
    if not context.is_remote:
        raise UsageError(
            f"context {name} is this machine, so there is nothing to fetch",
            hint="choose another one with `danlu context use`",
        )
    host = connect_host(context, run.paths, run.terminal.info)
    project = open_remote_project(host, run.directory, run.paths)
    if project is None:
        raise UsageError(f"{run.directory} is shared with {host.name}, so nothing is fetched")
    report = project.fetch_changes(patterns)
    for path in report.copied:
        # Programs on the other machine chose the names.
        run.terminal.write_stdout(escape_unprintable(path, limit=_MAX_PATH_LENGTH))
    for note in report.list_notes(host.name):
        run.terminal.info(f"note: {note}")
    if report.ignored:
        run.terminal.info("hint: `danlu context fetch PATH` copies ignored files that you name")
    elif not report.copied:
        run.terminal.info("nothing was changed there")
