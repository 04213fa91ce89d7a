"""Which packages may come as wheels and which as source distributions.

These are the options ``--no-binary`` and ``--only-binary`` of requirements files, with the rules
of pip's documentation ("pip install"): the later option wins, ``:all:`` is every package,
``:none:`` takes back what the same option said before, and a name is stronger than ``:all:``.
"""

from __future__ import annotations

import re

import msgspec

from danlu.environment.names import normalised

__all__ = ["EVERY_FORMAT", "FORMAT_OPTIONS", "Formats"]

FORMAT_OPTIONS = frozenset({"--no-binary", "--only-binary"})

_NAME = re.compile(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?")


class Formats(msgspec.Struct, frozen=True):
    """Normalised names, or ``:all:``, that may not be wheels and that may be nothing else."""

    no_binary: frozenset[str] = frozenset()
    only_binary: frozenset[str] = frozenset()

    def after(self, option: str, value: str) -> Formats:
        """What holds once a further one of :data:`FORMAT_OPTIONS` was read.

        ``value`` is names with commas between them. Raises :class:`ValueError` naming what is none.
        """
        sets = {"--no-binary": set(self.no_binary), "--only-binary": set(self.only_binary)}
        (opposite,) = FORMAT_OPTIONS - {option}
        for name in value.split(","):
            _apply(name.strip(), sets[option], sets[opposite])
        return Formats(frozenset(sets["--no-binary"]), frozenset(sets["--only-binary"]))

    def allow(self, name: str, *, wheel: bool) -> bool:
        """Whether the package ``name``, normalised, may be a wheel, or a source distribution."""
        forbidden, other = self.no_binary, self.only_binary
        if not wheel:
            forbidden, other = other, forbidden
        return name not in forbidden and (":all:" not in forbidden or name in other)

    def options(self) -> list[str]:
        """The same for uv, whose rules within one call are pip's."""
        return [
            *(word for name in sorted(self.no_binary) for word in ("--no-binary", name)),
            *(word for name in sorted(self.only_binary) for word in ("--only-binary", name)),
        ]


EVERY_FORMAT = Formats()


def _apply(name: str, target: set[str], opposite: set[str]) -> None:
    if name == ":none:":
        target.clear()
    elif name == ":all:":
        target.clear()
        opposite.clear()
        target.add(name)
    elif _NAME.fullmatch(name):
        opposite.discard(normalised(name))
        target.add(normalised(name))
    else:
        raise ValueError(name)
