"""Parse and format apt sources in both formats, one-line and deb822 (sources.list(5)). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

_OPTIONS = re.compile(r"\[([^\]]*)\]")

#: One-line option names whose deb822 field is not just the capitalised word.
_FIELD_NAMES = {"arch": "architectures", "lang": "languages", "target": "targets"}

#: Options that affect whether a Packages file is trusted; others are the machine's preferences.
_TRUST_OPTIONS = (
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


class SourceEntry(msgspec.Struct, frozen=True):
    """One suite of one archive.

    ``uris`` are mirrors of the same archive, tried in order. ``signed_by`` is the field's value:
    paths, fingerprints or an armoured key (several lines); empty for apt's trusted keys.
    ``components`` is empty if ``suite`` ends in ``/`` (a flat archive). ``optional`` marks a suite
    that the archive may lack.
    """

    uris: tuple[str, ...]
    suite: str
    components: tuple[str, ...] = ("main",)
    architectures: tuple[str, ...] = ()
    signed_by: str = ""
    options: tuple[tuple[str, str], ...] = ()
    optional: bool = False


def iter_stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yield the stanzas of a control file, with lower-case field names."""
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


def _trust_options(fields: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, fields[name]) for name in _TRUST_OPTIONS if fields.get(name))


def parse_deb822(text: str) -> list[SourceEntry]:
    """Parse a deb822 file into its enabled binary entries."""
    entries = []
    for fields in iter_stanzas(text):
        if fields.get("enabled", "yes").lower() in ("no", "false", "0", "off", "without"):
            continue
        if "deb" not in fields.get("types", "").split():
            continue
        for suite in fields.get("suites", "").split():
            entries.append(
                SourceEntry(
                    uris=tuple(fields.get("uris", "").split()),
                    suite=suite,
                    components=tuple(fields.get("components", "").split()),
                    architectures=tuple(fields.get("architectures", "").split()),
                    signed_by=fields.get("signed-by", ""),
                    options=_trust_options(fields),
                )
            )
    return [entry for entry in entries if entry.uris]


def _line_options(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for option in text.split():
        name, separator, value = option.partition("=")
        name = name.rstrip("+-").lower()
        if separator:
            fields[_FIELD_NAMES.get(name, name)] = value.replace(",", " ")
    return fields


def parse_one_line(text: str) -> list[SourceEntry]:
    """Parse a one-line style file into its binary entries."""
    entries = []
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
        entries.append(
            SourceEntry(
                uris=(words[0],),
                suite=words[1],
                components=tuple(words[2:]),
                architectures=tuple(fields.get("architectures", "").split()),
                signed_by=fields.get("signed-by", ""),
                options=_trust_options(fields),
            )
        )
    return entries


def parse_sources(text: str) -> list[SourceEntry]:
    """Parse a text in either format."""
    if re.search(r"(?mi)^types\s*:", text):
        return parse_deb822(text)
    return parse_one_line(text)


def _format_value(text: str) -> str:
    """Format ``text`` as the value of a field: continuation lines start with a space."""
    first, *rest = text.split("\n")
    return "\n".join([first, *(" " + (line or ".") for line in rest)])


def format_deb822(entries: Iterable[SourceEntry], *, choice: int = 0) -> str:
    """Format entries as a deb822 file that uses the URI number ``choice`` (or the last) of each."""
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
            fields.append(("Signed-By", _format_value(entry.signed_by)))
        fields.extend(entry.options)
        blocks.append("".join(f"{name}: {value}\n" for name, value in fields))
    return "\n".join(blocks)
