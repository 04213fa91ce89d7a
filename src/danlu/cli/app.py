"""The root command: global options and the registry of commands."""

from __future__ import annotations

import click

from danlu import __version__
from danlu.cli.groups import CommandSpec, LazyGroup
from danlu.cli.options import verbosity_options
from danlu.cli.session import current_session

#: In the order in which a user needs them. Adding a command is a module and a line here.
COMMANDS = (
    CommandSpec("init", "Environments", "Generate a build file for this project."),
    CommandSpec("plan", "Environments", "Show what would be built, without using the network."),
    CommandSpec("lock", "Environments", "Resolve dependencies and write danlu.lock."),
    CommandSpec("add", "Environments", "Add packages to the build file and the lock."),
    CommandSpec("remove", "Environments", "Remove packages from the build file and the lock."),
    CommandSpec("build", "Environments", "Build the image."),
    CommandSpec(
        "run", "Environments", "Run a command in the environment, with the project mounted."
    ),
    CommandSpec("fmt", "Environments", "Format build files."),
    CommandSpec("export", "Environments", "Export the environment for other tools."),
    CommandSpec(
        "up", "Working in environments", "Start the project's environment and open a shell in it."
    ),
    CommandSpec("ps", "Working in environments", "List running and stopped environments."),
    CommandSpec("exec", "Working in environments", "Run a program in a running environment."),
    CommandSpec(
        "ssh",
        "Working in environments",
        "Open a shell in an environment over SSH, or run a command in it.",
    ),
    CommandSpec(
        "ssh-config",
        "Working in environments",
        "Print the SSH configuration of an environment, or of all.",
    ),
    CommandSpec("code", "Working in environments", "Open an environment in VS Code over SSH."),
    CommandSpec(
        "vscode", "Working in environments", "Provide VS Code's server without internet access."
    ),
    CommandSpec(
        "logs", "Working in environments", "Print the output of an environment's services."
    ),
    CommandSpec("port", "Working in environments", "List the ports of an environment."),
    CommandSpec("top", "Working in environments", "Show the processes of an environment."),
    CommandSpec(
        "commit", "Working in environments", "Show manual changes as calls for the build file."
    ),
    CommandSpec("stop", "Working in environments", "Stop an environment; its files stay."),
    CommandSpec("start", "Working in environments", "Start a stopped environment again."),
    CommandSpec("rename", "Working in environments", "Rename a stopped environment."),
    CommandSpec("down", "Working in environments", "Stop and remove an environment."),
    CommandSpec("train", "Training", "Run a training job: script, module or Kubeflow manifest."),
    CommandSpec("convert", "Training", "Convert a Kubeflow manifest to a TrainJob, or back."),
    CommandSpec("jobs", "Training", "List, follow, stop and remove training jobs."),
    CommandSpec("operator", "Training", "Run training jobs on a Kubernetes cluster."),
    CommandSpec("ui", "Training", "Show jobs, logs and curves in a browser."),
    CommandSpec("kernel", "Training", "Manage danlu's kernels for Jupyter."),
    CommandSpec("pack", "Serving", "Pack a model into an image with only what it needs."),
    CommandSpec("serve", "Serving", "Serve a packed model over HTTP until it is interrupted."),
    CommandSpec("verify", "Serving", "Replay the recorded inputs of a packed model."),
    CommandSpec("image", "Images", "List, inspect, move and remove images."),
    CommandSpec("login", "Images", "Log in to a registry."),
    CommandSpec("logout", "Images", "Log out of a registry."),
    CommandSpec(
        "context",
        "This machine",
        "Choose where commands run: here or elsewhere.",
    ),
    CommandSpec("config", "This machine", "Show the effective configuration and its sources."),
    CommandSpec("doctor", "This machine", "Check that the context's machine can run danlu."),
    CommandSpec("report", "This machine", "Write a bundle for a bug report, without secrets."),
    CommandSpec("reproduce", "This machine", "Rebuild the environment of a bug report."),
    CommandSpec("completion", "This machine", "Generate a shell completion script."),
    CommandSpec("version", "This machine", "Show the versions of danlu and its dependencies."),
)

_IMAGE_HINT = "use `danlu image {}`"
_JOBS_HINT = "use `danlu jobs {}`"
_JUPYTER_HINT = "add `config.jupyter()` to the build file, and `danlu up` starts JupyterLab"

#: Commands of envd, Docker and Podman that danlu has under another name, or does not need.
_FAMILIAR_COMMANDS = {
    "bootstrap": "danlu needs no set-up; `danlu doctor` checks this machine",
    "debug": "use `danlu plan --why`, or `danlu build --debug` for a shell in a failed step",
    "destroy": "use `danlu down`, and `danlu image rm` to remove an image",
    "envs": "use `danlu ps` for environments, `danlu jobs ls` for jobs",
    "images": _IMAGE_HINT.format("ls"),
    "inspect": _IMAGE_HINT.format("show"),
    "jupyter": _JUPYTER_HINT,
    "lab": _JUPYTER_HINT,
    "list": "use `danlu ps` for environments, or `danlu jobs ls`, `danlu image ls`",
    "new": "use `danlu init --template NAME`",
    "notebook": _JUPYTER_HINT,
    "rmi": _IMAGE_HINT.format("rm"),
    "rm": "use `danlu image rm` for images, `danlu jobs rm` for jobs",
    "prune": "use `danlu image prune` for images, `danlu jobs prune` for jobs",
    "shell": "use `danlu up`, or `danlu run -- bash` for a shell that leaves nothing",
    **{
        name: _IMAGE_HINT.format(name)
        for name in ("diff", "history", "load", "ls", "pull", "push", "save", "tag")
    },
    **{name: _JOBS_HINT.format(name) for name in ("resume", "scale", "suspend", "wait")},
    "kill": "use `danlu stop` for environments, `danlu jobs stop` for jobs",
    "attach": "use `danlu exec` for environments, `danlu jobs attach` for jobs",
    "pause": "use `danlu stop` for environments, `danlu jobs suspend` for jobs",
}

_HELP = """From a laptop to a cluster in one tool: describe an environment in a few lines of Python,
lock it, build it into an OCI image in seconds, and run commands and training jobs in it."""


def _show_version(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        current_session(context).terminal.write_stdout(f"danlu {__version__}")
        context.exit()


@click.command(
    cls=LazyGroup,
    name="danlu",
    specs=COMMANDS,
    hints=_FAMILIAR_COMMANDS,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    invoke_without_command=True,
)
@verbosity_options
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def root(context: click.Context) -> None:
    """Show the help if no command is given."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
