"""A private apt: the machine's own programs with lists, caches and settings of danlu's.

One directory an archive and architecture below ``Paths.cache/"apt"/"homes"``; nothing of the
machine's apt state is read for resolving or ever written.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.sources.apt.archive import Archive
from danlu.sources.apt.entries import to_deb822
from danlu.sources.apt.host import HostApt, release_fields
from danlu.sources.apt.messages import update_failure
from danlu.util.files import remove_tree, write_atomic
from danlu.util.locks import try_file_lock
from danlu.util.notes import note, noted
from danlu.util.process import Completed, run

__all__ = ["Home", "open_home"]

T = TypeVar("T")

#: Package lists younger than this (seconds) are used as they are.
FRESH = 15 * 60

#: Lists that nobody fetched again for so long (seconds) are removed.
UNUSED = 30 * 24 * 3600

_CONFIGURATION = """\
Acquire::Retries "2";
{settings}
Dir "{home}/";
Dir::State "{home}/state";
Dir::State::lists "{home}/state/lists";
Dir::State::status "{home}/empty";
Dir::State::extended_states "{home}/state/extended_states";
Dir::Cache "{home}/cache";
Dir::Cache::archives "{home}/cache/archives";
Dir::Etc "{home}/etc";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "{home}/etc/none";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{home}/etc/sources.list.d";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{home}/etc/none";
Dir::Etc::trusted "{trusted}";
Dir::Etc::trustedparts "{trusted_parts}";
Dir::Etc::netrc "{netrc}";
Dir::Etc::netrcparts "{netrc_parts}";
Dir::Log "{home}/log";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Default-Release "";
APT::Cmd::Pattern-Only "true";
APT::Get::Assume-Yes "true";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::GzipIndexes "false";
Acquire::PDiffs "false";
Debug::NoLocking "true";
"""


@asynccontextmanager
async def locked(path: Path, *, shared: bool = False) -> AsyncIterator[None]:
    """Hold the lock ``path``; the wait can be cancelled, which that of a thread cannot."""
    import anyio

    while True:
        with try_file_lock(path, shared=shared) as held:
            if held:
                yield
                return
        await anyio.sleep(0.05)


class Home(msgspec.Struct, frozen=True):
    """One private apt. ``directory`` holds all of it, ``what`` names it in messages."""

    archive: Archive
    directory: Path

    @property
    def what(self) -> str:
        """The release, as build files spell it."""
        return self.archive.distribution.name

    @property
    def lists(self) -> Path:
        """Downloaded package lists."""
        return self.directory / "state" / "lists"

    @property
    def stamp(self) -> Path:
        """Its modification time is that of the last good update; it holds the mirrors' number."""
        return self.directory / "updated"

    async def answer(self, question: object, kind: type[T], ask: Callable[[], Awaitable[T]]) -> T:
        """What ``ask`` gives, kept until the lists are fetched again: apt takes 0.3 s an answer."""
        asked = [self.stamp.read_text(), self.stamp.stat().st_mtime_ns, question]
        answer = noted(self._answers, asked, kind)
        if answer is None:
            answer = await ask()
            note(self._answers, asked, answer)
        return answer

    @property
    def _answers(self) -> Path:
        return self.directory / "answers"

    @property
    def environment(self) -> dict[str, str]:
        """What apt's programs are run with: our environment, proxies too, and its own apt.conf."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
        kept.pop("LANGUAGE", None)
        return kept | {"APT_CONFIG": str(self.directory / "apt.conf"), "LC_ALL": "C.UTF-8"}

    def prepare(self, host: HostApt) -> None:
        """Make the directories and write apt.conf and the sources."""
        for name in ("state/lists/partial", "cache/archives/partial", "etc/none", "log"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "empty").touch()
        text = _CONFIGURATION.format(
            settings="\n".join(host.settings),
            home=self.directory,
            architecture=self.archive.architecture,
            trusted=host.trusted,
            trusted_parts=host.trusted_parts,
            netrc=host.netrc,
            netrc_parts=host.netrc_parts,
        )
        _write_changed(self.directory / "apt.conf", text)

    async def run(self, *args: str, options: Mapping[str, str] | None = None) -> Completed:
        """Run one of apt's programs under this configuration."""
        extra = [
            part for name, value in (options or {}).items() for part in ("-o", f"{name}={value}")
        ]
        return await run([args[0], *extra, *args[1:]], env=self.environment)

    def age(self) -> float:
        """Seconds since the lists were fetched; infinite when they never were."""
        try:
            age = time.time() - self.stamp.stat().st_mtime
        except FileNotFoundError:
            return float("inf")
        # A stamp from the future says that the clock was wrong, then or now.
        return age if age > -60 else float("inf")

    async def refresh(self, *, force: bool = False, offline: bool = False) -> None:
        """Fetch the package lists where they are missing or not :data:`FRESH`, or if ``force``.

        Raises :class:`OutsideError` naming the host that could not be reached.
        """
        if offline:
            if self.age() == float("inf"):
                raise OutsideError(
                    f"the package lists of {self.what} were never fetched, and danlu is offline",
                    hint="resolve once with a network: `danlu lock` without --offline",
                )
            return
        began = time.time()
        if not force and self.age() < FRESH:
            return
        async with locked(self.directory / "lock"):
            # Another process may have fetched them while we waited.
            if self.age() > (time.time() - began if force else FRESH):
                await self._update()

    async def _update(self) -> None:
        output = ""
        dropped: set[str] = set()
        for choice in range(self.archive.attempts):
            self.write_sources(choice, dropped)
            output = await self._fetch_lists()
            missing = self._missing_optional(output) - dropped
            if output and missing:
                dropped |= missing
                self.write_sources(choice, dropped)
                output = await self._fetch_lists()
            if not output:
                write_atomic(self.stamp, str(choice).encode(), sync=False)
                remove_tree(self._answers)
                self._forget_others()
                return
        raise update_failure(output, what=self.what)

    def _forget_others(self) -> None:
        """Remove homes whose lists nobody fetched for long: one holds hundreds of megabytes."""
        for other in self.directory.parent.iterdir():
            stamp = other / "updated"
            if not stamp.exists() or time.time() - stamp.stat().st_mtime < UNUSED:
                continue
            with try_file_lock(other / "lock") as held:
                if held:
                    remove_tree(other)

    async def _fetch_lists(self) -> str:
        """Run ``apt-get update``; what it printed where it failed, else nothing."""
        result = await self.run("apt-get", "-q", "update")
        text = (result.stdout + result.stderr).decode(errors="replace")
        # apt before 2.1 knows no Error-Mode and only warns.
        if result.code == 0 and "Some index files failed to download" not in text:
            return ""
        return text or f"apt-get update: exit code {result.code}"

    def _missing_optional(self, output: str) -> set[str]:
        optional = {entry.suite for entry in self.archive.entries if entry.optional}
        found = re.findall(r"repository '\S+ (\S+) Release' does not have a Release file", output)
        return optional & set(found)

    def write_sources(self, choice: int, dropped: set[str]) -> None:
        """Write the source entries, with the ``choice``-th mirror of each."""
        entries = [one for one in self.archive.entries if one.suite not in dropped]
        directory = self.directory / "etc" / "sources.list.d"
        directory.mkdir(parents=True, exist_ok=True)
        _write_changed(directory / "danlu.sources", to_deb822(entries, choice=choice))

    def choice(self) -> int:
        """Which mirrors the last good update used."""
        try:
            return int(self.stamp.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def released(self) -> int:
        """The newest Date of the release's downloaded Release files, seconds since 1970 UTC."""
        dates = [0]
        for entry in self.archive.entries:
            if entry.suite in self.archive.distribution.suites:
                uri = entry.uris[min(self.choice(), len(entry.uris) - 1)]
                text = release_fields(self.lists, uri, entry.suite).get("date", "")
                if text:
                    dates.append(int(parsedate_to_datetime(text).timestamp()))
        if max(dates) == 0:
            raise OutsideError(f"the Release files of {self.what} state no date")
        return max(dates)

    def roots(self, suite: str) -> list[str]:
        """Addresses that may have a file of ``suite``: its own archive first, then others."""
        order = sorted(self.archive.entries, key=lambda entry: entry.suite != suite)
        choice = self.choice()
        first = [entry.uris[min(choice, len(entry.uris) - 1)] for entry in order]
        others = [uri for entry in order for uri in entry.uris]
        return list(dict.fromkeys(uri.rstrip("/") for uri in (*first, *others)))


def _write_changed(path: Path, text: str) -> None:
    """Write ``text`` unless the file has it: apt rebuilds its caches when a source is newer."""
    data = text.encode()
    if not path.exists() or path.read_bytes() != data:
        write_atomic(path, data, sync=False)


def _identity(archive: Archive) -> str:
    text = to_deb822(archive.entries) + archive.architecture
    text += "".join(uri for entry in archive.entries for uri in entry.uris)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def open_home(archive: Archive, cache: Path, host: HostApt) -> Home:
    """The private apt of ``archive`` below ``cache`` (``Paths.cache/"apt"``).

    Raises :class:`UsageError` where apt could not be told that path.
    """
    name = f"{archive.distribution.codename}-{archive.architecture}-{_identity(archive)}"
    home = Home(archive, (cache / "homes" / name).absolute())
    if any(sign in str(home.directory) for sign in '"\\\n'):
        raise UsageError(  # apt.conf(5) has no way to quote a quote
            f"apt cannot work in {home.directory}: the path has a quote or a backslash",
            hint="set DANLU_HOME to another directory",
        )
    home.prepare(host)
    return home
