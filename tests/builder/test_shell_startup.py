"""The files through which login shells get an image's variables, run by the machine's shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from danlu.builder.embedded.ops.shell_startup import (
    render_fish_file,
    render_sh_file,
    write_startup_files,
)
from danlu.sandbox.layer_view import LayerView

SYSTEM = "/usr/local/bin:/usr/bin:/bin"
IMAGE = f"/opt/venv/bin:{SYSTEM}"
ODD = 'it\'s "odd" $HOME \\\n`id`'
VARIABLES = {"PATH": IMAGE, "LANG": "C.UTF-8", "ODD": ODD, "VIRTUAL_ENV": "/opt/venv", "a.b": "no"}
CONTAINER = {name: value for name, value in VARIABLES.items() if name != "a.b"}

SHELLS = [
    pytest.param(("sh",), id="sh"),
    pytest.param(("bash",), id="bash"),
    pytest.param(("busybox", "ash"), id="busybox", marks=pytest.mark.needs("busybox")),
]


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """A shell that reads ``/etc/profile``."""
    return (str(shutil.which(request.param[0])), *request.param[1:])


@pytest.fixture
def sh_file(tmp_path: Path) -> Path:
    file = tmp_path / "danlu.sh"
    file.write_text(render_sh_file(VARIABLES))
    return file


def read_variables(
    shell: tuple[str, ...], sh_file: Path, environment: dict[str, str], profile: str = ":"
) -> dict[str, str]:
    """Return what programs of a shell get that has run ``profile`` and then the file."""
    script = f'set -eu; {profile}; . "{sh_file}"; /usr/bin/env -0'
    result = subprocess.run(
        [*shell, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stderr == ""
    pairs = (entry.split("=", 1) for entry in result.stdout.split("\0") if entry)
    found: dict[str, str] = {pair[0]: pair[1] for pair in pairs}
    for name in ("_", "PWD", "SHLVL", "OLDPWD"):
        found.pop(name, None)
    return found


REPLACED = f"PATH={SYSTEM}:/usr/games"


def test_a_path_that_the_profile_replaced_is_restored(
    shell: tuple[str, ...], sh_file: Path
) -> None:
    found = read_variables(shell, sh_file, CONTAINER, REPLACED)
    assert found == {**CONTAINER, "PATH": f"{IMAGE}:/usr/games"}


def test_a_path_that_the_profile_extended_is_kept(shell: tuple[str, ...], sh_file: Path) -> None:
    found = read_variables(shell, sh_file, CONTAINER, "PATH=/own/bin:$PATH:/more")
    assert found["PATH"] == f"/own/bin:{IMAGE}:/more"


def test_an_empty_environment_gets_the_variables_of_the_image(
    shell: tuple[str, ...], sh_file: Path
) -> None:
    started = {"PATH": f"/sbin:{SYSTEM}", "HOME": "/root"}
    found = read_variables(shell, sh_file, started, REPLACED)
    assert found == {**CONTAINER, "HOME": "/root", "PATH": f"{IMAGE}:/usr/games"}


def test_what_the_user_has_set_is_kept(shell: tuple[str, ...], sh_file: Path) -> None:
    own = {**CONTAINER, "LANG": "de_DE.UTF-8", "VIRTUAL_ENV": "", "PATH": "/mine:/usr/bin"}
    found = read_variables(shell, sh_file, own, REPLACED)
    assert found == {**own, "PATH": "/mine:/usr/bin:/usr/local/bin:/bin:/usr/games"}


def test_a_second_run_changes_nothing(shell: tuple[str, ...], sh_file: Path) -> None:
    found = read_variables(shell, sh_file, CONTAINER, f'{REPLACED}; . "{sh_file}"; PATH=/x:$PATH')
    assert found["PATH"] == f"/x:{IMAGE}:/usr/games"


def test_an_empty_entry_of_the_path_is_not_added(shell: tuple[str, ...], sh_file: Path) -> None:
    found = read_variables(shell, sh_file, {"PATH": "::/bin:"}, "PATH=/usr/bin::")
    assert found["PATH"] == IMAGE, "an empty entry would be the working directory"


def list_files(below: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return the files that are written over an image with the files ``below``."""
    tree, staged = tmp_path / "below", tmp_path / "staged"
    staged.mkdir(parents=True)
    for name, text in below.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    write_startup_files(LayerView((tree,)), staged, VARIABLES)
    return {
        str(path.relative_to(staged)): path.read_text()
        for path in staged.rglob("*")
        if path.is_file()
    }


PROFILE = "for i in /etc/profile.d/*.sh; do . $i; done\n"


def test_debian_keeps_its_profile_and_its_zsh_gets_a_line(tmp_path: Path) -> None:
    files = list_files(
        {
            "bin/sh": "",
            "usr/bin/zsh": "",
            "etc/profile": PROFILE,
            "etc/zsh/zprofile": "# as in /etc/profile",
        },
        tmp_path,
    )
    assert sorted(files) == ["etc/profile.d/danlu.sh", "etc/zsh/zprofile"]
    assert files["etc/zsh/zprofile"] == (
        "# as in /etc/profile\n# Added by danlu.\nemulate sh -c '. /etc/profile.d/danlu.sh'\n"
    )


def test_a_zsh_that_reads_the_profile_is_left_alone(tmp_path: Path) -> None:
    below = {
        "usr/bin/sh": "",
        "usr/bin/zsh": "",
        "etc/profile": PROFILE,
        "etc/zprofile": "source /etc/profile\n",
    }
    assert sorted(list_files(below, tmp_path)) == ["etc/profile.d/danlu.sh"]


def test_an_image_without_profile_gets_one_and_fish_its_file(tmp_path: Path) -> None:
    files = list_files({"bin/sh": "", "usr/bin/fish": ""}, tmp_path)
    assert sorted(files) == [
        "etc/fish/conf.d/danlu.fish",
        "etc/profile",
        "etc/profile.d/danlu.sh",
    ]
    assert files["etc/profile"] == "# Added by danlu.\n. /etc/profile.d/danlu.sh\n"


def test_an_image_on_one_with_the_same_variables_gets_no_file(tmp_path: Path) -> None:
    below = {"bin/sh": "", "bin/zsh": "", "bin/fish": "", "etc/zsh/zshenv": ""}
    files = list_files(below, tmp_path / "first")
    assert len(files) == 4
    assert list_files({**below, **files}, tmp_path / "second") == {}


def test_an_image_without_a_shell_gets_no_file(tmp_path: Path) -> None:
    assert list_files({"app": ""}, tmp_path) == {}


def test_values_are_quoted_for_fish() -> None:
    text = render_fish_file({"PATH": "/a b:/c", "X": "it's \\"})
    assert "set -l danlu_path '/a b' '/c'\n" in text
    assert "set -q X; or set -gx X 'it\\'s \\\\'\n" in text
