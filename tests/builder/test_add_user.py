"""The user that is added to the account files of an image, whatever those contain."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.builder.embedded.ops.add_user import write_account
from danlu.graph.ops import AddUser
from danlu.sandbox.layer_view import LayerView

USER = AddUser("envd", os.getuid(), os.getgid(), "/home/envd", "/bin/zsh", 0, ("sudo",), sudo=True)


@pytest.fixture
def below(tmp_path: Path) -> Path:
    tree = tmp_path / "below"
    for name, text in {
        "bin/sh": "",
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
        "etc/group": "root:x:0:\nsudo:x:27:ada\n",
        "etc/skel/.profile": "umask 022\n",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    return tree


def add(below: Path, user: AddUser = USER) -> Path:
    staged = below.with_name("staged")
    staged.mkdir()
    write_account(user, LayerView((below,)), staged)
    return staged


def test_account_group_home_and_rule_are_written(below: Path) -> None:
    uid, gid = USER.uid, USER.gid
    (below / "etc/passwd").write_text("daemon:x:1:1::/:/bin/sh\n")
    (below / "etc/group").write_text("daemon:x:1:\nsudo:x:27:ada\n")
    staged = add(below)
    assert (staged / "etc/passwd").read_text() == (
        f"daemon:x:1:1::/:/bin/sh\nenvd:x:{uid}:{gid}::/home/envd:/bin/sh\n"
    ), "without zsh in the image the shell is sh"
    assert (staged / "etc/group").read_text() == (
        f"daemon:x:1:\nsudo:x:27:ada,envd\nenvd:x:{gid}:\n"
    )
    assert (staged / "etc/sudoers.d/envd").read_text() == "envd ALL=(ALL:ALL) NOPASSWD:ALL\n"
    assert (staged / "home/envd/.profile").read_text() == "umask 022\n"
    assert not (staged / "etc/shadow").exists(), "an image without shadow passwords gets none"


def test_an_account_of_the_same_name_is_replaced_and_the_same_uid_comes_second(
    below: Path,
) -> None:
    (below / "etc/passwd").write_text(
        f"envd:x:9:9::/old:/bin/sh\nubuntu:x:{USER.uid}:5::/home/ubuntu:/bin/sh\nbroken\n"
    )
    lines = (add(below) / "etc/passwd").read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["envd", "ubuntu", "broken"]
    assert ":/home/envd:" in lines[0]


def test_links_of_the_image_cannot_lead_outside_it(below: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "passwd").write_text("secret of this machine\n")
    (below / "etc/passwd").unlink()
    (below / "etc/passwd").symlink_to(outside / "passwd")
    (below / "home").symlink_to(outside)
    (below / "etc/skel/stolen").symlink_to(outside / "passwd")
    staged = add(below)
    assert os.listdir(outside) == ["passwd"]
    assert "secret" not in "".join(
        path.read_text() for path in staged.rglob("*") if path.is_file() and not path.is_symlink()
    )
    assert not list(staged.rglob("stolen"))
