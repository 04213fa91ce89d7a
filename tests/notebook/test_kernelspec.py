"""Installing the kernel, in the program and below it; no kernel is started here."""

from __future__ import annotations

import json
import struct
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.errors import MachineError, UsageError
from danlu.notebook import kernelspec
from danlu.notebook.environment_kernel import run_environment_kernel
from danlu.notebook.kernelspec import (
    check_requirements,
    environment_base,
    install_kernel,
    kernel_json,
    list_kernels,
    uninstall_kernel,
)
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.cli.conftest import home as home
from tests.conftest import ROOT
from tests.notebook.kernels import json_blocks, run_alone


def read_kernelspec(place: Path) -> dict[str, object]:
    document = json.loads((place / "kernel.json").read_text())
    assert isinstance(document, dict)
    return document


def write_foreign_kernelspec(base: Path, name: str) -> Path:
    """Another program's kernel."""
    directory = base / "kernels" / name
    directory.mkdir(parents=True)
    (directory / "kernel.json").write_text('{"argv": ["go-kernel"], "display_name": "Other"}')
    return directory


def test_installed_kernelspec_has_this_python_and_logos(tmp_path: Path) -> None:
    directory = install_kernel(tmp_path)
    assert directory == tmp_path / "kernels" / "danlu"
    argv = read_kernelspec(directory)["argv"]
    assert isinstance(argv, list)
    assert argv[0] == sys.executable
    assert argv[-4:] == ["-m", "danlu.notebook.kernel", "-f", "{connection_file}"]
    assert sorted(path.name for path in directory.iterdir()) == [
        "kernel.json",
        "logo-32x32.png",
        "logo-64x64.png",
        "logo-svg.svg",
    ]


def test_guide_shows_the_installed_kernelspec(tmp_path: Path) -> None:
    (output, *_) = json_blocks(ROOT / "docs/guides/kernels.md")
    assert output == kernel_json("danlu", python="/opt/danlu/bin/python")


@pytest.mark.parametrize("side", [32, 64])
def test_logos_have_their_nominal_size(tmp_path: Path, side: int) -> None:
    data = (install_kernel(tmp_path) / f"logo-{side}x{side}.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (side, side)
    assert len(data) < 2000


def test_kernel_can_be_installed_under_another_name(tmp_path: Path) -> None:
    directory = install_kernel(tmp_path, "KubeFlow", display_name="Kubeflow-Python3")
    assert directory.name == "kubeflow"
    assert read_kernelspec(directory)["display_name"] == "Kubeflow-Python3"
    assert read_kernelspec(install_kernel(tmp_path, "old"))["display_name"] == "old (danlu)"


@pytest.mark.parametrize("name", ["", "a b", "../up", "炉", "a/b"])
def test_invalid_kernel_name_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="invalid kernel name"):
        install_kernel(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_install_updates_our_kernel_but_not_another_programs(tmp_path: Path) -> None:
    (install_kernel(tmp_path) / "left-over").touch()
    assert not (install_kernel(tmp_path) / "left-over").exists()
    directory = write_foreign_kernelspec(tmp_path, "python3")
    with pytest.raises(UsageError, match="another program") as caught:
        install_kernel(tmp_path, "python3")
    assert "--replace" in caught.value.hint
    assert read_kernelspec(directory)["display_name"] == "Other"
    install_kernel(tmp_path, "python3", replace=True)
    assert read_kernelspec(directory)["display_name"] == "python3 (danlu)"


def test_list_shows_only_our_kernels_with_readiness(tmp_path: Path) -> None:
    write_foreign_kernelspec(tmp_path, "other")
    (tmp_path / "kernels" / "broken").mkdir()
    directory = install_kernel(tmp_path, "gone")
    changed = read_kernelspec(directory) | {
        "argv": ["/nowhere/python", "-m", "danlu.notebook.kernel"]
    }
    (directory / "kernel.json").write_text(json.dumps(changed))
    install_kernel(tmp_path)
    results = {
        kernel.name: (kernel.python, kernel.ready)
        for kernel in list_kernels([tmp_path, tmp_path / "none"])
    }
    assert results == {"danlu": (sys.executable, True), "gone": ("/nowhere/python", False)}


def test_uninstall_removes_the_first_match_of_ours_only(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    first, second = install_kernel(near), install_kernel(far)
    assert uninstall_kernel((near, far)) == first
    assert second.exists()
    write_foreign_kernelspec(near, "other")
    with pytest.raises(UsageError, match="was not installed by danlu") as caught:
        uninstall_kernel((near,), "other")
    assert "jupyter kernelspec remove other" in caught.value.hint
    with pytest.raises(UsageError, match="kernel danli not found") as caught:
        uninstall_kernel((far,), "danli")
    assert "did you mean danlu?" in caught.value.hint


def test_missing_requirements_have_an_install_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernelspec, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match="requires ipykernel and cloudpickle") as caught:
        check_requirements()
    assert "uv pip install" in caught.value.hint


def test_unwritable_directory_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot write") as caught:
        install_kernel(tmp_path / "file")
    assert "--user" in caught.value.hint


def test_sos_entry_point_loads_the_language_module() -> None:
    (result,) = entry_points(group="sos_languages", name="Danlu") or [None]
    if result is None:
        pytest.skip("this environment was made before the entry point: make setup")
    language = result.load()
    # SoS takes a kernel's language only under a name that differs from the kernel's.
    assert language.supported_kernels == {"Danlu": [kernelspec.DEFAULT_NAME]}


def test_cli_installs_lists_and_removes_kernels(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = run_alone(tmp_path, monkeypatch)
    directory = environment_base(prefix) / "kernels" / "danlu"
    result = cli("kernel", "install", "--prefix", str(prefix))
    assert (result.code, result.out.strip()) == (0, str(directory))
    assert "installed kernel danlu" in result.err
    (row,) = json.loads(cli("kernel", "ls", "--format", "json").out)
    assert row == {
        "name": "danlu",
        "display_name": "danlu",
        "python": sys.executable,
        "environment": "",
        "directory": str(directory),
        "ready": True,
    }
    assert "danlu" in cli("kernel", "ls").out
    assert cli("kernel", "ls", "-q").out == "danlu\n"
    result = cli("kernel", "uninstall")
    assert (result.code, f"removed {directory}" in result.err) == (0, True)
    assert cli("kernel", "uninstall").code == 2


def test_install_defaults_to_the_user_directory(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_alone(tmp_path, monkeypatch)
    mine = str(tmp_path / "data" / "kernels" / "danlu")
    assert cli("kernel", "install").out.strip() == mine
    assert cli("kernel", "install", "--user").out.strip() == mine


def test_install_warns_about_an_unsearched_prefix(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_alone(tmp_path, monkeypatch)
    result = cli("kernel", "install", "--prefix", str(tmp_path / "elsewhere"))
    assert result.code == 0
    assert f"JUPYTER_PATH={tmp_path / 'elsewhere/share/jupyter'}" in result.err


def test_install_locations_are_mutually_exclusive(cli: Cli, tmp_path: Path) -> None:
    result = cli("kernel", "install", "--user", "--sys-prefix")
    assert result.code == 2
    assert "only one of --user, --prefix and --sys-prefix" in result.err


def test_kernel_of_an_environment_is_listed_and_removed(tmp_path: Path) -> None:
    directory = install_kernel(tmp_path, "digits", environment="digits")
    spec = read_kernelspec(directory)
    assert spec["argv"] == [
        *(sys.executable, "-P", "-m", "danlu"),
        *("kernel", "run", "--env", "digits", "{connection_file}"),
    ]
    (kernel,) = list_kernels([tmp_path])
    assert (kernel.environment, kernel.display_name) == ("digits", "digits (danlu)")
    assert install_kernel(tmp_path, "digits", environment="digits") == directory
    assert uninstall_kernel([tmp_path], "digits") == directory
    assert not directory.exists()


def test_kernel_of_an_environment_does_not_replace_the_notebook_kernel(tmp_path: Path) -> None:
    directory = install_kernel(tmp_path)
    before = read_kernelspec(directory)
    with pytest.raises(UsageError, match="is the kernel of the notebook"):
        install_kernel(tmp_path, "danlu", environment="danlu")
    assert read_kernelspec(directory) == before
    install_kernel(tmp_path, "danlu", environment="danlu", replace=True)
    with pytest.raises(UsageError, match="is the kernel of environment danlu"):
        install_kernel(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read"),
        ("", "is not a connection file"),
        ("[1]", "is not a connection file"),
        ('{"transport": "ipc"}', "uses transport ipc"),
        (json.dumps({"key": "k" * 20_000}), "is not a connection file"),
    ],
)
def test_invalid_connection_file_is_an_error(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    file = tmp_path / "kernel.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=reason):
        run_environment_kernel(EnvironmentDirectory(tmp_path / "digits"), file)
