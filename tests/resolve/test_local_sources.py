"""Archives and channels that a build file names are on servers or in the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.environment.conda import CondaChannels
from danlu.environment.types import AptSource
from danlu.errors import Span, UsageError
from danlu.resolve.system import confine_apt_source
from danlu.sources.conda.channels import confine_channels
from danlu.util.config import Configuration, MirrorConfig

SPAN = Span("build.envd", 3)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a channel and a link that leads out; the user's ``.condarc`` names ``own``."""
    directory = tmp_path / "project"
    (directory / "channel").mkdir(parents=True)
    (directory / "link").symlink_to(tmp_path)
    (tmp_path / "condarc").write_text(
        f"custom_channels: {{team: {tmp_path}/own}}\nchannels: [{tmp_path}/named]\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CONDARC", str(tmp_path / "condarc"))
    return directory


OUTSIDE = (
    "file:///etc",
    "/etc",
    "../up",
    "~/channel",
    "./link/channel",
    "file:///%65tc",
    "file:/etc",
)


@pytest.mark.parametrize("channel", OUTSIDE)
def test_a_channel_outside_the_project_is_refused(project: Path, channel: str) -> None:
    with pytest.raises(UsageError, match=r"outside the project|leads out") as caught:
        confine_channels([channel], None, Configuration(), project)
    assert "~/.condarc" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "channels: [{0}]",
        "channel_alias: {0}",
        "default_channels: ['{0}']",
        "custom_channels: {{conda-forge: {0}}}",
        "custom_multichannels: {{all: [conda-forge, '{0}']}}",
    ],
)
def test_a_condarc_of_the_build_file_names_nothing_outside_the_project(
    project: Path, text: str
) -> None:
    for place in ("file:///etc", "/etc"):
        declared = CondaChannels(text.format(place), span=SPAN)
        with pytest.raises(UsageError, match="outside the project") as caught:
            confine_channels([], declared, Configuration(), project)
        assert caught.value.span == SPAN


def test_channels_of_the_project_and_of_the_user_may_be_directories(project: Path) -> None:
    config = Configuration(mirrors={"pytorch": MirrorConfig((f"file://{project.parent}/mirror",))})
    named = ["conda-forge", "https://h.test/c", "./channel", f"file://{project}/channel"]
    named += [f"{project.parent}/named/linux", f"file://{project.parent}/mirror", "team"]
    confine_channels([*named, f"{project.parent}/own/team"], None, config, project)


@pytest.mark.parametrize(
    "source",
    [
        "deb file:/etc ./",
        "deb [trusted=yes] file:///etc bookworm main",
        "deb copy:/var/lib ./",
        "deb FILE:/etc ./",
        "deb mirror+file:/etc/list bookworm main",
        "deb file:{project}/../out ./",
        "deb file:{project}/link/debs ./",
        "Types: deb\nURIs: https://h.test/debian file:/etc\nSuites: ./\n",
    ],
)
def test_an_apt_archive_outside_the_project_is_refused(project: Path, source: str) -> None:
    apt = AptSource(source.format(project=project), span=SPAN)
    with pytest.raises(UsageError, match=r"outside the project|leads out") as caught:
        confine_apt_source(apt, project)
    assert caught.value.span == SPAN


def test_apt_archives_on_servers_and_in_the_project_are_accepted(project: Path) -> None:
    text = f"deb https://h.test/debian bookworm main\ndeb [trusted=yes] file:{project}/debs ./\n"
    confine_apt_source(AptSource(text), project)
