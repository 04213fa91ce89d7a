"""Julia packages in a real Julia: that of Debian 11 (1.5), the last release that has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Project
from tests.e2e.test_languages import write_archive
from tests.fakes.julia import JuliaServer

pytestmark = pytest.mark.real

BULLSEYE = '    base(os="debian11")\n'

RUNES = """\
module Runes
using Dates
double(number) = 2 * number
century() = Dates.year(Date(2000)) ÷ 100
end
"""

GRIMOIRE = """\
module Grimoire
using Pkg.Artifacts
import Runes
spell(number) = "$(Runes.double(number)) $(readchomp(joinpath(artifact"elixir", "bin", "brew")))"
end
"""


def fill_server(root: Path) -> JuliaServer:
    """``Grimoire`` needs ``Runes`` below 2, an artifact, and packages that are part of Julia."""
    server = JuliaServer(root)
    for version in ("1.0.0", "1.1.0", "2.0.0"):
        files = {"src/Runes.jl": RUNES}
        server.publish("Runes", version, files=files, needs={"Dates": "*", "julia": "1"})
    elixir = server.store("artifact", {"bin/brew": "a potion\n"})
    other = server.store("artifact", {"bin/brew": "for another platform\n"})
    artifacts = "".join(
        f'[[elixir]]\narch = "{arch}"\nos = "linux"\nlibc = "glibc"\ngit-tree-sha1 = "{tree}"\n'
        for arch, tree in (("x86_64", elixir), ("aarch64", other))
    )
    server.publish(
        "Grimoire",
        files={"src/Grimoire.jl": GRIMOIRE, "Artifacts.toml": artifacts},
        needs={"Runes": "1", "Pkg": "*"},
    )
    return server


def test_packages_and_their_artifacts_are_in_the_depot_of_the_image(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "mirror/linux/x64/1.10/julia-1.10.10-linux-x86_64.tar.gz"
    write_archive(archive, {"julia-1.10.10/bin/julia": "#!/bin/sh\n"})
    fill_server(tmp_path / "server")
    monkeypatch.setenv("DANLU_MIRROR_JULIA", str(tmp_path / "mirror"))
    monkeypatch.setenv("DANLU_MIRROR_JULIA_PACKAGES", str(tmp_path / "server"))
    project.write("install.julia()", 'install.julia_packages(["Grimoire"])')
    script = "cd /usr/local/share/julia; cat packages/Runes/*/src/Runes.jl artifacts/*/bin/brew"
    assert project.run("sh", "-c", script) == f"{RUNES}a potion"


@pytest.mark.slow
def test_julia_loads_the_packages_of_a_server_offline(
    project: Project, http_directory: tuple[str, Path]
) -> None:
    address, root = http_directory
    fill_server(root)
    project.write(
        "install.julia()",
        f'config.julia_pkg_server(url="{address}")',
        'install.julia_packages(["Grimoire", "Dates"])',
        base=BULLSEYE,
    )
    first = project.build()
    spell = 'using Grimoire, Dates; print(Grimoire.spell(21), " ", isdefined(Main, :Runes))'
    assert project.run("julia", "-e", spell) == "42 a potion false"
    # The environment is not the one that Pkg changes.
    active = project.run("julia", "-e", "print(Base.active_project())")
    assert active.endswith("/.julia/environments/v1.5/Project.toml")
    assert project.run("sh", "-c", "ls /usr/local/share/julia/packages") == "Grimoire\nRunes"
    lock = (project.directory / "danlu.lock").read_text()
    assert '{ name = "Runes", version = "1.1.0", kind = "package"' in lock
    assert address not in lock
    for path in list(root.rglob("*")):
        if path.is_file():
            path.unlink()
    again = project.build("--frozen", "--offline", "--no-cache")
    assert again["image"]["config"] == first["image"]["config"]
