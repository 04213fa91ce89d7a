"""The commands: one line each, in the order a user walks. Adding one is a module and a line."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "COMMANDS",
    "IMAGE_COMMANDS",
    "IMAGE_SECTIONS",
    "JOBS_COMMANDS",
    "JOBS_SECTIONS",
    "KERNEL_COMMANDS",
    "KERNEL_SECTIONS",
    "OPERATOR_COMMANDS",
    "OPERATOR_SECTIONS",
    "SECTIONS",
    "Entry",
    "find",
]


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: its name, its section of ``--help``, its module in ``danlu.cli.verbs``.

    ``summary`` is the first line of the command's own help, kept here so that ``danlu --help``
    imports no command (a test compares them).
    """

    name: str
    section: str
    summary: str
    package: str = "danlu.cli.verbs"

    @property
    def module(self) -> str:
        """The module whose ``command`` this is."""
        return f"{self.package}.{self.name}"


SECTIONS = ("The road", "Training", "Images", "This machine")

COMMANDS = (
    Entry("init", "The road", "Write a build file for what this directory holds."),
    Entry("plan", "The road", "Show what would be built, and why; needs no network."),
    Entry("lock", "The road", "Pin everything the build file asks for in danlu.lock."),
    Entry("build", "The road", "Build the image."),
    Entry("run", "The road", "Run one command in the environment, with the project mounted."),
    Entry("train", "Training", "Run a training job: a script, or a Kubeflow manifest."),
    Entry("jobs", "Training", "List, follow, stop and remove training jobs."),
    Entry("operator", "Training", "Run training jobs on a Kubernetes cluster."),
    Entry("kernel", "Training", "Install danlu's kernel for Jupyter."),
    Entry("image", "Images", "List, inspect, move and remove images."),
    Entry("config", "This machine", "Show the configuration, and where it comes from."),
    Entry("doctor", "This machine", "Check what this machine has and lacks."),
    Entry("completion", "This machine", "Print the completion script of a shell."),
    Entry("version", "This machine", "Show the versions of danlu and of what it stands on."),
)


_IMAGE = "danlu.cli.verbs.image"

IMAGE_COMMANDS = (
    Entry("ls", "Look", "List the images of this machine.", _IMAGE),
    Entry("show", "Look", "Show one image: names, configuration, layers.", _IMAGE),
    Entry("history", "Look", "Show how each layer of an image came to be.", _IMAGE),
    Entry("diff", "Look", "Compare two images; exits with 1 where they differ.", _IMAGE),
    Entry("tag", "Name and remove", "Give an image a further name.", _IMAGE),
    Entry("rm", "Name and remove", "Remove images or names of images.", _IMAGE),
    Entry("prune", "Name and remove", "Remove what no image needs.", _IMAGE),
    Entry("check", "Name and remove", "Read the whole store and tell what is damaged.", _IMAGE),
    Entry("push", "Move", "Push an image to a registry.", _IMAGE),
    Entry("pull", "Move", "Pull an image from a registry.", _IMAGE),
    Entry("save", "Move", "Write an image to a file or directory.", _IMAGE),
    Entry("load", "Move", "Read images from a file or directory.", _IMAGE),
)

IMAGE_SECTIONS = ("Look", "Name and remove", "Move")

_JOBS = "danlu.cli.verbs.jobs"

JOBS_COMMANDS = (
    Entry("ls", "Look", "List the jobs there are.", _JOBS),
    Entry("show", "Look", "Show one job: its state, its replicas, what happened.", _JOBS),
    Entry("logs", "Look", "Write what a job's replicas wrote.", _JOBS),
    Entry("wait", "Follow", "Wait until jobs are finished; exits with 1 where one failed.", _JOBS),
    Entry("attach", "Follow", "Follow a job as `danlu train` does; Ctrl-C leaves it alone.", _JOBS),
    Entry("stop", "Change", "End jobs; what they wrote stays.", _JOBS),
    Entry("rm", "Change", "Forget finished jobs and what they wrote.", _JOBS),
    Entry("suspend", "Change", "End the replicas of jobs for now; resume goes on.", _JOBS),
    Entry("resume", "Change", "Let suspended jobs go on.", _JOBS),
    Entry("scale", "Change", "Ask for another number of replicas.", _JOBS),
)

JOBS_SECTIONS = ("Look", "Follow", "Change")

_KERNEL = "danlu.cli.verbs.kernel"

KERNEL_COMMANDS = (
    Entry("install", "Commands", "Let Jupyter offer the kernel.", _KERNEL),
    Entry("ls", "Commands", "List the kernels of danlu that Jupyter offers.", _KERNEL),
    Entry("uninstall", "Commands", "Have Jupyter offer the kernel no more.", _KERNEL),
)

KERNEL_SECTIONS = ("Commands",)

_OPERATOR = "danlu.cli.verbs.operator"

OPERATOR_COMMANDS = (
    Entry("run", "Commands", "Run the operator until it is stopped.", _OPERATOR),
    Entry("crds", "Commands", "Write the definitions of the kinds of jobs.", _OPERATOR),
    Entry("manifests", "Commands", "Write all that a cluster needs for the operator.", _OPERATOR),
)

OPERATOR_SECTIONS = ("Commands",)


def find(name: str, entries: tuple[Entry, ...] = COMMANDS) -> Entry | None:
    """The command called ``name``."""
    return next((one for one in entries if one.name == name), None)
