"""danlu's own engines, and those that installed packages add."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from danlu.engine.contexts import (
    Context,
    ContextFile,
    create_context,
    find_current_context,
    list_contexts,
)
from danlu.engine.registry import BUILT_IN_NAMES, find_engine, list_engine_names
from danlu.environment.runtime_settings import RuntimeSettings
from danlu.environments.spec import UpOptions, build_spec
from danlu.errors import UsageError
from danlu.util.paths import Paths
from danlu.util.plugins import BrokenPlugin

# As an external package would write it.
MODULE = """
from danlu.engine.engine import Engine, EngineFeatures

class BoxEngine(Engine):
    name = "{name}"
    features = EngineFeatures(gpus="none", limits=False, networks=())

ENGINE = BoxEngine()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with packages."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, name: str, text: str) -> None:
    """Install a package with one module, which has the engine called ``name``."""
    module = f"danlu_{name}"
    (site / f"{module}.py").write_text(text)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: danlu-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[danlu.engines]\n{name} = {module}:ENGINE\n")


@pytest.mark.parametrize("name", BUILT_IN_NAMES)
def test_engine_is_found_by_its_name(name: str) -> None:
    assert find_engine(name).name == name


def test_engine_of_a_package_is_a_context(site: Path, tmp_path: Path) -> None:
    install(site, "crate", MODULE.format(name="crate"))
    paths = Paths.of({"DANLU_HOME": str(tmp_path / "home")})
    assert list_engine_names() == (*BUILT_IN_NAMES, "crate")
    assert find_current_context(paths, {}, chosen="crate") == ("crate", Context("crate"))
    assert list_contexts(ContextFile())["crate"] == Context("crate")
    create_context("mine", Context("crate"), paths)
    assert find_current_context(paths, {}, chosen="mine")[1].engine_name == "crate"


def test_what_an_engine_cannot_do_is_refused(site: Path, tmp_path: Path) -> None:
    install(site, "carton", MODULE.format(name="carton"))
    paths = Paths.of({"DANLU_HOME": str(tmp_path / "home")})

    def build(options: UpOptions, gpus: str = "") -> None:
        target, runtime = tmp_path, RuntimeSettings()
        build_spec(
            "digits", target, "", runtime, options, paths, engine="carton", gpus=gpus, earlier=None
        )

    build(UpOptions(), "none")
    with pytest.raises(UsageError, match="the carton engine cannot have GPUs"):
        build(UpOptions(), "1")
    with pytest.raises(UsageError, match="the carton engine cannot have limits of CPU and memory"):
        build(UpOptions(memory="1G"))


def test_unknown_engine_is_an_error_with_the_closest_name(site: Path) -> None:
    with pytest.raises(UsageError, match="unknown engine 'dokcer'") as caught:
        find_engine("dokcer")
    assert "docker" in caught.value.hint


def test_package_that_cannot_be_used_is_named(site: Path) -> None:
    install(site, "broken", "import nothing_of_this_name\n")
    with pytest.raises(BrokenPlugin) as caught:
        find_engine("broken")
    assert caught.value.message == (
        "engine broken of package danlu-broken cannot be used: ModuleNotFoundError: "
        "No module named 'nothing_of_this_name'"
    )
    install(site, "misnamed", MODULE.format(name="other"))
    with pytest.raises(BrokenPlugin, match="it is called 'other'"):
        find_engine("misnamed")
    assert find_engine("docker").name == "docker"


def test_packages_are_not_searched_for_engines_of_danlu() -> None:
    code = "import sys; from danlu.engine.registry import find_engine; "
    code += "find_engine('embedded'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "danlu.engine.embedded.engine" in loaded
    assert {"importlib.metadata", "danlu.engine.docker.engine"}.isdisjoint(loaded)
