"""Files that programs make in Docker and Podman belong to the user of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.oci.image import extend_config
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.store import Store
from tests.conftest import program_in
from tests.engines import DockerDaemon, engine_variables, make_short_directory
from tests.jobs.containers.engine_rig import image, paths_of
from tests.sandbox.conftest import home
from tests.sandbox.namespace_process import run_inside

__all__ = ["home"]

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.needs("busybox", "root"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def docker_address() -> Iterator[str]:
    """The address of a daemon that every account may use."""
    with make_short_directory() as directory:
        daemon = DockerDaemon(directory)
        daemon.start()
        directory.chmod(0o711)
        daemon.socket.chmod(0o666)
        yield daemon.address
        daemon.stop()


def list_owners(home: Path, user: str) -> tuple[str, set[tuple[int, int]]]:
    """Run a program that writes to a project; return what it printed, and who owns the files."""
    os.environ["DANLU_SSH_CONFIG"] = "off"
    with Store.open(paths_of(home).store) as store:
        store.tag("box:1", image(home))
    project = home / "digits"
    project.mkdir()
    danlu = program_in(home)
    danlu("up", "--image", "box:1", "-d", *(["--user", user] if user else []), cwd=project)
    script = "mkdir made && echo made >made/file && cat made/file"
    output = danlu("exec", "sh", "-c", script, cwd=project).stdout
    danlu("down", "--grace", "0", cwd=project)
    made = project / "made"
    return output, {(path.stat().st_uid, path.stat().st_gid) for path in (made, made / "file")}


@pytest.mark.needs("docker", "dockerd")
@pytest.mark.parametrize("uid", [1000, 4711])
@pytest.mark.parametrize("user", ["", "worker", "7:7"])
def test_files_belong_to_the_user_of_a_docker_daemon(
    docker_address: str, home: Path, uid: int, user: str
) -> None:
    def act() -> tuple[str, set[tuple[int, int]]]:
        os.environ.update(DANLU_CONTEXT="docker", DOCKER_HOST=docker_address)
        return list_owners(home, user)

    output, owners = run_inside(act, home=home, ordinary=True, uid=uid, enter=lambda paths: None)
    assert output == "made\n"
    assert owners == {(uid, uid)}


@pytest.mark.needs("podman")
@pytest.mark.parametrize("uid", [1000, 4711])
@pytest.mark.parametrize("user", ["", "worker", "7:7"])
def test_files_belong_to_the_user_of_podman_without_root(home: Path, uid: int, user: str) -> None:
    def act() -> tuple[str, set[tuple[int, int]]]:
        with engine_variables("podman") as variables:
            os.environ.update(DANLU_CONTEXT="podman", **variables)
            return list_owners(home, user)

    output, owners = run_inside(act, home=home, ordinary=True, uid=uid, enter=lambda paths: None)
    assert output == "made\n"
    assert owners == {(uid, uid)}


def create_account_image(home: Path) -> None:
    """Create ``box:1`` with account files, and programs that change them."""
    with Store.open(paths_of(home).store) as store, store.staging() as work:
        below = store.image(image(home))
        assert below is not None
        tree = work / "tree"
        for place in ("etc/sudoers.d", "home", "usr/sbin"):
            (tree / place).mkdir(parents=True)
        root = "root:x:0:0:root:/root:/bin/sh\n"
        (tree / "etc/passwd").write_text(f"{root}worker:x:777:777::/home/worker:/bin/sh\n")
        (tree / "etc/group").write_text("root:x:0:\nworker:x:777:\nteam:x:20:root\n")
        for program in ("useradd", "groupadd"):
            (tree / "usr/sbin" / program).touch()
        summary = write_layer(tree, None, normalise=NormalizeOptions(uid=0, gid=0))
        layer = store.commit_layer(tree, summary, created_by="accounts")
        config = extend_config(below.config, layer.diff_id, "accounts")
        store.put_image(config, [*below.layers, layer.diff_id], names=["box:1"])


def list_changes(home: Path, user: str) -> tuple[str, set[str], list[str]]:
    """Add a user as root; return what commit says before and after, and its lines."""
    os.environ["DANLU_SSH_CONFIG"] = "off"
    create_account_image(home)
    project = home / "digits"
    project.mkdir()
    danlu = program_in(home)
    script = f"""name={user}; [ "$name" ] || name=$(grep :x:1000: /etc/passwd | cut -d: -f1)
        echo alice:x:2000:2000::/home/alice:/bin/sh >>/etc/passwd
        echo alice:x:2000: >>/etc/group; echo x >/opt
        [ -z "$name" ] || sed -i "s/^team:.*/&,$name/" /etc/group"""
    danlu("up", "--image", "box:1", "-d", *(["--user", user] if user else []), cwd=project)
    try:
        before = danlu("commit", cwd=project).stderr
        danlu("exec", "--user", "root", "--", "sh", "-c", script, cwd=project)
        commit = danlu("commit", cwd=project, check=False)
    finally:
        danlu("down", "--grace", "0", cwd=project)
    found = {line for line in commit.stderr.splitlines() if line[:2] in ("+ ", "- ", "~ ")}
    return before, found, commit.stdout.splitlines()


def check_changes(before: str, found: set[str], lines: list[str], user: str) -> None:
    assert "nothing was changed" in before
    members = {"~ group team"} if user else set()
    assert found == {"+ user alice", "+ group alice", "+ /opt (2 B)", *members}
    text = "\n".join(lines)
    assert "useradd" in text
    assert ("gpasswd -M root,worker team" in text) == bool(user)


@pytest.mark.needs("docker", "dockerd")
@pytest.mark.parametrize("user", ["", "worker"])
def test_commit_of_an_ordinary_user_finds_new_accounts_and_not_its_own(
    docker_address: str, home: Path, user: str
) -> None:
    def act() -> tuple[str, set[str], list[str]]:
        os.environ.update(DANLU_CONTEXT="docker", DOCKER_HOST=docker_address)
        return list_changes(home, user)

    check_changes(
        *run_inside(act, home=home, ordinary=True, uid=1000, enter=lambda paths: None), user
    )


@pytest.mark.needs("podman")
@pytest.mark.parametrize("user", ["", "worker"])
def test_commit_with_podman_without_root_finds_new_accounts(home: Path, user: str) -> None:
    def act() -> tuple[str, set[str], list[str]]:
        with engine_variables("podman") as variables:
            os.environ.update(DANLU_CONTEXT="podman", **variables)
            return list_changes(home, user)

    check_changes(
        *run_inside(act, home=home, ordinary=True, uid=1000, enter=lambda paths: None), user
    )
