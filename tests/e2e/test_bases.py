"""Bases and the environment's user in a built image."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Project, edit_lock
from tests.e2e.test_functions import oci_config, pytestmark
from tests.fakes.wheels import make_wheel

__all__ = ["pytestmark"]


def test_an_image_of_the_own_store_is_a_base_without_a_registry(project: Project) -> None:
    project.write('run(["echo alchemy > /word"])')
    parent = project.build("-t", "local/parent:1")["image"]["config"]
    project.write('run(["cat /word /word > /words"])', base='    base(image="local/parent:1")\n')
    built = project("build", "--offline")
    assert "using the image local/parent:1 of this machine's store" in built.stderr
    assert parent in (project.directory / "danlu.lock").read_text()
    assert project.run("cat", "/words") == "alchemy\nalchemy"
    project.write('io.copy("/word", "/copied", image="local/parent:1")')
    assert project.run("cat", "/copied") == "alchemy"


def test_an_image_that_only_another_machine_has_is_refused(project: Project) -> None:
    project.write('run(["echo other > /word"])')
    parent = project.build("-t", "local/elsewhere:1")["image"]["config"]
    project.write(base='    base(image="local/elsewhere:1")\n')
    project("lock")
    edit_lock(project, parent[7:], "0" * 64)
    failed = project("build", check=False)
    assert failed.returncode == 3
    assert "`danlu build -t local/elsewhere:1`, then `danlu lock --upgrade`" in failed.stderr


def test_the_user_of_a_dev_base_has_a_home_directory_and_sudo(project: Project) -> None:
    (project.directory / "word").write_text("w")
    project.write(
        'io.copy("word", "/home/envd/sub/word")',
        'io.copy("word", "/usr/local/share/word")',
        'run(["pwd > /where", "mkdir made"])',
        base='    base(os="debian12", dev=True)\n',
    )
    script = "id -un; id -Gn; echo $HOME; cd; touch a sub/b; sudo -n id -un; stat -c %U /usr sub"
    seen = project("run", "--user", "envd", "--", "sh", "-c", script).stdout.splitlines()
    assert seen == ["envd", "envd sudo", "/home/envd", "root", "root", "envd"]
    assert project.run("cat", "/where") == "/home/envd"
    assert project.run("stat", "-c", "%U", "/home/envd/.bashrc", "/home/envd").split() == [
        "envd",
        "envd",
    ]


def test_the_owner_has_a_passwd_entry_and_a_home_directory(project: Project) -> None:
    project.write(
        "config.owner(1234, 2345)",
        'install.apt_packages(["git"])',
        'run(["echo in-home > ~/file"])',
    )
    script = "id; echo $HOME; cat ~/file; git config --global user.name Ada; cat ~/.gitconfig"
    seen = project.run("sh", "-c", script).splitlines()
    assert seen[0] == "uid=1234(envd) gid=2345(envd) groups=2345(envd)"
    assert seen[1:] == ["/home/envd", "in-home", "[user]", "\tname = Ada"]


def test_the_owner_can_write_where_its_files_are(project: Project) -> None:
    (project.directory / "data").mkdir()
    (project.directory / "data" / "part").write_text("1")
    (project.directory / "model").write_text("weights")
    project.write(
        "config.owner(1234, 2345)",
        'io.copy("data", "/home/envd/data")',
        'io.copy("data", "/opt/app/data")',
        'io.copy("model", "/srv/models/current/")',
        'io.copy("model", "/usr/local/share/")',
        'run(["mkdir -p ~/.cache/hub", "cd ~/.cache/hub", "echo 1 > file", "ln -s file to"])',
    )
    writable = "/home/envd/data /opt/app /opt/app/data /srv/models /srv/models/current"
    writable += " /home/envd/.cache/hub"
    script = (
        f"set -e; find /home/envd ! -user envd; for each in {writable}; do touch $each/new; done;"
        " rm ~/.cache/hub/file ~/data/part; stat -c %U /opt /srv /usr/local/share /home"
    )
    assert project.run("sh", "-c", script).split() == ["root"] * 4


def test_the_owner_can_install_upgrade_and_remove_python_packages(project: Project) -> None:
    wheels = [
        make_wheel(project.directory, "tool", version, {"tool/__init__.py": "", "a.py": ""})
        for version in ("1.0", "2.0")
    ]
    project.write(
        "config.owner(1234, 2345)",
        f'install.python_packages(local_wheels=["{wheels[0].name}"])',
    )
    script = (
        "set -e; python -c 'import a, tool';"
        f" pip install -q --no-index /workspace/{wheels[1].name};"
        " pip list --format freeze; pip uninstall -qy tool; ls /opt/venv/lib/*/site-packages"
    )
    project("build", "-t", "owned:1")
    archive = project.directory.parent / "owned.tar"
    project("image", "save", "owned:1", "-o", str(archive), "--bytecode")
    project("image", "load", str(archive), "-t", "loaded:1")
    # With the bytecode laid over at the start, and as part of the image.
    for image in ("owned:1", "loaded:1"):
        volume = f"{project.directory}:/workspace"
        seen = project("run", "--image", image, "-v", volume, "--", "sh", "-c", script).stdout
        assert "tool==2.0" in seen
        assert "a.py" not in seen


def test_the_owner_may_have_an_id_that_the_base_uses(project: Project) -> None:
    project.write("config.owner(33, 100)")
    assert project.run("sh", "-c", "id; echo $HOME; touch ~/a; getent passwd www-data") == (
        "uid=33(envd) gid=100(users) groups=100(users)\n/home/envd\n"
        "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin"
    )


def test_repo_writes_labels_without_credentials(project: Project) -> None:
    project.write('config.repo("https://u:secret@example.org/team/env", description="Elixir")')
    report = project.build("-o", f"type=oci,dest={project.directory}/out")
    config = oci_config(project.directory / "out", report["image"]["config"])
    assert config["config"]["Labels"] == {
        "ai.tensorchord.envd.repo": (
            '{"description": "Elixir", "url": "https://example.org/team/env"}'
        ),
        "org.opencontainers.image.description": "Elixir",
        "org.opencontainers.image.source": "https://example.org/team/env",
    }


@pytest.mark.parametrize(
    ("distribution", "says"),
    [
        ("fedora", 'whose package manager is dnf\n|run(["dnf install -y file"])'),
        ("alpine", 'whose package manager is apk\n|run(["apk add --no-cache file"])'),
        ("opensuse-leap", 'whose package manager is zypper\n|run(["zypper --non-interactive'),
    ],
)
def test_an_image_with_another_package_manager_is_refused_with_the_reason(
    project: Project, distribution: str, says: str
) -> None:
    project.write(f'run(["sed -i s/^ID=.*/ID={distribution}/ /etc/os-release"])')
    name = f"local/{distribution}:1"
    project.build("-t", name)
    (project.directory / "danlu.lock").unlink()
    project.write('install.apt_packages(["file"])', base=f'    base(image="{name}")\n')
    refused = project("build", check=False)
    assert refused.returncode == 2
    assert "build.envd:3:5" in refused.stderr
    for part in says.split("|"):
        assert part in refused.stderr
    assert not (project.directory / "danlu.lock").exists()
    project.write('run(["echo works > /word"])', base=f'    base(image="{name}")\n')
    assert project.run("cat", "/word") == "works"


def test_run_in_an_image_without_bash_is_reported(project: Project) -> None:
    project.write('run(["rm -f /bin/bash"])')
    project.build("-t", "local/bashless:1")
    project.write('run(["true"])', base='    base(image="local/bashless:1")\n')
    refused = project("build", check=False)
    assert refused.returncode == 2
    assert "the image has no /bin/bash" in refused.stderr
