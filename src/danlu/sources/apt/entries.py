"""Source entries of apt, read and written in both of its forms (sources.list(5)). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

__all__ = ["Entry", "parse_one_line", "parse_stanzas", "parse_text", "stanzas", "to_deb822"]

_OPTIONS = re.compile(r"\[([^\]]*)\]")

#: One-line option names whose deb822 field is not just the capitalised word.
_FIELDS = {"arch": "architectures", "lang": "languages", "target": "targets"}

#: Options that change where or how a Packages file is trusted; the others are the machine's taste.
_KEPT = (
    "trusted",
    "check-valid-until",
    "valid-until-min",
    "valid-until-max",
    "check-date",
    "allow-insecure",
    "allow-weak",
    "allow-downgrade-to-insecure",
    "by-hash",
    "inrelease-path",
)


class Entry(msgspec.Struct, frozen=True):
    """One suite of one archive.

    ``uris`` are roots of the same archive, tried in order. ``signed_by`` is what the field says:
    paths, fingerprints or an armoured key (several lines); empty for apt's trusted keys. A
    ``components`` that is empty goes with a ``suite`` that ends in ``/`` (a flat archive).
    ``optional`` marks a suite that the archive may lack.
    """

    uris: tuple[str, ...]
    suite: str
    components: tuple[str, ...] = ("main",)
    architectures: tuple[str, ...] = ()
    signed_by: str = ""
    options: tuple[tuple[str, str], ...] = ()
    optional: bool = False


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """The stanzas of a control file, field names in lower case, lines of a value joined by LF."""
    fields: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line.startswith("#"):
            continue
        elif line[0] in " \t" and last:
            fields[last] += "\n" + line[1:]
        elif ":" in line:
            last, _, value = line.partition(":")
            last = last.strip().lower()
            fields[last] = value.strip()
    if fields:
        yield fields


def _kept(fields: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, fields[name]) for name in _KEPT if fields.get(name))


def parse_stanzas(text: str) -> list[Entry]:
    """The enabled binary entries of a deb822 file."""
    found = []
    for fields in stanzas(text):
        if fields.get("enabled", "yes").lower() in ("no", "false", "0", "off", "without"):
            continue
        if "deb" not in fields.get("types", "").split():
            continue
        for suite in fields.get("suites", "").split():
            found.append(
                Entry(
                    uris=tuple(fields.get("uris", "").split()),
                    suite=suite,
                    components=tuple(fields.get("components", "").split()),
                    architectures=tuple(fields.get("architectures", "").split()),
                    signed_by=fields.get("signed-by", ""),
                    options=_kept(fields),
                )
            )
    return [one for one in found if one.uris]


def _line_options(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for option in text.split():
        name, separator, value = option.partition("=")
        name = name.rstrip("+-").lower()
        if separator:
            fields[_FIELDS.get(name, name)] = value.replace(",", " ")
    return fields


def parse_one_line(text: str) -> list[Entry]:
    """The binary entries of a file in the one-line form."""
    found = []
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        match = re.match(r"deb(\s|\[)", line)
        if match is None:
            continue
        rest = line[3:].strip()
        options = _OPTIONS.match(rest)
        fields = _line_options(options.group(1)) if options else {}
        words = (rest[options.end() :] if options else rest).split()
        if len(words) < 2:
            continue
        found.append(
            Entry(
                uris=(words[0],),
                suite=words[1],
                components=tuple(words[2:]),
                architectures=tuple(fields.get("architectures", "").split()),
                signed_by=fields.get("signed-by", ""),
                options=_kept(fields),
            )
        )
    return found


def parse_text(text: str) -> list[Entry]:
    """Entries of a text in whichever form it is written."""
    if re.search(r"(?mi)^types\s*:", text):
        return parse_stanzas(text)
    return parse_one_line(text)


def _value(text: str) -> str:
    """``text`` as the value of a field: continuation lines begin with a space."""
    first, *rest = text.split("\n")
    return "\n".join([first, *(" " + (line or ".") for line in rest)])


def to_deb822(entries: Iterable[Entry], *, choice: int = 0) -> str:
    """Entries as a deb822 file that uses the ``choice``-th (or last) URI of each."""
    blocks = []
    for entry in entries:
        fields = [
            ("Types", "deb"),
            ("URIs", entry.uris[min(choice, len(entry.uris) - 1)]),
            ("Suites", entry.suite),
        ]
        if entry.components:
            fields.append(("Components", " ".join(entry.components)))
        if entry.signed_by:
            fields.append(("Signed-By", _value(entry.signed_by)))
        fields.extend(entry.options)
        blocks.append("".join(f"{name}: {value}\n" for name, value in fields))
    return "\n".join(blocks)
