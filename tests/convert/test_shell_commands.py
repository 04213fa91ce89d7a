"""Scripts that become declarations, compared with what a shell does with them."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from danlu.convert.shell_commands import is_portable, read_script, split_commands, split_list

CASES = json.loads((Path(__file__).parent / "shell_cases.json").read_text())
PROGRAMS = ("pip", "pip3", "apt-get", "apt", "python3", "rm", "make", "uv", "sudo")
VALUES = {"V": "1.0", "N": "name", "SPACES": "a b", "GLOB": "a*", "EMPTY": ""}


KEPT = """
pip install cmake   # too old
pip install a; pip install b
pip install a > log
pip install --pre a
pip install -i https://h/s a
pip install -e .
pip install .
CMAKE_ARGS=-D pip install a
pip install ./a.whl
pip install a.whl
uv pip install a
if true; then pip install a; fi
pip install a || true
(pip install a)
pip install
pip install a &
pip install $UNKNOWN
pip install $SPACES
pip install $GLOB
pip install a && make
/opt/bin/pip install a
sudo -u x pip install a
pip uninstall a
apt-get install a-
apt-get install a=1*
apt-get upgrade
apt-get install -t x a
apt-get install a/sid
rm -rf /var/lib/apt/lists/* /srv
pip install -r
pip install -c c
pip install {a,b}
pip install ~/a
pip install a?
&& pip install a
pip install `a`
pip install a &&
pip install 'a
pip install --no-binary :all: a
pip install -t /x a
"""


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A PATH of programs that record their words."""
    directory = tmp_path / "stubs"
    directory.mkdir()
    for name in PROGRAMS:
        stub = directory / name
        stub.write_text(
            '#!/bin/sh\n{ printf "%s" "${0##*/}"; for word do printf "\\0%s" "$word"; done;'
            f' printf "\\1"; }} >> {tmp_path}/record\n'
        )
        stub.chmod(0o755)
    return directory


def run_script(script: str, stubs: Path, *shell: str) -> tuple[int, list[list[str]]]:
    """Run a script in an empty directory; return its exit code, and the words of programs."""
    record = stubs.with_name("record")
    record.write_text("")
    directory = stubs.with_name("empty")
    directory.mkdir(exist_ok=True)
    done = subprocess.run(
        [*(shell or ("/bin/dash", "-c")), script],
        env={"PATH": str(stubs), "HOME": "/home/u", **VALUES},
        cwd=directory,
        capture_output=True,
        timeout=20,
    )
    for file in directory.iterdir():
        file.unlink()
    commands = record.read_bytes().decode().split("\1")[:-1]
    return done.returncode, [command.split("\0") for command in commands]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_script_is_kept_unless_all_of_it_is_understood(case: dict[str, Any]) -> None:
    """None of the cases does nothing but install packages."""
    assert read_script(case["input"]) is None


@pytest.mark.parametrize(
    ("script", "system", "packages", "requirements"),
    [
        ("apt-get update && apt-get install -y git g++", ["git", "g++"], [], []),
        ("set -eux; apt-get update; apt-get install -y git; rm -rf /var/lib/apt/lists/*",
         ["git"], [], []),
        ("DEBIAN_FRONTEND=noninteractive apt install -yq --no-install-recommends tzdata",
         ["tzdata"], [], []),
        ("pip install --no-cache-dir -r r.txt 'numpy<2' \"torch==$V\" uvicorn[standard]",
         [], ["numpy<2", "torch==1.0", "uvicorn[standard]"], ["r.txt"]),
        ("sudo apt-get update && sudo apt-get install -y git", ["git"], [], []),
        ("python3 -m pip install -U pip && pip3 install --requirement=r.txt && pip cache purge",
         [], ["pip"], ["r.txt"]),
        ("uv pip install --system a~=1.0 git+https://host/a.git@v1#egg=a",
         [], ["a~=1.0", "git+https://host/a.git@v1#egg=a"], []),
    ],
)  # fmt: skip
def test_installations_are_read(
    script: str, system: list[str], packages: list[str], requirements: list[str]
) -> None:
    installed = read_script(script, VALUES.get)
    assert installed is not None
    assert (installed.system, installed.packages, installed.requirements) == (
        system,
        packages,
        requirements,
    )


@pytest.mark.parametrize("script", KEPT.splitlines())
def test_scripts_that_do_anything_else_are_kept(script: str) -> None:
    installed = read_script(script, VALUES.get)
    assert installed is None or not (
        installed.packages or installed.system or installed.requirements
    )


PLAIN_WORDS = r"""
pip install apt-get -y a b c==1 'd<2' $V ${N} "x$V" -r r.txt set -e -ex make python3 -m A=1
# #c a#b g[x] $SPACES "$SPACES" $GLOB $EMPTY "$EMPTY" $NONE * a* ? ~ ~/x < > >log 2>&1
a>log | || & ( ) { } ! if then fi \ ' " ` $(x) ${V:-y} ${V%0} $1 $$ {a,b} cd exit a=b a:~
echo true . source time 'a'"b"c ^ % @ -
"""
WORDS = (
    *PLAIN_WORDS.split(),
    '"e f"',
    "a\\ b",
    "\t",
)
ENDS = (
    " ",
    " ",
    " ",
    " ",
    " ",
    " && ",
    " && ",
    "; ",
    "\n",
    " &&\n",
    "  ",
    "",
    "\\\n",
    "\r\n",
    "\f",
)


def make_script(chance: random.Random) -> str:
    count = chance.randint(1, 9)
    words = WORDS if chance.random() < 0.4 else WORDS[:21]
    start = chance.choice(("", "", "pip install ", "set -e; ", "apt-get install -y "))
    return start + "".join(chance.choice(words) + chance.choice(ENDS) for _ in range(count))


def compare_scripts(count: int, seed: int, stubs: Path) -> None:
    chance = random.Random(seed)
    understood = portable = 0
    while understood < count:
        script = make_script(chance)
        commands = split_commands(script, VALUES.get)
        if commands is None or any(
            words[0] not in (*PROGRAMS, "set") or (words[:1] == ["set"] and words[1:] != ["-e"])
            for words in commands
        ):
            continue
        understood += 1
        expected = [words for words in commands if words[0] != "set"]
        assert run_script(script, stubs) == (0, expected), script
        if is_portable(script):
            portable += 1
            assert run_script(script, stubs, "/bin/bash", "-euo", "pipefail", "-c") == (
                0,
                expected,
            ), script
    assert portable > count / 10


@pytest.mark.needs("dash")
def test_shell_runs_the_commands_that_are_read(stubs: Path) -> None:
    compare_scripts(100, 1, stubs)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.needs("dash")
def test_shell_runs_the_commands_of_2000_scripts(stubs: Path) -> None:
    compare_scripts(2000, 2, stubs)


@pytest.mark.parametrize(
    ("script", "parts"),
    [
        ("a  &&  b 'c && d' && e", ["a", "b 'c && d'", "e"]),
        ('a "b && \\" && c"&&d', ['a "b && \\" && c"', "d"]),
        ("a & b && c", ["a & b", "c"]),
        ("a && b 'c&&d  &&  e'", ["a", "b 'c&&d  &&  e'"]),
        *((text, [text]) for text in ("a # && b", 'a "$(b "c && d")" && e', "a && `b`", "a &&\nb")),
        *((text, [text]) for text in ("a && 'b", "a &&", "&& a")),
    ],
)
def test_lists_are_split_outside_quotes(script: str, parts: list[str]) -> None:
    assert split_list(script) == parts


def test_words_are_quoted_as_in_a_shell() -> None:
    assert split_commands("a 'b c' \"d\"e && f") == [["a", "b c", "de"], ["f"]]
    assert split_commands(shlex.join(["a", "b c", "$d"])) == [["a", "b c", "$d"]]
