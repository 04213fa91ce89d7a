"""``danlu build``: arguments, secrets, and the summary printed at the end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from danlu.cli.command_stamp import write_stamp
from danlu.cli.groups import command as declare_command
from danlu.cli.options import (
    bytecode_option,
    compression_option,
    file_option,
    format_option,
    frozen_option,
    offline_option,
    on_option,
    progress_option,
    verbosity_options,
)
from danlu.cli.output import print_json
from danlu.cli.session import Session, current_session
from danlu.cli.terminal import Terminal
from danlu.errors import UsageError
from danlu.image.manage import normalize_name
from danlu.project.build import build_metadata, build_project
from danlu.project.build_request import BuildOptions, BuildReport
from danlu.util.danlu_program import read_variable
from danlu.util.files import check_parent_directory
from danlu.util.human import format_duration, format_size, pluralize, shorten_digest
from danlu.util.sanitize import strip_control_sequences

_SECRET_HINT = "use id=ID,src=PATH or id=ID,env=NAME"


@declare_command("build")
@file_option
@click.option(
    "-t", "--tag", "tags", multiple=True, metavar="REF", help="Name the image. Repeatable."
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="type=TYPE,dest=PATH",
    help="Export: type=oci|dir (OCI layout), docker, tar or dockerfile. Repeatable.",
)
@click.option("--push", is_flag=True, help="Push the image to the registries of its tags.")
@click.option(
    "--builder",
    metavar="BUILDER",
    default="",
    help="Where steps run: embedded, buildkit, kubernetes [config: builder].",
)
@click.option(
    "--cache-from",
    multiple=True,
    metavar="type=TYPE,…",
    help="Import a BuildKit cache. Repeatable.",
)
@click.option(
    "--cache-to", multiple=True, metavar="type=TYPE,…", help="Export a BuildKit cache. Repeatable."
)
@click.option(
    "--platform",
    metavar="OS/ARCH[,…]",
    default="",
    help="Platform, or several for an index [default: this machine's].",
)
@frozen_option
@offline_option
@click.option("--no-cache", is_flag=True, help="Run every step, even if it is cached.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="id=ID,src=PATH",
    help="Secret for steps, from a file or (env=NAME) a variable. Repeatable.",
)
@click.option(
    "--ssh",
    is_flag=False,
    flag_value="default",
    metavar="[default[=SOCKET]]",
    help="Forward your ssh agent, or SOCKET, to steps with ssh=True.",
)
@bytecode_option
@click.option("--debug", is_flag=True, help="Open a shell in the container of a failed step.")
@compression_option(
    default=None, help="Layer compression [default: zstd for outputs, gzip for --push]."
)
@click.option(
    "--metadata-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Write a report of the build as JSON.",
)
@format_option()
@progress_option
@on_option
@verbosity_options
def command(
    file: str | None,
    secrets: tuple[str, ...],
    form: str,
    progress: str,
    tags: tuple[str, ...],
    outputs: tuple[str, ...],
    push: bool,
    builder: str,
    cache_from: tuple[str, ...],
    cache_to: tuple[str, ...],
    platform: str,
    frozen: bool,
    offline: bool,
    no_cache: bool,
    ssh: str | None,
    bytecode: bool,
    debug: bool,
    compression: str | None,
    metadata_file: Path | None,
) -> None:
    """Build the image.

    Updates the lockfile if needed; cached steps are reused. With -q only the image's digest is
    written to stdout, with --format json the contents of --metadata-file.
    """
    # Found here rather than at the end of a long build.
    if push and not tags:
        raise click.UsageError("--push needs a name: add -t REGISTRY/NAME:TAG")
    if bytecode and not (push or outputs):
        raise click.UsageError("--bytecode needs --push or --output: here, danlu adds it anyway")
    if outputs:
        from danlu.image.export import parse_output  # most builds export nothing

        for output in outputs:
            parse_output(output)
    if metadata_file is not None:
        check_parent_directory(metadata_file)
    run = current_session()
    started = time.time()
    with _open_secrets(secrets) as secret_files:
        options = BuildOptions(
            tags=tuple(normalize_name(tag) for tag in tags),
            outputs=outputs,
            push=push,
            builder=builder,
            cache_from=cache_from,
            cache_to=cache_to,
            platform=platform,
            frozen=frozen,
            offline=offline,
            no_cache=no_cache,
            secrets=secret_files,
            ssh=_parse_ssh(ssh) if ssh is not None else None,
            bytecode=bytecode,
            debug=debug,
            metadata_file=metadata_file,
            compression=compression or "",
        )
        report = build_project(
            run.open_project(file),
            settings=run.settings,
            options=options,
            progress=run.start_progress(progress),
        )
    run.stop_progress()
    if form == "json":
        print_json(build_metadata(report), run.terminal)
    elif run.quiet:
        run.terminal.write_stdout(report.config)
    _print_summary(report, run)
    if report.depends_on and _is_repeatable(options, run, form):
        write_stamp(
            run.arguments,
            depends_on=report.depends_on,
            epoch=report.epoch,
            started=started,
            answer={
                "stdout": f"{report.config}\n" if run.quiet else "",
                "stderr": _format_repeated_build(report, run.terminal),
            },
        )


def _is_repeatable(options: BuildOptions, run: Session, form: str) -> bool:
    """Return whether running the same command line again would only print the same text."""
    only_names = BuildOptions(tags=options.tags, offline=options.offline, frozen=options.frozen)
    return options == only_names and form == "text" and run.progress != "json" and not run.verbosity


# -- secrets and ssh


@contextmanager
def _open_secrets(texts: Sequence[str]) -> Iterator[tuple[tuple[str, Path], ...]]:
    """Yield ``--secret`` values as (id, file).

    The value of a variable is written to a private file, which is removed afterwards. Raises
    :class:`UsageError` for an invalid value and for a file that cannot be read.
    """
    if not texts:
        yield ()
        return
    import shutil  # these take longer to load than an unchanged build takes
    import tempfile

    secrets: dict[str, Path] = {}
    private: Path | None = None
    try:
        for text in texts:
            name, kind, value = _parse_secret(text)
            if name in secrets:
                raise UsageError(f"secret {name!r} is given twice")
            if kind == "env":
                private = private or Path(tempfile.mkdtemp(prefix="danlu-secrets-"))
                secrets[name] = _write_variable(value, private / str(len(secrets)))
            else:
                secrets[name] = _find_secret_file(value)
        yield tuple(secrets.items())
    finally:
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)


def _parse_secret(text: str) -> tuple[str, str, str]:
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    # Docker's spelling: `source` for `src`, and a `type` that says nothing more.
    if "source" in fields:
        fields["src"] = fields.pop("source")
    fields.pop("type", None)
    name = fields.pop("id", "")
    if not name or len(fields) > 1 or not set(fields) <= {"src", "env"}:
        raise UsageError(f"invalid secret {text!r}", hint=_SECRET_HINT)
    kind, value = next(iter(fields.items()), ("env", name))
    return name, kind, value


def _find_secret_file(value: str) -> Path:
    path = Path(value).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"secret file {value} not found", hint=_SECRET_HINT)
    if not os.access(path, os.R_OK):
        raise UsageError(f"cannot read secret file {value}: permission denied")
    return path


def _write_variable(name: str, path: Path) -> Path:
    value = read_variable(name)
    if value is None:
        raise UsageError(f"variable {name} of a secret is not set", hint=_SECRET_HINT)
    # A secret: nobody else may read it, not even for a moment, whatever the umask is.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.fsencode(value))
    return path


def _parse_ssh(text: str) -> Path:
    """Return the agent's socket for ``default`` or ``default=SOCKET``.

    Raises :class:`UsageError` for any other value and if no agent is running.
    """
    name, equals, socket = text.partition("=")
    if name != "default":
        raise UsageError(
            f"unknown ssh agent {name!r}: only `default` is supported",
            hint="use --ssh default or --ssh default=SOCKET",
        )
    if not equals:
        from danlu.sandbox import secrets  # few builds use it

        return secrets.find_agent_socket()
    path = Path(socket).expanduser().absolute()
    if not path.is_socket():
        raise UsageError(
            f"{socket} is not a socket of an ssh agent",
            hint="add your key to an agent with ssh-add; a build never reads key files",
        )
    return path


# -- summary


def _print_summary(report: BuildReport, run: Session) -> None:
    """Print the result in one line, after one line for each lock change and output."""
    terminal = run.terminal
    if run.progress == "json":
        terminal.write_stderr(json.dumps(_summary_event(report)))
        return
    for line in report.lock_changes:
        terminal.info(terminal.style(strip_control_sequences(line), "dim"))
    for destination in report.outputs:
        verb = "pushed" if destination in report.names else "wrote"
        terminal.info(f"{verb} {strip_control_sequences(destination)}")
    if report.note:
        terminal.info(report.note)
    if report.unchanged:
        terminal.info(_format_unchanged(report, terminal, format_duration(report.seconds)))
    else:
        terminal.info(_check_mark(terminal) + _format_headline(report, terminal))


def _format_repeated_build(report: BuildReport, terminal: Terminal) -> str:
    """Return stderr of the same build when it is repeated, with a placeholder ``milliseconds``."""
    if terminal.quiet:
        return ""
    return _format_unchanged(report, terminal, "{milliseconds} ms") + "\n"


def _format_unchanged(report: BuildReport, terminal: Terminal, seconds: str) -> str:
    image = _format_image_name(report, terminal)
    return f"{_check_mark(terminal)}up to date: {image} in {seconds}"


def _format_headline(report: BuildReport, terminal: Terminal) -> str:
    image = _format_image_name(report, terminal)
    built = [vertex for vertex in report.vertices if not vertex.cached]
    cached = len(report.vertices) - len(built)
    counts = f"{len(built)} built, {cached} cached" if report.vertices else "nothing to do"
    added = sum(vertex.size for vertex in built)
    new = f", {format_size(added)} new" if 0 < added < report.size else ""
    total = f"{pluralize(len(report.layers), 'layer')}, {format_size(report.size)}{new}"
    return f"built {image} in {format_duration(report.seconds)}: {counts}; {total}"


def _format_image_name(report: BuildReport, terminal: Terminal) -> str:
    names = ", ".join(strip_control_sequences(name) for name in report.names)
    return terminal.style(shorten_digest(report.config), "bold") + (f" {names}" if names else "")


def _check_mark(terminal: Terminal) -> str:
    return terminal.style("✓ ", "green") if terminal.unicode and terminal.interactive else ""


def _summary_event(report: BuildReport) -> dict[str, object]:
    return {
        "type": "built",
        "config": report.config,
        "digest": report.digest,
        "names": report.names,
        "size": report.size,
        "layers": len(report.layers),
        "cached": sum(vertex.cached for vertex in report.vertices),
        "vertices": len(report.vertices),
        "unchanged": report.unchanged,
        "seconds": round(report.seconds, 3),
    }
