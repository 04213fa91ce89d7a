"""The commands: one line each, in the order a user walks. Adding one is a module and a line."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COMMANDS", "SECTIONS", "Entry", "find"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: its name, its section of ``--help``, its module in ``danlu.cli.verbs``.

    ``summary`` is the first line of the command's own help, kept here so that ``danlu --help``
    imports no command (a test compares them).
    """

    name: str
    section: str
    summary: str

    @property
    def module(self) -> str:
        """The module whose ``command`` this is."""
        return f"danlu.cli.verbs.{self.name}"


SECTIONS = ("The road", "Images", "This machine")

COMMANDS = (
    Entry("init", "The road", "Write a build file for what this directory holds."),
    Entry("plan", "The road", "Show what would be built, and why; needs no network."),
    Entry("lock", "The road", "Pin everything the build file asks for in danlu.lock."),
    Entry("build", "The road", "Build the image."),
    Entry("run", "The road", "Run one command in the environment, with the project mounted."),
#    Entry("image", "Images", "List, inspect, move and remove images."),
    Entry("config", "This machine", "Show the configuration, and where it comes from."),
    Entry("doctor", "This machine", "Check what this machine has and lacks."),
    Entry("completion", "This machine", "Print the completion script of a shell."),
    Entry("version", "This machine", "Show the versions of danlu and of what it stands on."),
)


def find(name: str) -> Entry | None:
    """The command called ``name``."""
    return next((one for one in COMMANDS if one.name == name), None)
