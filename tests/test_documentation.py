"""Claims about the documentation: its links lead somewhere, and its commands exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path
from textwrap import dedent

import click
import msgspec
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from danlu.cli.app import root
from danlu.cli.session import Session
from danlu.submission.options import format_option_name
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from danlu.util.config import Configuration
from scripts.reference.dependencies import read_licence
from tests.lang.support import envd
from tests.test_repository import ROOT, list_tracked_files

LINK = re.compile(r"\]\((?P<target>[^)\s#]*)(?:#(?P<anchor>[^)\s]*))?(?:\s[^)]*)?\)")
FENCE = re.compile(r"^ *```(?P<info>[^\n`]*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)

#: What precedes a command: spaces, a prompt, the key of a pipeline's step.
PROMPT = re.compile(r"^ *(?:\$ |- (?:run: )?)?")

#: A placeholder for a value of the reader, in a synopsis of several commands.
SYNOPSIS = (" | wait", "…", "...")


def pages() -> list[Path]:
    return [path for path in list_tracked_files() if path.suffix == ".md"]


def links(page: Path) -> Iterator[tuple[str, str]]:
    """The relative links of a page, outside code."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"`[^`]*`", "", text)
    for match in LINK.finditer(text):
        if "://" not in match["target"] and not match["target"].startswith("mailto:"):
            yield match["target"], match["anchor"] or ""


def anchors(page: Path) -> set[str]:
    """The anchors of headings, as GitHub and MkDocs make them."""
    titles = [match["title"] for match in HEADING.finditer(FENCE.sub("", page.read_text()))]
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


def test_links_between_pages_and_files_exist() -> None:
    broken = []
    for page in pages():
        for target, anchor in links(page):
            path = Path(os.path.normpath(page.parent / target)) if target else page
            if not path.exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []


#: Files of the repository's root that are pages of the site (scripts/site_hooks.py).
ROOT_PAGES = {"changelog.md", "contributing.md", "security.md"}


def list_site_pages() -> list[str]:
    """The pages in the navigation of the site, which must have no names there."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = text[text.index("\nnav:\n") :]
    entries = re.findall(r"^ +- (.*\.md)$", navigation, re.MULTILINE)
    assert len(entries) == len(set(entries))
    return [entry.removeprefix("Home: ") for entry in entries]


def find_page(name: str) -> Path:
    root = name in ROOT_PAGES
    return ROOT / f"{name[:-3].upper()}.md" if root else ROOT / "docs" / name


def test_every_page_has_one_name_of_its_own() -> None:
    entries = list_site_pages()
    assert [entry for entry in entries if ":" in entry] == []
    titles = [HEADING.findall(find_page(name).read_text(encoding="utf-8"))[0] for name in entries]
    assert sorted(titles) == sorted(set(titles))


def test_the_landing_page_links_to_every_page_for_users() -> None:
    page = ROOT / "docs/index.md"
    linked = {os.path.normpath(page.parent / target) for target, _ in links(page)}
    pages = [
        find_page(name)
        for name in list_site_pages()
        if name != "index.md" and (not name.startswith("architecture/") or "index" in name)
    ]
    assert [str(path) for path in pages if str(path) not in linked] == []


def test_the_security_page_names_tests_that_exist() -> None:
    names = set(re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8")))
    files = (ROOT / "tests").rglob("test_*.py")
    defined = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert names - defined == set()


def test_references_to_decisions_name_a_heading() -> None:
    known = anchors(ROOT / "docs/architecture/decisions.md")
    wrong = []
    for path in list_tracked_files():
        if path.suffix in (".py", ".sh", ".md", ".toml"):
            text = path.read_text(encoding="utf-8")
            used = re.findall(r"(?:architecture/)decisions\.md#([\w-]+)", text)
            wrong += [f"{path.relative_to(ROOT)}: {name}" for name in used if name not in known]
    assert wrong == []


def commands(page: Path) -> Iterator[list[str]]:
    """The command lines of danlu in a page's code blocks."""
    for block in FENCE.finditer(page.read_text(encoding="utf-8")):
        if block["info"].split(" ")[0] not in ("", "sh", "bash", "console", "yaml"):
            continue
        for line in re.sub(r"\\\n\s*", " ", block["body"]).splitlines():
            if "danlu " in line and not any(sign in line for sign in SYNOPSIS):
                yield from split_commands(PROMPT.sub("", line))


def split_commands(line: str) -> Iterator[list[str]]:
    """The arguments of each `danlu` in a line of shell; redirections and pipes end one."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";|&><()"):
            if words[:1] == ["danlu"]:
                yield words[1:]
            words = []
        else:
            words.append(word)


@pytest.mark.parametrize(
    "page", [p for p in pages() if p.name != "cli.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_commands_of_a_page_are_accepted_by_the_command_line(page: Path) -> None:
    wrong = []
    for words in commands(page):
        try:
            parse(root, "danlu", words)
        except click.UsageError as error:
            wrong.append(f"danlu {shlex.join(words)}: {error.format_message()}")
        except click.exceptions.Exit:
            pass
    assert wrong == []


def parse(command: click.Command, name: str, words: list[str]) -> None:
    """Parse a command line down to the verb, without running it. Files need not exist."""
    with command.make_context(name, list(words), obj=Session([])) as context:
        rest = [*context._protected_args, *context.args]
        # A command with subcommands may be complete without one: `danlu serve REF`.
        if isinstance(command, click.Group) and rest:
            verb, inner, others = command.resolve_command(context, rest)
            assert inner is not None
            parse(inner, str(verb), others)


def test_a_wrong_command_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        parse(root, "danlu", ["build", "--no-such-option"])
    with pytest.raises(click.UsageError):
        parse(root, "danlu", ["no-such-verb"])


def test_the_configuration_page_has_every_setting_with_its_default() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", page, re.MULTILINE))
    structs = (Configuration(), Configuration().kubernetes)
    fields = {
        name: json.dumps(value)
        for struct in structs
        for name, value in msgspec.structs.asdict(struct).items()
        if name not in ("mirrors", "registries", "kubernetes")
    }
    assert rows == fields


def list_variables() -> set[str]:
    """The variables ``DANLU_…`` in the source; a prefix of several ends with an underscore."""
    names = set()
    for path in (ROOT / "src").rglob("*"):
        if path.suffix in (".py", ".sh", ".star"):
            text = path.read_text(encoding="utf-8")
            names |= set(re.findall(r"(?<![A-Z_])DANLU_[A-Z][A-Z_]*", text))
    return names


def test_the_configuration_page_has_every_variable_of_the_source() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    settings = set(msgspec.structs.asdict(Configuration()))
    tables = re.findall(r"^\| `(DANLU_[A-Z_]+?)(?:NAME)?` \|", page, re.MULTILINE)
    documented = {*tables, *(f"DANLU_{name.upper()}" for name in settings)}
    prefixes = tuple(name for name in tables if name.endswith("_"))
    used = list_variables()
    assert {name for name in used - documented if not name.startswith(prefixes)} == set()
    assert set(tables) - used == set(), "variables that the source does not use"


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        (["License-Expression: MIT OR Apache-2.0", "License: Other"], "MIT OR Apache-2.0"),
        (["License: epl-2.0 or gpl-2.0-or-later"], "EPL-2.0 OR GPL-2.0-or-later"),
        (["License: BSD 3-Clause License\n \n Copyright"], "BSD-3-Clause"),
        (["License: UNKNOWN", "Classifier: License :: OSI Approved :: ISC License (ISCL)"], "ISC"),
        (["Classifier: License :: OSI Approved :: BSD License"], "BSD (variant not declared)"),
        (["Classifier: Programming Language :: Python", "License: see the file"], ""),
    ],
)
def test_licence_of_a_package_is_what_its_metadata_declares(
    fields: list[str], licence: str
) -> None:
    assert read_licence(message_from_string("\n".join(fields))) == licence


def test_the_dependencies_page_lists_what_danlu_needs_with_licences() -> None:
    page = (ROOT / "docs/reference/dependencies.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([\w.-]+) \| [^|]+ \| ([^|]+) \| [^|]*danlu \|$", page, re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    assert direct <= set(rows)
    assert (rows["asyncssh"], rows["pathspec"]) == ("EPL-2.0 OR GPL-2.0-or-later", "MPL-2.0")


#: danlu is not on PyPI: whoever takes the name there could run code on the reader's machine.
FROM_INDEX = re.compile(
    r"\b(?:pipx?|tool) install\b[^`\n|#]*?[ '\"`]danlu(?:\[\w+\])?(?=['\"`\s]|$)"
)


def test_nothing_tells_users_to_install_danlu_from_an_index() -> None:
    found = []
    for path in [*pages(), *sorted((ROOT / "src").rglob("*.py"))]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if FROM_INDEX.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    # The warning against it.
    assert [line for line in found if not line.startswith("docs/guides/install.md:4:")] == []
    assert len(found) == 1


GENERATED = ("build-language.md", "cli.md", "dependencies.md", "jobs.md", "notebook.md")


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_consist_of_words_and_not_of_single_letters(name: str) -> None:
    text = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    assert re.findall(r"(?:\b\w, ){3,}|``\w[\w-]*``", text) == []


def test_the_notebook_page_names_the_replica_types_of_each_framework() -> None:
    text = (ROOT / "docs/reference/notebook.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.*`) \|$", text, re.MULTILINE))
    assert rows["pytorch"] == "`%master`, `%worker`"
    for framework in BUILT_IN_FRAMEWORKS:
        names = [f"`%{format_option_name(name)}`" for name in framework.replica_types]
        assert rows[framework.name].split(", ") == names


def read_build_files(page: Path) -> Iterator[str]:
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        if match["info"].startswith("python") and re.search(r"^ *def build\(", match["body"], re.M):
            yield dedent(match["body"])


@pytest.mark.parametrize("page", [page for page in pages() if any(read_build_files(page))], ids=str)
def test_build_files_of_a_page_describe_an_environment(page: Path) -> None:
    for text in read_build_files(page):
        assert envd(text).base is not None
