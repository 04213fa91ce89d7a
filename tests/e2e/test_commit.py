"""What `danlu commit --write` writes rebuilds to the same environment, or names the difference."""

from __future__ import annotations

import json
import random
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Danlu
from tests.e2e import tree_listing
from tests.engines import engine_variables

pytestmark = [pytest.mark.real, pytest.mark.needs("root"), pytest.mark.timeout(600)]

BUILD = """
def build():
    base(os="debian12")
    install.python()
    install.apt_packages(["attr", "ed", "libcap2-bin"])
"""
#: Few, so that files, directories and links take each other's place.
PLACES = (
    *(
        "/opt/a",
        "/opt/a/b",
        "/opt/a/b/c",
        "/opt/d",
        "/opt/d/e f",
        "/srv/g",
        "/srv/g/'h\"$",
        "/home/i",
    ),
    *("/etc/issue", "/etc/kept/j", "/usr/local/bin/k", "/opt/\u6570\u636e", "/media", "/mnt/l\tm"),
    *("/usr/share/doc/bash", "/usr/share/doc/bash/copyright", "/etc/terminfo", "/etc/motd"),
)
MODES = ("644", "755", "664", "4755", "2755", "1644", "6555", "600")
OWNERS = ("0:0", "1234:0", "33:33", "0:8", "65534:1234")
USERS = ("eve", "mallory", "trent")


class ChangeWriter:
    """Writes shell commands that make random changes, at least one of each kind."""

    def __init__(self, seed: int, engine: str = "embedded") -> None:
        self.random = random.Random(seed)
        kinds: list[Callable[[], str]] = [
            *(self.write_file, self.make_directory, self.make_link, self.make_hard_link),
            *(self.make_pipe, self.change_mode, self.change_owner, self.remove_entry),
            *(self.set_capability, self.set_attribute, self.change_user, self.change_group),
            *(self.append_text, self.make_inheriting_directory),
        ]
        # Only capabilities are in what Docker and Podman export.
        self.kinds = [kind for kind in kinds if engine == "embedded" or kind != self.set_attribute]

    def write_script(self, count: int) -> str:
        """Return a script of ``count`` changes of each kind, in any order."""
        kinds = self.kinds * count
        self.random.shuffle(kinds)
        return "\n".join(f"{{ {kind()}; }} || true" for kind in kinds)

    def choose(self, words: tuple[str, ...]) -> str:
        """Return one of the words, quoted."""
        return shlex.quote(self.random.choice(words))

    def clear_place(self) -> tuple[str, str]:
        """Return a place, and a command that removes what is there and what is in its way."""
        place = self.random.choice(PLACES)
        parents = [place[:end] for end, char in enumerate(place) if char == "/" and end]
        clear = [
            f"if [ ! -d {quoted} -o -L {quoted} ]; then rm -f {quoted}; mkdir {quoted}; fi"
            for quoted in map(shlex.quote, parents)
        ]
        quoted = shlex.quote(place)
        return quoted, " && ".join([*clear, f"rm -rf {quoted}"])

    def write_file(self) -> str:
        place, clear = self.clear_place()
        text = self.random.randbytes(8).hex()
        return f"{clear} && echo {text} >{place} && chmod {self.choose(MODES)} {place}"

    def append_text(self) -> str:
        place = self.choose(PLACES)
        return f"test -p {place} || echo more >>{place}"

    def make_directory(self) -> str:
        place, clear = self.clear_place()
        return f"{clear} && mkdir {place} && chmod {self.choose(MODES)} {place}"

    def make_inheriting_directory(self) -> str:
        place, clear = self.clear_place()
        return (
            f"{clear} && mkdir {place} && chgrp 8 {place} && chmod g+s {place} && touch {place}/n"
        )

    def make_link(self) -> str:
        place, clear = self.clear_place()
        return f"{clear} && ln -s {self.choose(('/opt/a', 'nowhere', '/etc', '../x y'))} {place}"

    def make_hard_link(self) -> str:
        place, clear = self.clear_place()
        source = self.choose((*PLACES, "/etc/profile"))
        test = f"test -f {source} -a ! -L {source} -a {source} != {place}"
        return f"{test} && {clear} && ln {source} {place}"

    def make_pipe(self) -> str:
        place, clear = self.clear_place()
        return f"{clear} && mkfifo {place}"

    def change_mode(self) -> str:
        return f"chmod {self.choose(MODES)} {self.choose((*PLACES, '/srv', '/usr/games'))}"

    def change_owner(self) -> str:
        place = self.choose((*PLACES, "/srv", "/usr/bin/env"))
        return f"chown -h {self.choose(OWNERS)} {place}"

    def remove_entry(self) -> str:
        return f"rm -rf {self.choose(PLACES)}"

    def set_capability(self) -> str:
        text = self.choose(("cap_net_raw+ep", "cap_chown,cap_kill+p cap_setuid+i", "-r"))
        place = self.choose((*PLACES, "/usr/bin/who"))
        # setcap would wait for a writer of a pipe.
        return f"test -f {place} && setcap {text} {place}"

    def set_attribute(self) -> str:
        return f"setfattr -n user.note -v {self.choose(('x', 'y z'))} {self.choose(PLACES)}"

    def change_user(self) -> str:
        user = self.choose(USERS)
        add = f"useradd {self.choose(('-m', '-r', '-M'))} -c {self.choose(('', 'A, b'))} {user}"
        change = f"usermod -s /bin/bash -aG {self.choose(('audio', 'games'))} {user}"
        return self.random.choice((add, add, change, f"userdel {user}"))

    def change_group(self) -> str:
        group = self.choose(("crew", "team"))
        members = f"gpasswd -M root,nobody {group}"
        return self.random.choice((f"groupadd {group}", f"groupdel {group}", members))


#: What no line reproduces, and a word of the reason.
SECRETS = {
    "/root/key": ("private", "echo x >/root/key; chmod 600 /root/key"),
    "/opt/group-only": ("private", "echo x >/opt/group-only; chmod 640 /opt/group-only"),
    "/srv/pem": ("private key", "echo '-----BEGIN PRIVATE KEY-----' >/srv/pem"),
    "/srv/.netrc": ("credentials", "echo x >/srv/.netrc"),
    "/etc/pip.conf": (
        "URL credentials",
        "printf '[global]\\nindex-url = https://me:hunter2@x/\\n' >/etc/pip.conf",
    ),
    "/etc/apt/sources.list.d/x.list": (
        "URL",
        "echo 'deb https://me:hunter2@x/ x y' >/etc/apt/sources.list.d/x.list",
    ),
    "/etc/apt/auth.conf": (
        "credentials",
        "echo machine x login me password hunter2 >/etc/apt/auth.conf",
    ),
    "/root/.condarc": (
        "channel token",
        "echo 'channels: [\"https://x/t/hunter2/main\"]' >/root/.condarc",
    ),
    "/etc/profile.d/x.sh": (
        "secret value",
        f"echo export WANDB_API_KEY={'0a' * 20} >/etc/profile.d/x.sh",
    ),
    "/srv/large": ("larger", "head -c 11000000 /dev/zero >/srv/large"),
    "/srv/x.git/.git/HEAD": ("git", "mkdir -p /srv/x.git/.git; echo x >/srv/x.git/.git/HEAD"),
    "/srv/device": ("device", "mknod /srv/device c 1 3"),
    "/srv/socket": (
        "socket",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/srv/socket\")'",
    ),
    "the password of user daemon": ("passwords", "echo daemon:secret | chpasswd"),
}


@pytest.fixture
def engine() -> str:
    """The engine of the environment."""
    return "embedded"


@pytest.fixture
def project(
    tmp_path: Path, danlu: Danlu, engine: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A project whose environment runs."""
    directory = tmp_path / "by-hand"
    directory.mkdir()
    (directory / "build.envd").write_text(BUILD)
    (directory / ".gitignore").write_text("k\nkept/\n")
    shutil.copy(tree_listing.__file__, directory / "list_tree.py")
    with ExitStack() as stack:
        monkeypatch.setenv("DANLU_ENGINE", engine)
        if engine != "embedded":
            for name, value in stack.enter_context(engine_variables(engine)).items():
                monkeypatch.setenv(name, value)
        danlu("up", "-d", cwd=directory)
        yield directory
        danlu("down", "--grace", "0", cwd=directory)


def describe_environment(danlu: Danlu, project: Path) -> tuple[dict[str, list[object]], str]:
    """Return the tree, and the packages of Python and of the distribution."""
    listing = danlu("exec", "--", "/usr/bin/python3", "list_tree.py", "/", cwd=project).stdout
    query = "pip freeze --all; dpkg-query -W -f '${binary:Package} ${Version} ${Status}\\n'"
    return json.loads(listing), danlu("exec", "--", "sh", "-c", query, cwd=project).stdout


def make_changes(danlu: Danlu, project: Path, script: str) -> None:
    (project / "changes.sh").write_text(script)
    danlu("exec", "--", "bash", "changes.sh", cwd=project)
    (project / "changes.sh").unlink()


def check_rebuild(danlu: Danlu, project: Path) -> dict[str, str]:
    """Commit, rebuild and compare; return what was named as not reproduced, with reasons."""
    tree, packages = describe_environment(danlu, project)
    commit = danlu("commit", "--write", "--format", "json", cwd=project, check=False)
    assert commit.returncode in (0, 1), commit.stderr
    problems = {item["what"]: item["reason"] for item in json.loads(commit.stdout)["problems"]}
    assert commit.returncode == (1 if problems else 0), commit.stderr
    danlu("up", "-d", "--recreate", cwd=project)
    rebuilt, packages_after = describe_environment(danlu, project)
    assert packages_after == packages
    differing = {
        path: (tree.get(path), rebuilt.get(path))
        for path in tree.keys() | rebuilt.keys()
        if tree.get(path) != rebuilt.get(path)
        # Copying a file up for a change that is undone again breaks its hard links (overlayfs).
        and [tree.get(path), "of"] != (rebuilt.get(path) or [])[:2]
        and not any(f"/{path}/".startswith(f"{what}/") for what in problems)
    }
    if any(what.startswith("the password") for what in problems):
        differing.pop("etc/shadow", None)
    assert not differing
    assert danlu("commit", cwd=project).stdout == ""
    return problems


def test_python_packages_are_added_to_the_file_of_requirements(danlu: Danlu, project: Path) -> None:
    (project / "requirements.txt").write_text("# ours\n")
    line = '    install.python_packages(requirements="requirements.txt")\n'
    (project / "build.envd").write_text(BUILD + line)
    danlu("up", "-d", "--recreate", cwd=project)
    danlu("exec", "--", "pip", "install", "mdurl==0.1.2", cwd=project)
    result = danlu("commit", "--write", cwd=project)
    assert (result.stdout, (project / "build.envd").read_text()) == ("", BUILD + line)
    assert (project / "requirements.txt").read_text() == "# ours\nmdurl==0.1.2\n"
    danlu("up", "-d", "--recreate", cwd=project)
    assert "mdurl" in danlu("exec", "--", "pip", "freeze", cwd=project).stdout


@pytest.mark.slow
def test_random_changes_are_reproduced(danlu: Danlu, project: Path) -> None:
    script = ChangeWriter(1).write_script(3)
    packages = """
    set -e
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends tree >/dev/null
    apt-get remove -y -qq ed >/dev/null
    pip install -q 'requests[socks]'
    echo '# changed by hand' >>/opt/venv/lib/python3.11/site-packages/idna/core.py
    rm /opt/venv/lib/python3.11/site-packages/requests/help.py
    setcap cap_kill+ep /usr/bin/tree
    apt-mark hold tree >/dev/null
    rm /usr/share/doc/tree/copyright
    groupmod -n renamed games
    usermod -l newman man
    echo x >'/opt/new
line'
    """
    make_changes(danlu, project, f"{script}\n{packages}")
    check_rebuild(danlu, project)
    assert 'install.apt_packages(["tree"])' in (project / "build.envd").read_text()
    # Changes on top of those: what an earlier step did must not undo them.
    make_changes(danlu, project, ChangeWriter(2).write_script(3))
    check_rebuild(danlu, project)


def test_secrets_and_what_no_image_can_hold_are_named(danlu: Danlu, project: Path) -> None:
    make_changes(danlu, project, "\n".join(command for _, command in SECRETS.values()))
    problems = check_rebuild(danlu, project)
    assert problems.keys() == SECRETS.keys()
    for what, (word, _) in SECRETS.items():
        assert word in problems[what]
    assert not (project / "environment-files").exists()


def test_an_image_with_secrets_is_made_with_a_warning(danlu: Danlu, project: Path) -> None:
    make_changes(
        danlu, project, "\n".join(SECRETS[name][1] for name in ("/root/key", "/etc/pip.conf"))
    )
    commit = danlu("commit", "--tag", "by-hand:1", cwd=project)
    assert (
        "warning: by-hand:1 contains /root/key, which is private: others may not" in commit.stderr
    )
    assert "warning: by-hand:1 contains /etc/pip.conf, which is private: URL cred" in commit.stderr


@pytest.mark.slow
def test_many_random_changes_are_reproduced(danlu: Danlu, project: Path) -> None:
    for _ in range(20):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        make_changes(danlu, project, ChangeWriter(seed).write_script(2))
        check_rebuild(danlu, project)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("docker", marks=pytest.mark.needs("docker", "dockerd")),
        pytest.param("podman", marks=pytest.mark.needs("podman")),
    ],
)
def test_changes_in_containers_are_reproduced(danlu: Danlu, project: Path, engine: str) -> None:
    for seed in range(3):
        writer = ChangeWriter(seed, engine)
        make_changes(danlu, project, writer.write_script(1))
        if seed:
            # The container is created again, with other settings.
            danlu("stop", cwd=project)
            danlu("up", "-d", "--env", f"A={seed}", cwd=project)
        make_changes(danlu, project, writer.write_script(1))
        check_rebuild(danlu, project)
