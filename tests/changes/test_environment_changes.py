"""Manual changes in an environment, converted to lines of the build file."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from danlu.changes.account_changes import AccountChanges
from danlu.changes.apt_origins import find_apt_packages
from danlu.changes.build_lines import render_build_lines, render_python_line
from danlu.changes.commit import copy_files
from danlu.changes.conda_changes import CondaChange
from danlu.changes.environment_changes import EnvironmentChanges, collect_changes
from danlu.changes.file_changes import ChangedFile, FileAttributes
from danlu.changes.xattr_commands import format_capabilities
from danlu.errors import UsageError
from danlu.oci.overlay import make_whiteout
from danlu.project.build_file_text import append_lines
from danlu.sandbox.layer_view import LayerView

SITE = "opt/venv/lib/python3.11/site-packages"


def write_file(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def remove_entry(path: Path) -> None:
    """Write what overlayfs does if an entry of the image is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    make_whiteout(os.fsencode(path.name), directory=directory)
    os.close(directory)


def add_distribution(
    tree: Path, name: str, version: str, *, requested: bool, requires: tuple[str, ...] = ()
) -> None:
    info = tree / SITE / f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    write_file(info / "METADATA", f"Name: {name}\nVersion: {version}\n{needed}\nx")
    write_file(info / "RECORD", f'{name}/__init__.py,,\n../../../bin/{name},,\n"{name}/a,b",,\n')
    for path in (f"{SITE}/{name}/__init__.py", f"opt/venv/bin/{name}", f"{SITE}/{name}/a,b"):
        write_file(tree / path)
    if requested:
        write_file(info / "REQUESTED")


def status_of(*names: str) -> str:
    return "\n\n".join(f"Package: {name}\nStatus: install ok installed" for name in names) + "\n"


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """The writable layer, and the image's only layer."""
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    upper.mkdir()
    write_file(lower / "var/lib/dpkg/status", status_of("base-files"))
    write_file(lower / "etc/profile", "before")
    for directory in ("root", "tmp", "var/log"):
        (lower / directory).mkdir()
    return upper, lower


def test_requested_python_packages_become_a_call(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    add_distribution(upper, "Rich", "15.0.0", requested=True, requires=("mdurl>0",))
    add_distribution(upper, "mdurl", "0.1.2", requested=False)
    changes = collect_changes(upper, [lower])
    assert [(item.name, item.requested) for item in changes.python] == [
        ("rich", True),
        ("mdurl", False),
    ]
    assert (changes.files, changes.problems) == ((), ())
    assert render_build_lines(changes) == [
        'install.python_packages(["rich==15.0.0"], constraints=["mdurl==0.1.2"])'
    ]
    assert [*render_python_line(changes.python, only_limits=True)] == [
        'install.python_packages(constraints=["mdurl==0.1.2"])'
    ]


def test_packages_of_an_extra_are_installed(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    requires = ('socks>1; extra == "socks"', 'old; python_version < "3"', "invalid !", "urllib[x]")
    add_distribution(upper, "requests", "2", requested=True, requires=requires)
    add_distribution(upper, "urllib", "1", requested=False, requires=('more; extra == "x"',))
    add_distribution(upper, "more", "1", requested=False)
    # pip does not record that the extra was asked for.
    add_distribution(upper, "socks", "1.7", requested=False)
    changes = collect_changes(upper, [lower])
    assert changes.problems == ()
    assert render_build_lines(changes) == [
        'install.python_packages(["requests==2", "socks==1.7"], constraints=["more==1",'
        ' "urllib==1"])'
    ]


def test_a_requirement_that_is_not_installed_is_named(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    add_distribution(lower, "there", "1", requested=False)
    requires = ("there", "missing>1")
    add_distribution(upper, "rich", "15", requested=True, requires=requires)
    (problem,) = collect_changes(upper, [lower]).problems
    assert problem.what == "rich needs missing, which is not installed"


def write_record(tree: Path, name: str, *rows: str) -> None:
    write_file(tree / SITE / f"{name}.dist-info/RECORD", "".join(f"{row}\n" for row in rows))


def test_changed_files_of_new_packages_are_copied(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    add_distribution(upper, "rich", "15", requested=True)
    digest = "sha256=LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ"  # of "hello"
    names = ("same.py", "other.py", "gone.py", "gone/__pycache__/x.pyc")
    write_record(upper, "rich-15", *(f"{name},{digest},5" for name in names))
    write_file(upper / SITE / "same.py", "hello")
    write_file(upper / SITE / "other.py", "other")
    os.chmod(upper / SITE / "same.py", 0o755)
    os.chmod(upper / SITE / "other.py", 0o4755)
    files = [
        change for change in collect_changes(upper, [lower]).files if "rich" not in change.path
    ]
    assert [(change.kind, Path(change.path).name, change.has_copy) for change in files] == [
        ("removed", "gone.py", False),
        ("added", "other.py", True),
    ]


def test_an_upgraded_python_package_leaves_no_removed_files(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    info = lower / SITE / "rich-14.0.0.dist-info"
    write_file(info / "METADATA", "Name: rich\nVersion: 14.0.0\n\n")
    files = ("rich/old.py", "rich/old/a.py", "rich/own/b.py")
    names = (*files, "../../../bin/rich-old", "rich-14.0.0.dist-info/METADATA")
    write_file(info / "RECORD", "".join(f"{name},,\n" for name in names))
    for path in ("rich/own/mine.py", "other.py", *files):
        write_file(lower / SITE / path)
    write_file(lower / "opt/venv/bin/rich-old")
    add_distribution(upper, "rich", "15.0.0", requested=True)
    removed = ("rich/old.py", "rich/old", "rich/own", "other.py", info.name)
    for path in (*(f"{SITE}/{name}" for name in removed), "opt/venv/bin/rich-old"):
        remove_entry(upper / path)
    changes = collect_changes(upper, [lower])
    assert [change.path for change in changes.files] == [f"/{SITE}/other.py", f"/{SITE}/rich/own"]


def test_files_of_a_removed_python_package_are_removed(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    add_distribution(lower, "rich", "14.0.0", requested=True)
    remove_entry(upper / SITE / "rich-14.0.0.dist-info")
    add_distribution(upper, "richer", "1", requested=True)
    (change,) = collect_changes(upper, [lower]).files
    assert (change.kind, change.path) == ("removed", f"/{SITE}/rich-14.0.0.dist-info")


def write_direct_url(tree: Path, name: str, content: object) -> None:
    write_file(tree / SITE / f"{name}-1.dist-info/direct_url.json", json.dumps(content))


def test_a_package_of_a_repository_is_installed_from_its_commit(
    trees: tuple[Path, Path],
) -> None:
    upper, lower = trees
    add_distribution(upper, "tool", "1", requested=True)
    vcs = {"vcs": "git", "commit_id": "a" * 40, "requested_revision": "main"}
    content = {"url": "https://example.com/tool.git", "vcs_info": vcs, "subdirectory": "py"}
    write_direct_url(upper, "tool", content)
    requirement = f"tool @ git+https://example.com/tool.git@{'a' * 40}#subdirectory=py"
    assert render_build_lines(collect_changes(upper, [lower])) == [
        f'install.python_packages(["{requirement}"])'
    ]


@pytest.mark.parametrize(
    "content",
    [
        {"url": "file:///workspace", "dir_info": {"editable": True}},
        {"url": "https://example.com/x-1.whl", "archive_info": {}},
        {"url": 'https://a/"]); x', "vcs_info": {"vcs": "git", "commit_id": "a" * 40}},
        {"url": "https://user:token@a/x", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}},
        {"url": "https://a/x", "vcs_info": {"vcs": "git", "commit_id": '"'}},
        [],
    ],
)
def test_a_package_that_no_index_has_is_not_taken_from_one(
    trees: tuple[Path, Path], content: object
) -> None:
    upper, lower = trees
    add_distribution(upper, "local", "1", requested=True)
    add_distribution(upper, "mdurl", "0.1.2", requested=False)
    write_direct_url(upper, "local", content)
    changes = collect_changes(upper, [lower])
    assert [item.name for item in changes.python if not item.requirement] == ["local"]
    assert f"/{SITE}/local-1.dist-info/METADATA" in [
        change.path for change in changes.files if change.has_copy
    ]
    # Nothing else installs its dependency.
    assert render_build_lines(changes) == ['install.python_packages(["mdurl==0.1.2"])']


@pytest.mark.parametrize("place", ["root/.cache/uv/archive-v0/x", "tmp/build"])
def test_unpacked_packages_are_not_installed(trees: tuple[Path, Path], place: str) -> None:
    upper, lower = trees
    write_file(upper / place / "rich-15.0.0.dist-info/METADATA", "Name: rich\nVersion: 15.0.0\n")
    assert collect_changes(upper, [lower]).is_empty


def test_names_that_begin_like_ignored_ones_are_changes(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    for path in ("workspaces/kept", "workspace/ignored", "opt/__pycache__.txt"):
        write_file(upper / path)
    changes = collect_changes(upper, [lower])
    assert [change.path for change in changes.files] == ["/opt/__pycache__.txt", "/workspaces/kept"]


def test_system_packages_become_a_call_without_their_dependencies(
    trees: tuple[Path, Path],
) -> None:
    upper, lower = trees
    write_file(upper / "var/lib/dpkg/status", status_of("base-files", "jq", "libjq1"))
    states = "Package: libjq1\nArchitecture: amd64\nAuto-Installed: 1\n"
    write_file(upper / "var/lib/apt/extended_states", states)
    write_file(upper / "var/lib/dpkg/info/jq.list", "/.\n/usr\n/usr/bin/jq\n")
    write_file(upper / "var/lib/dpkg/info/libjq1:amd64.list", "/usr/lib/libjq.so\n")
    for path in ("usr/bin/jq", "usr/lib/libjq.so"):
        write_file(upper / path)
    changes = collect_changes(upper, [lower])
    system = changes.system
    assert (system.installed, system.dependencies, changes.files) == (("jq",), 1, ())
    assert render_build_lines(changes) == ['install.apt_packages(["jq"])']


def add_conda_package(tree: Path, name: str, version: str, **more: object) -> None:
    dist_info = f"lib/python3.11/site-packages/{name}-{version}.dist-info/METADATA"
    record = {"name": name, "version": version, "files": [f"share/{name}", dist_info], **more}
    write_file(tree / f"opt/conda/conda-meta/{name}-{version}-0.json", json.dumps(record))
    write_file(tree / f"opt/conda/share/{name}", version)
    write_file(tree / f"opt/conda/{dist_info}", f"Name: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("asked", [{"requested_spec": "numpy"}, {"requested_specs": ["numpy>=1"]}])
def test_requested_conda_packages_become_a_call(
    trees: tuple[Path, Path], asked: dict[str, object]
) -> None:
    upper, lower = trees
    add_conda_package(lower, "hello", "1.0")
    touched = "opt/conda/conda-meta/hello-1.0-0.json"
    write_file(upper / touched, (lower / touched).read_text())
    add_conda_package(upper, "numpy", "2.1.0", **asked)
    add_conda_package(upper, "openblas", "0.3", requested_spec="None")
    write_file(upper / "opt/conda/conda-meta/history", "==> now <==")
    write_file(upper / "opt/conda/pkgs/numpy-2.1.0-0.conda")
    changes = collect_changes(upper, [lower])
    assert changes.conda == (
        CondaChange("numpy", "2.1.0", requested=True),
        CondaChange("openblas", "0.3", requested=False),
    )
    assert render_build_lines(changes) == ['install.conda_packages(["numpy=2.1.0"])']


def test_an_upgraded_conda_package_leaves_no_removed_files(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    add_conda_package(lower, "numpy", "1.0")
    add_conda_package(upper, "numpy", "2.0")
    old = "opt/conda/lib/python3.11/site-packages/numpy-1.0.dist-info/METADATA"
    for path in ("opt/conda/conda-meta/numpy-1.0-0.json", old):
        remove_entry(upper / path)
    changes = collect_changes(upper, [lower])
    assert (changes.files, changes.python) == ((), ())
    assert render_build_lines(changes) == ['install.conda_packages(["numpy=2.0"])']


@pytest.mark.parametrize(
    ("name", "version"), [('x"]); run(["evil', "1"), ("x", '1"]); run(["evil'), ("../x", "1")]
)
def test_conda_records_from_inside_cannot_add_statements(
    trees: tuple[Path, Path], name: str, version: str
) -> None:
    upper, lower = trees
    record = json.dumps({"name": name, "version": version})
    write_file(upper / "opt/conda/conda-meta/x-1-0.json", record)
    write_file(upper / "opt/conda/conda-meta/y-1-0.json", "[" * 100_000)
    assert collect_changes(upper, [lower]).conda == ()


def test_a_conda_record_cannot_hide_other_files(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    add_conda_package(upper, "x", "1", files=["../../etc/profile", "/etc/profile"])
    write_file(upper / "etc/profile", "after")
    assert "/etc/profile" in [change.path for change in collect_changes(upper, [lower]).files]


def test_a_linked_conda_environment_is_not_read(trees: tuple[Path, Path], tmp_path: Path) -> None:
    upper, lower = trees
    add_conda_package(tmp_path / "host", "secret", "1")
    (upper / "opt").mkdir()
    (upper / "opt/conda").symlink_to(tmp_path / "host/opt/conda")
    assert collect_changes(upper, [lower]).conda == ()


def test_other_files_are_copied(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    write_file(upper / "etc/profile", "after!")
    write_file(upper / "opt/new")
    (upper / "opt/link").symlink_to("/etc/shadow")
    for ignored in ("tmp/x", "root/.cache/x", "var/log/x", "opt/__pycache__/x.pyc"):
        write_file(upper / ignored)
    changes = collect_changes(upper, [lower])
    assert [(change.kind, change.path, change.has_copy) for change in changes.files] == [
        ("changed", "/etc/profile", True),
        ("added", "/opt/link", False),
        ("added", "/opt/new", True),
    ]
    copy, more, run = render_build_lines(changes, staged="kept/x", ignored=["/opt/new"])
    assert copy == 'io.copy("kept/x", "/kept/x")'
    assert more == 'io.copy("kept/x/opt/new", "/kept/x/opt/new")'
    commands = eval(run, {"run": lambda commands: commands})
    assert "cp -RT --remove-destination /kept/x /" in commands
    assert "ln -sfn -- /etc/shadow /opt/link" in commands
    # Without copies there are no lines for files.
    (line,) = render_build_lines(changes)
    assert "profile" not in line


def test_removed_files_are_removed_by_a_step() -> None:
    changes = EnvironmentChanges(files=(ChangedFile("removed", "/it's"),))
    (line,) = render_build_lines(changes)
    assert eval(line, {"run": lambda commands: commands})[1:] == ["rm -rf -- '/it'\"'\"'s'"]


def test_attributes_are_set_in_an_order_that_keeps_them() -> None:
    mode = FileAttributes(0o4755, 5, 6)
    changes = EnvironmentChanges(
        files=(
            ChangedFile("added", "/a", attributes=mode, has_content=False),
            ChangedFile("added", "/b", type="hardlink", target="/a"),
            ChangedFile("added", "/d", type="directory", attributes=mode, before=None),
            ChangedFile("added", "/l", type="link", target="x y", attributes=mode),
        )
    )
    (line,) = render_build_lines(changes)
    assert eval(line, {"run": lambda commands: commands})[1:] == [
        "mkdir -p -- /d",
        "ln -sfn -- 'x y' /l",
        # Changing the owner clears the set-id bits.
        "chown -h 5:6 -- /a /d /l",
        "chmod 04755 -- /a /d",
        "ln -f -- /a /b",
    ]


def test_a_long_script_is_several_steps() -> None:
    files = tuple(ChangedFile("removed", f"/{number}/{'x' * 200}") for number in range(1000))
    lines = render_build_lines(EnvironmentChanges(files=files))
    assert len(lines) == 3
    # execve(2) has a limit for each argument.
    assert max(map(len, lines)) < 128 << 10
    assert sum(line.count("xx /") + line.count('xx"') for line in lines) == 1000


@pytest.mark.parametrize(
    ("path", "mode", "text"),
    [
        ("root/key", 0o600, ""),
        ("srv/key", 0o640, ""),
        ("root/.ssh/config", 0o644, ""),
        ("srv/.netrc", 0o644, ""),
        ("srv/x", 0o644, "-----BEGIN OPENSSH PRIVATE KEY-----\n"),
        ("srv/x.py", 0o755, f"token = 'ghp_{'a' * 36}'"),
        ("srv/large", 0o644, "x" * (10 << 20) + "x"),
        ("srv/.git/HEAD", 0o644, ""),
    ],
)
def test_private_and_large_files_are_named_and_not_copied(
    trees: tuple[Path, Path], tmp_path: Path, path: str, mode: int, text: str
) -> None:
    upper, lower = trees
    write_file(upper / path, text)
    os.chmod(upper / path, mode)
    changes = collect_changes(upper, [lower])
    assert [problem.what for problem in changes.problems] == [f"/{path}"]
    assert copy_files(changes, upper, tmp_path) == ("", ())
    included = collect_changes(upper, [lower], included=[f"/{path.partition('/')[0]}/"])
    is_chosen = changes.problems[0].reason.startswith(("private", "larger"))
    assert is_chosen == (not included.problems)
    if is_chosen:
        directory, _ = copy_files(included, upper, tmp_path)
        assert (tmp_path / directory / path).read_text() == text


def write_accounts(tree: Path, **files: str) -> None:
    for name, text in files.items():
        write_file(tree / "etc" / name, text)


@pytest.fixture
def accounts(trees: tuple[Path, Path]) -> tuple[Path, Path]:
    """Layers of which the lower one has the account of root, and the programs."""
    upper, lower = trees
    for program in ("useradd", "groupadd"):
        write_file(lower / "usr/sbin" / program)
    write_accounts(
        lower,
        passwd="root:x:0:0:root:/root:/bin/sh\nold:x:9:9::/:/bin/sh\n",
        group="root:x:0:\nold:x:9:\n",
        shadow="root:*:1:0:99999:7:::\nold:*:1:0:99999:7:::\n",
        gshadow="root:*::\nold:*::\n",
    )
    return upper, lower


def test_users_and_groups_become_commands(accounts: tuple[Path, Path]) -> None:
    upper, lower = accounts
    write_accounts(
        upper,
        passwd="root:x:0:0:root:/root:/bin/bash\neve:x:1000:1000:E, x:/home/eve:/bin/sh\n",
        group="root:x:0:eve\neve:x:1000:\n",
        shadow="root:*:1:0:99999:7:::\neve:!:9::::::\n",
    )
    changes = collect_changes(upper, [lower])
    assert (changes.problems, changes.files) == ((), ())
    assert changes.accounts.summary == (
        *("+ user eve", "- user old", "~ user root", "+ group eve", "- group old", "~ group root"),
    )
    assert changes.accounts.commands == (
        "! grep -q '^old:' /etc/passwd || userdel old",
        "sed -i '/^old:/d' /etc/group",
        "test ! -e /etc/gshadow || sed -i '/^old:/d' /etc/gshadow",
        "grep -q '^eve:' /etc/group || groupadd -o -g 1000 eve",
        "usermod -s /bin/bash root",
        "grep -q '^eve:' /etc/passwd || useradd -l -M -N -K SUB_UID_COUNT=0 -K SUB_GID_COUNT=0"
        " -o -u 1000 -g 1000 -c 'E, x' -d /home/eve -s /bin/sh eve",
        "chage -m -1 -M -1 -W -1 -I -1 -E -1 eve",
        "gpasswd -M eve root",
    )


def test_a_changed_id_does_not_change_the_owner_of_files(accounts: tuple[Path, Path]) -> None:
    upper, lower = accounts
    write_accounts(upper, passwd="root:x:0:0:root:/root:/bin/sh\nold:x:7:0::/home/old:/bin/sh\n")
    assert collect_changes(upper, [lower]).accounts.commands == (
        "sed -i -E 's/^old:([^:]*):[0-9]+:[0-9]+:/old:\\1:7:0:/' /etc/passwd",
        "usermod -d /home/old old",
    )


def test_passwords_are_named_and_nowhere_else(accounts: tuple[Path, Path]) -> None:
    upper, lower = accounts
    write_accounts(
        upper,
        passwd="root:HASH1:0:0:root:/root:/bin/sh\nold:x:9:9::/:/bin/sh\n",
        shadow="root:HASH2:1:0:99999:7:::\nold:*:1:0:99999:7:::\nnew:HASH3:9:0:99999:7:::\n",
        gshadow="root:HASH4::\n",
    )
    changes = collect_changes(upper, [lower])
    assert {problem.what for problem in changes.problems} == {
        "the password of user root",
        "the password of user new",
        "the password of group root",
    }
    assert "HASH" not in repr(changes)
    assert not any(change.has_copy for change in changes.files)


@pytest.mark.parametrize(
    "entry",
    [
        "a;reboot:x:1:0::/:/bin/sh",
        "-x:x:1:0::/:/bin/sh",
        "a:x:$(id):0::/:/bin/sh",
        "a:x:1:77::/:/bin/sh",
        "a:x:1:0:\x1b:/:/bin/sh",
    ],
)
def test_accounts_from_inside_cannot_add_commands(accounts: tuple[Path, Path], entry: str) -> None:
    upper, lower = accounts
    write_accounts(upper, passwd=f"{(lower / 'etc/passwd').read_text()}{entry}\n")
    changes = collect_changes(upper, [lower])
    assert [problem.reason for problem in changes.problems] == ["useradd refuses its entry"]
    assert changes.accounts.commands == ()


def test_accounts_of_an_image_without_useradd_are_named(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    write_accounts(upper, passwd="eve:x:1:1::/:/bin/sh\n", group="eve:x:1:\n")
    changes = collect_changes(upper, [lower])
    assert changes.accounts == AccountChanges(problems=changes.accounts.problems)
    assert "the image has no useradd" in [problem.reason for problem in changes.problems]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0100000200200000000000000000000000000000", "cap_net_raw=ep"),
        ("0000000201000000800000000000000000000000", "cap_setuid=i cap_chown=p"),
        ("010000030000000000000000000100000000000000000000", "cap_checkpoint_restore=ep"),
        ("00", ""),
        ("0100000200000000000000000000008000000000", ""),
        ("0000000200000000000000000000000000000000", "="),
    ],
)
def test_capabilities_become_text(value: str, expected: str) -> None:
    assert format_capabilities(bytes.fromhex(value)) == expected


def test_the_directory_of_a_hard_link_is_made(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    write_file(upper / "etc/profile", "before")
    (upper / "opt/new").mkdir(parents=True)
    os.link(upper / "etc/profile", upper / "opt/new/name")
    (line,) = render_build_lines(collect_changes(upper, [lower]))
    commands = eval(line, {"run": lambda commands: commands})
    assert commands[1:] == ["mkdir -p -- /opt /opt/new", "ln -f -- /etc/profile /opt/new/name"]


def test_modes_of_pipes_are_set(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    os.mkfifo(upper / "pipe")
    os.chmod(upper / "pipe", 0o755)
    (line,) = render_build_lines(collect_changes(upper, [lower]))
    assert '"test -p /pipe || mkfifo -- /pipe"' in line
    assert '"chmod 00755 -- /pipe"' in line


def test_hard_links_are_made_in_place_of_links(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    write_file(lower / "opt/kept")
    for name in ("a", "b"):
        (lower / "opt" / name).symlink_to("/nowhere")
    write_file(upper / "opt/a", "x")
    os.link(upper / "opt/a", upper / "opt/b")
    changes = collect_changes(upper, [lower])
    assert [(item.type, item.target) for item in changes.files] == [
        ("file", ""),
        ("hardlink", "/opt/a"),
    ]


def test_mount_points_are_no_changes(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    for directory in ("data/in", "kept/in", "other"):
        (upper / directory).mkdir(parents=True)
    (upper / "kept/mine").mkdir()
    points = ["/data/in", "/kept/in", "/other/elsewhere"]
    changes = collect_changes(upper, [lower], mount_points=points)
    assert [change.path for change in changes.files] == ["/kept", "/kept/mine"]


@pytest.mark.parametrize(
    ("name", "version"),
    [('x"]); run(["evil', "1"), ("x", '1"]); run(["evil'), ("../x", "1"), ("", "1"), ("x", "")],
)
def test_names_from_inside_cannot_add_statements(
    trees: tuple[Path, Path], name: str, version: str
) -> None:
    upper, lower = trees
    info = upper / SITE / "x-1.dist-info"
    write_file(info / "METADATA", f"Name: {name}\nVersion: {version}\n")
    assert collect_changes(upper, [lower]).python == ()


def test_links_in_the_layer_are_not_followed(trees: tuple[Path, Path], tmp_path: Path) -> None:
    upper, lower = trees
    write_file(tmp_path / "host/METADATA", "Name: secret\nVersion: 1\n")
    (upper / "a.dist-info").symlink_to(tmp_path / "host")
    info = upper / "b.dist-info"
    info.mkdir()
    (info / "METADATA").symlink_to(tmp_path / "host/METADATA")
    assert collect_changes(upper, [lower]).python == ()


def test_a_linked_package_database_is_not_read(trees: tuple[Path, Path], tmp_path: Path) -> None:
    upper, lower = trees
    write_file(tmp_path / "host/dpkg/status", status_of("secret"))
    (upper / "var").mkdir()
    (upper / "var/lib").symlink_to(tmp_path / "host")
    assert collect_changes(upper, [lower]).system.installed == ()


def test_paths_become_string_literals() -> None:
    path = '/a"\\\n\x85\U000e0001\udc80'
    changes = EnvironmentChanges(files=(ChangedFile("removed", path),))
    (line,) = render_build_lines(changes)
    assert line.replace("\n", "").isprintable()
    command = eval(line, {"run": lambda commands: commands})[1]
    words = ["bash", "-c", f"printf '%s' {command.removeprefix('rm -rf -- ')}"]
    assert os.fsdecode(subprocess.run(words, capture_output=True, check=True).stdout) == path


def test_a_file_whose_name_is_not_utf8_is_named(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    write_file(upper / "srv/b\udc80", "x")
    changes = collect_changes(upper, [lower])
    assert [problem.reason for problem in changes.problems] == ["its name is not UTF-8"]


def test_lines_are_added_to_the_end_of_the_function(tmp_path: Path) -> None:
    file = tmp_path / "build.envd"
    file.write_text('def build():\n    base(os="debian12")\n\n\ndef serve():\n    build()\n')
    append_lines(file, "build", ("install.go()",))
    assert file.read_text() == (
        'def build():\n    base(os="debian12")\n    install.go()\n\n\ndef serve():\n    build()\n'
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def build():\n\tbase()\n", "def build():\n\tbase()\n\tinstall.go()\n"),
        (
            "def build():\n  base()\n  return\n",
            "def build():\n  base()\n  install.go()\n  return\n",
        ),
        ("def build():\r\n base()\r\n", "def build():\r\n base()\r\n install.go()\r\n"),
        ("def build():\n x = '\x0c \u2028'\n", "def build():\n x = '\x0c \u2028'\n install.go()\n"),
    ],
    ids=["tabs", "return", "newlines of Windows", "separators in text"],
)
def test_added_lines_keep_the_form_of_the_file(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "build.envd"
    file.write_bytes(text.encode())
    append_lines(file, "build", ("install.go()",))
    assert file.read_bytes().decode() == expected


@pytest.mark.parametrize(
    "text", ["def build(): base()\n", "def build():\n    base()\\\n\n\nx = 1\n"]
)
def test_a_function_without_a_place_for_lines_is_not_changed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "build.envd"
    file.write_text(text)
    with pytest.raises(UsageError, match="cannot add lines to function build"):
        append_lines(file, "build", ("install.go()",))
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("inside", "outside"), [(0o600, 0o600), (0o700, 0o700), (0o755, 0o755), (0o4444, 0o644)]
)
def test_private_files_stay_private_in_the_project(
    tmp_path: Path, inside: int, outside: int
) -> None:
    write_file(tmp_path / "tree/etc/key", "secret")
    attributes = FileAttributes(inside, 0, 0)
    changes = EnvironmentChanges(files=(ChangedFile("added", "/etc/key", attributes=attributes),))
    directory, _ = copy_files(changes, tmp_path / "tree", tmp_path)
    copied = tmp_path / directory / "etc/key"
    assert copied.read_text() == "secret"
    assert copied.stat().st_mode & 0o7777 == outside


def test_lines_are_added_once(tmp_path: Path) -> None:
    file = tmp_path / "build.envd"
    file.write_text("def build():\n    base()\n")
    for lines in (("install.go()",), ("install.go( )", "install.r()"), ("install.go()",)):
        append_lines(file, "build", lines)
    assert file.read_text() == "def build():\n    base()\n    install.go()\n    install.r()\n"


def test_versions_that_contradict_the_new_ones_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "build.envd"
    text = """def build():
    x = "炉"; install.python_packages(["a==1", 'b<2', "ab==1"], constraints=["c==1"])
    install.conda_packages(["a=1"])
    run(["a==1"])
"""
    file.write_text(text)
    line = 'install.python_packages(["a==2"], constraints=["c==2.1"])'
    append_lines(file, "build", (line, 'install.conda_packages(["a=3"])'))
    new = text.replace('["a==1", ', '["a==2", ').replace("c==1", "c==2.1").replace("a=1", "a=3")
    assert file.read_text() == f"{new}    {line}\n"


def test_a_missing_function_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "build.envd"
    file.write_text("def build():\n    pass\n")
    with pytest.raises(UsageError, match="no function serve"):
        append_lines(file, "serve", ("install.go()",))


def write_packages(tree: Path, *stanzas: str) -> None:
    write_file(tree / "var/lib/dpkg/status", "\n\n".join(stanzas) + "\n")


def describe_package(name: str, *lines: str, state: str = "install ok installed") -> str:
    return "\n".join((f"Package: {name}", f"Status: {state}", "Version: 1.0", *lines))


LIST = "mirror.example_debian_dists_bookworm_main_binary-amd64_Packages"


def write_lists(tree: Path, origin: str = "Debian", *, name: str = LIST) -> None:
    place = tree / "var/lib/apt/lists"
    release = name.partition("_main_")[0]
    write_file(place / f"{release}_InRelease", f"-----BEGIN\nOrigin: {origin}\n")
    write_file(place / name, "Package: jq\nArchitecture: amd64\nVersion: 1.0\n\nPackage: x\n")


def test_a_package_of_no_archive_is_named_and_not_written(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    local = describe_package("local", "Pre-Depends: base-files (>= 1)", "Depends: x | jq (>= 1)")
    write_packages(upper, status_of("base-files"), describe_package("jq"), local)
    write_file(upper / "var/lib/apt/extended_states", "Package: jq\nAuto-Installed: 1\n")
    write_file(upper / "var/lib/dpkg/info/local.list", "/.\n/usr\n/usr/bin/local\n")
    write_file(upper / "usr/bin/local")
    write_lists(upper)
    available = find_apt_packages(upper, LayerView([lower]))
    assert available == {"jq": frozenset({"1.0"})}
    changes = collect_changes(upper, [lower], available=available)
    assert [problem.what for problem in changes.problems] == ["package local 1.0"]
    assert changes.files == ()
    # What only the local package needs is there as well.
    assert render_build_lines(changes) == ['install.apt_packages(["jq"])']


@pytest.mark.parametrize(
    ("source", "origin", "is_known"),
    [
        ("", "Debian", True),
        ("", "Ubuntu", True),
        ("", "Docker", False),
        ("deb https://me:x@mirror.example/debian/ x main\n", "Docker", True),
    ],
)
def test_archives_that_were_added_by_hand_are_told_from_the_image_s(
    trees: tuple[Path, Path], source: str, origin: str, is_known: bool
) -> None:
    upper, lower = trees
    write_lists(upper, origin)
    write_file(lower / "etc/apt/sources.list.d/x.list", source)
    assert bool(find_apt_packages(upper, LayerView([lower]))) == is_known


def test_without_lists_the_log_of_apt_says_what_it_installed(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    view = LayerView([lower])
    assert find_apt_packages(upper, view) is None
    write_file(
        upper / "var/log/apt/history.log",
        "\nStart-Date: 1\nCommandline: apt-get install jq\n"
        "Install: jq:amd64 (1.0), libjq1:amd64 (1.0+b1, automatic)\nEnd-Date: 2\n"
        "\nStart-Date: 3\nCommandline: apt install ./local_1.0.deb\n"
        "Install: local:amd64 (1.0), needed:amd64 (2, automatic)\n",
    )
    expected = {"jq": "1.0", "libjq1": "1.0+b1", "needed": "2"}
    found = {name: frozenset({version}) for name, version in expected.items()}
    assert find_apt_packages(upper, view) == found


def test_a_held_package_is_held_again(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    write_packages(lower, describe_package("aa"), describe_package("bb", state="hold ok installed"))
    write_packages(upper, describe_package("aa", state="hold ok installed"), describe_package("bb"))
    changes = collect_changes(upper, [lower])
    assert render_build_lines(changes) == [
        "run([\n"
        '    "# what was changed by hand",\n'
        "    \"echo 'aa hold' | dpkg --set-selections\",\n"
        "    \"echo 'bb install' | dpkg --set-selections\",\n"
        "])"
    ]


@pytest.mark.parametrize("has_status", [False, True])
def test_diversions_are_named(trees: tuple[Path, Path], has_status: bool) -> None:
    upper, lower = trees
    if has_status:
        write_packages(upper, status_of("base-files"))
    write_file(upper / "var/lib/dpkg/diversions", "/bin/a\n/bin/a.distrib\n:\n")
    (problem,) = collect_changes(upper, [lower]).problems
    assert "dpkg-divert" in problem.what


def test_a_directory_with_files_of_others_is_removed_with_a_package(
    trees: tuple[Path, Path],
) -> None:
    upper, lower = trees
    write_packages(lower, status_of("base-files", "ed", "tree"))
    write_packages(upper, status_of("base-files", "tree"))
    names = ("usr/share/doc/ed/copyright", "usr/share/doc/tree/copyright", "usr/lib/ed/x")
    for name in names:
        write_file(lower / name)
    listing = "/.\n/usr\n/usr/share\n/usr/share/doc\n/usr/share/doc/ed\n/usr/lib\n/usr/lib/ed\n"
    listing += "/usr/share/doc/ed/copyright\n/usr/lib/ed/x\n"
    write_file(lower / "var/lib/dpkg/info/ed.list", listing)
    remove_entry(upper / "usr/share/doc")
    remove_entry(upper / "usr/lib/ed")
    changes = collect_changes(upper, [lower])
    assert [change.path for change in changes.files] == ["/usr/share/doc"]
    assert changes.system.removed == ("ed",)


def test_renamed_accounts_are_renamed(accounts: tuple[Path, Path]) -> None:
    upper, lower = accounts
    write_accounts(
        upper,
        passwd="root:x:0:0:root:/root:/bin/sh\nnew:x:9:9::/:/bin/bash\n",
        group="root:x:0:\nteam:x:9:\n",
        shadow="root:*:1:0:99999:7:::\nnew:*:1:0:99999:7:::\n",
        gshadow="root:*::\nteam:*::\n",
    )
    changes = collect_changes(upper, [lower])
    assert changes.problems == ()
    assert changes.accounts.commands == (
        "! grep -q '^old:' /etc/passwd || usermod -l new old",
        "! grep -q '^old:' /etc/group || groupmod -n team old",
        "usermod -s /bin/bash new",
    )


def test_directories_of_what_belongs_to_no_build_are_no_changes(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    write_file(upper / "root/.jupyter/lab/workspaces/default.jupyterlab-workspace", "{}")
    write_file(upper / "root/.local/share/jupyter/runtime/x")
    for name in (".jupyter", ".jupyter/lab", ".local"):
        (upper / "root" / name).chmod(0o700)
    assert collect_changes(upper, [lower]).is_empty
    write_file(upper / "root/.jupyter/lab/user-settings/x", "{}")
    (upper / "opt/empty").mkdir(parents=True)
    changed = [change.path for change in collect_changes(upper, [lower]).files]
    assert "/opt/empty" in changed
    assert "/root/.jupyter" in changed
    assert "/root/.local" not in changed


def test_another_name_of_a_private_file_is_private(trees: tuple[Path, Path]) -> None:
    upper, lower = trees
    write_file(upper / "srv/.npmrc", "registry=https://npm.corp\n")
    (upper / "opt").mkdir()
    os.link(upper / "srv/.npmrc", upper / "opt/settings")
    changes = collect_changes(upper, [lower])
    assert [item.what for item in changes.problems] == ["/opt/settings", "/srv/.npmrc"]
    assert not any(change.has_copy for change in changes.files)
