"""Everything a user can get wrong: one clear error, the right exit code, nothing half-written."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.e2e.conftest import Project, edit_lock

pytestmark = pytest.mark.real


def run_refused_command(project: Project, *arguments: str, code: int) -> str:
    """The program's one error message; no traceback, no lock it did not have."""
    before = sorted(project.directory.iterdir())
    result = project(*(arguments or ("build",)), check=False)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("error:") == 1
    assert sorted(project.directory.iterdir()) == before
    return result.stderr


@pytest.mark.parametrize(
    ("line", "place", "says"),
    [
        ("install.pyton()", "build.envd:3", "did you mean"),
        ('install.python(verion="3.11")', "build.envd:3", "version"),
        ("install.apt_packages(name=[1])", "build.envd:3", "1"),
        ('io.copy("nope", "/x")', "build.envd:3", "nope not found in the project"),
        ('install.python_packages(requirements="nope.txt")', "build.envd:3", "nope.txt"),
        ('install.apt_packages(["gitt"])', "build.envd:3", "gitt"),
        ('install.python(version="2.7")', "build.envd:3", "2.7"),
    ],
)
def test_a_wrong_line_is_named(project: Project, line: str, place: str, says: str) -> None:
    project.write(line)
    text = run_refused_command(project, code=2)
    assert place in text
    assert says in text


def test_unsatisfiable_packages_give_the_reason_in_a_few_lines(project: Project) -> None:
    project.write('install.python_packages(name=["six==1.16.0", "six==1.15.0"])')
    text = run_refused_command(project, code=2)
    assert "six==1.16.0" in text
    assert len(text.splitlines()) < 20


def test_a_package_that_does_not_exist(project: Project) -> None:
    project.write('install.python_packages(name=["danlu-no-such-package-ever"])')
    assert "danlu-no-such-package-ever" in run_refused_command(project, code=2)


def test_a_wheel_for_another_platform(project: Project) -> None:
    name = "alchemy-1.0-cp39-cp39-win_amd64.whl"
    with zipfile.ZipFile(project.directory / name, "w") as archive:
        archive.writestr("alchemy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: alchemy\n")
    project.write(f'install.python_packages(local_wheels=["{name}"])')
    assert name in run_refused_command(project, code=2)


def test_an_unreachable_index(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    project.write(
        'config.pip_index(url="http://127.0.0.1:9/simple")',
        'install.python_packages(name=["danlu-no-such-package-ever"])',
    )
    text = run_refused_command(project, code=3)
    assert "127.0.0.1:9" in text


def test_an_unreachable_mirror(project: Project) -> None:
    source = "deb [trusted=yes] http://127.0.0.1:9/debian bookworm main"
    project.write(f'config.apt_source("{source}")', 'install.apt_packages(["file"])')
    assert "127.0.0.1" in run_refused_command(project, code=3)


def test_an_unreachable_registry(project: Project) -> None:
    project.write(base='    base(image="127.0.0.1:9/none:1")\n')
    assert "127.0.0.1:9" in run_refused_command(project, code=3)


def test_a_failing_step_shows_its_last_lines_and_its_place(project: Project) -> None:
    project.write('run(["seq 100", "echo the reason >&2; exit 7"])')
    result = project("build", "--progress", "quiet", check=False)
    assert result.returncode == 1
    assert "build.envd:3" in result.stderr
    output = result.stderr.split("error:")[1]
    assert "the reason" in output
    assert "exit code 7" in output
    assert "run(): failed with exit code 7: exit 7" in output
    assert "\n  83\n" in re.sub(r" +", "  ", output)
    assert "82\n" not in output


def test_the_log_of_a_failing_step_is_printed_once(project: Project) -> None:
    project.write('run(["seq 100", "echo the reason >&2; exit 7"])')
    result = project("build", check=False)
    assert result.returncode == 1
    assert len(re.findall(r"^(?!.*echo).*the reason$", result.stderr, re.MULTILINE)) == 1
    assert "exit code 7" in result.stderr.split("error:")[1]


def test_a_stale_lock_is_refused_when_frozen(project: Project) -> None:
    project.write('install.apt_packages(["file"])')
    project("lock")
    project.write('install.apt_packages(["file", "less"])')
    before = (project.directory / "danlu.lock").read_text()
    assert "danlu lock" in run_refused_command(project, "build", "--frozen", code=2)
    assert (project.directory / "danlu.lock").read_text() == before
    result = project("lock", "--check", check=False)
    assert result.returncode == 1


def test_no_lock_is_refused_when_frozen(project: Project) -> None:
    project.write()
    assert "danlu lock" in run_refused_command(project, "build", "--frozen", code=2)


def test_a_hand_edited_hash_is_found_out(project: Project) -> None:
    project.write('install.python_packages(name=["zipp==3.20.0"])')
    project("lock")
    file = project.directory / "danlu.lock"
    text = file.read_text()
    result = re.search(r'zipp-3\.20\.0[^\n]*sha256 = "([0-9a-f]{64})"', text)
    assert result
    file.write_text(text.replace(result.group(1), "0" * 64))
    assert "danlu.lock was edited" in run_refused_command(project, code=2)
    file.write_text(text)
    edit_lock(project, result.group(1), "0" * 64)
    assert "zipp" in run_refused_command(project, code=3)


def test_an_edited_lock_that_contradicts_the_build_file_is_refused(project: Project) -> None:
    project.write('install.python_packages(name=["six==1.16.0", "zipp==3.20.0"])')
    project("lock")
    file = project.directory / "danlu.lock"
    text = file.read_text()
    without = re.sub(r'(?m)^ *\{ name = "six".*\n', "", text)
    for edited in (text.replace("1.16.0", "1.15.0"), without):
        file.write_text(edited)
        for command in (("lock", "--check"), ("build", "--frozen"), ("build",), ("plan",)):
            refused = run_refused_command(project, *command, code=2)
            assert "danlu.lock was edited" in refused
            assert "git checkout HEAD -- danlu.lock" in refused
        assert file.read_text() == edited


def test_a_locked_package_that_the_indexes_no_longer_have(project: Project) -> None:
    project.write('install.python_packages(name=["zipp==3.19.1"])')
    project("lock")
    edit_lock(project, "3.19.1", "3.19.99")
    text = run_refused_command(project, code=3)
    assert "zipp" in text
    assert "--upgrade zipp" in text


def test_a_lock_that_is_not_toml(project: Project) -> None:
    project.write()
    (project.directory / "danlu.lock").write_text("version = 1\n[[[\n")
    assert "danlu.lock:2" in run_refused_command(project, code=2)


def test_an_endless_build_file_ends(project: Project) -> None:
    project.write("for i in range(1 << 40):", "    pass")
    text = run_refused_command(project, code=2)
    assert "build.envd" in text


def test_a_build_file_that_takes_all_memory_ends(project: Project) -> None:
    project.write(
        'x = ["a" * 1000000]', "for i in range(1 << 40):", '    x.append("b" * 1000000 + str(i))'
    )
    run_refused_command(project, code=2)


def test_an_include_cannot_read_files(project: Project, tmp_path: Path) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    (library / "build.envd").write_text('load("/etc/passwd", "x")\n')
    run = ["git", "-c", "user.name=t", "-c", "user.email=t@e.org", "-C", str(library)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "1"]):
        subprocess.run([*run, *words], check=True)
    project.write("lib.x()", head=f'lib = include("file://{library}")\n\n')
    assert "/etc/passwd" in run_refused_command(project, code=2)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("run", "--", "sh", "-c", "exit 5"), 5),
        (("run", "--", "sh", "-c", "kill -TERM $$"), 143),
        (("run", "--", "no-such-program"), 127),
        (("run", "--", "/etc/passwd"), 126),
        (("run", "-f", "nope.envd", "--", "true"), 125),
        (("build", "-f", "nope.envd"), 2),
        (("build", "-f", "build.envd:nope"), 2),
        (("build", "--nope"), 2),
        (("nope",), 2),
        (("run", "-v", "/nope:/x", "--", "true"), 125),
    ],
)
def test_exit_codes(project: Project, arguments: tuple[str, ...], code: int) -> None:
    project.write()
    assert project(*arguments, check=False).returncode == code


def test_all_unresolvable_calls_are_listed_together(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv("DANLU_MIRROR_PYTHON", str(tmp_path / "mirror"))
    project.write(
        'install.python("3.99")',
        'install.apt_packages(["git", "nosuchpackage"])',
        base='    base(os="debian12")\n',
    )
    failed = project("lock", check=False)
    assert failed.returncode == 2
    assert "error: 2 problems" in failed.stderr
    assert "build.envd:3:5: " in failed.stderr
    assert "build.envd:4:5: package 'nosuchpackage' not found" in failed.stderr
    assert not (project.directory / "danlu.lock").exists()


def test_plan_with_lock_fetches_includes(project: Project, tmp_path: Path) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    (library / "tools.envd").write_text('def tools():\n    install.apt_packages(["file"])\n')
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(library)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    project.write("lib.tools()", head=f'lib = include("file://{library}")\n')
    plan = project("plan", "--lock")
    assert "apt file" in plan.stdout
    assert "?" not in plan.stdout
    assert (project.directory / "danlu.lock").exists()


def test_the_build_file_of_a_bug_report_gets_no_credentials(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://me:hunter2@index.example/simple")
    project.write('run(["(env; cat /etc/xdg/pip/pip.conf) >/seen 2>&1 || true"])')
    project("lock")
    project("report", "-o", "bundle.tar.gz")
    digest = project("reproduce", "bundle.tar.gz").stdout.strip()
    look = ("--", "sh", "-c", "cat /seen; cat /etc/xdg/pip/pip.conf; true")
    assert "hunter2" not in project("run", "--image", digest, *look).stdout
    project.write('run(["true", "(env; cat /etc/xdg/pip/pip.conf) >/seen 2>&1 || true"])')
    project("build")  # another step, and not one of the cache
    assert "hunter2" in project("run", *look).stdout
