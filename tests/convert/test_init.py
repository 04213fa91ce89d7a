"""Build files generated from a directory; each is evaluated by the language itself."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from danlu.cli.init import command
from danlu.convert import InitReport, init, init_from_template
from danlu.convert.host import PYTHONS, detect_release, parse_image_release
from danlu.convert.template import list_templates
from danlu.environment.conda import CondaEnvironment, CondaPackages
from danlu.environment.types import Environment
from danlu.errors import UsageError
from danlu.lang.evaluation import evaluate
from danlu.lang.functions.config import JupyterServer
from danlu.lang.functions.runtime import EnvironmentVariables
from danlu.lang.functions.steps import RunStep
from danlu.project.fmt import format_text


class OneFile:
    """A loader that reads only files of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def read(self, path: str) -> str:
        return (self.directory / path).read_text(encoding="utf-8")

    def include(self, url: str, ref: str) -> Any:
        raise AssertionError("nothing is included")


@pytest.fixture(autouse=True)
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend to be on Debian 12 without an active environment."""
    monkeypatch.setattr("danlu.convert.detect_release", lambda: "debian12")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)


def init_and_evaluate(directory: Path, **options: Any) -> tuple[InitReport, Environment]:
    report = init(directory, **options)
    return report, evaluate(report.path.name, loader=OneFile(directory))


def names(environment: Environment) -> list[str]:
    return sorted(name for package in environment.python_packages for name in package.names)


def run_commands(environment: Environment) -> list[tuple[str, ...]]:
    return [step.commands for step in environment.steps if isinstance(step, RunStep)]


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_init_of_an_empty_directory_installs_python(tmp_path: Path) -> None:
    _, environment = init_and_evaluate(tmp_path)
    assert environment.base.os == "debian12"
    assert environment.python is not None
    assert environment.python.version == "3.11"


@pytest.mark.parametrize("file", ["requirements.txt", "environment.yml", "main.py"])
def test_an_environment_of_a_repository_has_git(tmp_path: Path, file: str) -> None:
    content = "dependencies: [numpy]" if file == "environment.yml" else ""
    (tmp_path / file).write_text(content)
    assert "git" not in init(tmp_path).text
    (tmp_path / ".git").mkdir()
    assert 'install.apt_packages(["git"])' in init(tmp_path, force=True).text


def test_git_is_not_added_to_what_a_dockerfile_says_nor_for_a_worktree(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "Dockerfile").write_text("FROM debian:bookworm\nRUN pip install numpy\n")
    assert "git" not in init(tmp_path).text
    worktree = tmp_path / "worktree"
    worktree.mkdir()
    (worktree / ".git").write_text("gitdir: ../.git/worktrees/worktree")
    assert "git" not in init(worktree).text


def test_imports_become_distributions(tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        "import os, json, numpy as np, cv2, yaml\n"
        "from sklearn.linear_model import Ridge\nfrom PIL import Image\nimport bs4\n"
        "from google.cloud import storage\nimport helpers.deep\nfrom . import sibling\n"
        "def late():\n    import torch\n",
    )
    write(tmp_path, "helpers/deep.py", "import pandas\n")
    report, environment = init_and_evaluate(tmp_path)
    assert names(environment) == [
        "PyYAML",
        "beautifulsoup4",
        "google-cloud-storage",
        "numpy",
        "opencv-python-headless",
        "pandas",
        "pillow",
        "scikit-learn",
        "torch",
    ]
    assert report.guessed["pandas"] == "helpers/deep.py"
    assert report.program == "train.py"


def test_optional_imports_become_comments(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a.py",
        "from typing import TYPE_CHECKING\nimport numpy\n"
        "try:\n    import cupy\nexcept ImportError:\n    cupy = None\n"
        "if TYPE_CHECKING:\n    import jax\n",
    )
    report, environment = init_and_evaluate(tmp_path)
    assert names(environment) == ["numpy"]
    assert "cupy" in report.text
    assert "jax" not in report.text


def test_tests_and_virtual_environments_are_not_scanned(tmp_path: Path) -> None:
    for name in (".venv/x.py", "node_modules/x.py", "tests/x.py", "build/x.py", ".git/x.py"):
        write(tmp_path, name, "import flask\n")
    write(tmp_path, "own/pyvenv.cfg", "")
    write(tmp_path, "own/lib/x.py", "import flask\n")
    assert names(init_and_evaluate(tmp_path)[1]) == []


def test_standard_library_is_not_installed(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "".join(f"import {name}\n" for name in sorted(sys.stdlib_module_names)))
    assert names(init_and_evaluate(tmp_path)[1]) == []


def test_installed_distributions_override_the_name_table(tmp_path: Path) -> None:
    site = ".venv/lib/python3.11/site-packages"
    write(
        tmp_path,
        f"{site}/odd_dist-1.0.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: odd-dist\n",
    )
    write(tmp_path, f"{site}/odd_dist-1.0.dist-info/top_level.txt", "strange\n")
    write(tmp_path, "a.py", "import strange\n")
    assert names(init_and_evaluate(tmp_path)[1]) == ["odd-dist"]


@pytest.mark.parametrize("text", ["print 'old'\n", "\0", "def f(:\n", "\udcff", "(" * 5000])
def test_invalid_python_files_are_skipped_with_a_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "old.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    write(tmp_path, "new.py", "import numpy\n")
    report, environment = init_and_evaluate(tmp_path)
    assert names(environment) == ["numpy"]
    assert any("old.py" in note for note in report.notes)


def test_requirements_file_is_referenced(tmp_path: Path) -> None:
    write(tmp_path, "requirements.txt", "numpy\n")
    write(tmp_path, "train.py", "import torch\n")
    report, environment = init_and_evaluate(tmp_path)
    assert environment.python_packages[0].requirements == "requirements.txt"
    assert names(environment) == []
    assert report.source == "requirements.txt"


def test_requirements_file_outside_the_project_is_an_error(tmp_path: Path) -> None:
    other = write(tmp_path, "other/requirements.txt", "numpy\n")
    (tmp_path / "project").mkdir()
    with pytest.raises(UsageError, match="outside"):
        init(tmp_path / "project", source=other)


PYPROJECT = """
[project]
name = "thing"
requires-python = ">=3.12"
dependencies = ["numpy>=2", 'torch; sys_platform == "linux"']
"""


def test_pyproject_chooses_a_distribution_with_its_python(tmp_path: Path) -> None:
    write(tmp_path, "pyproject.toml", PYPROJECT)
    write(tmp_path, "src/thing/__init__.py", "")
    report, environment = init_and_evaluate(tmp_path)
    assert environment.base.os == "debian13"
    assert names(environment) == ["numpy>=2", 'torch; sys_platform == "linux"']
    assert (
        dict(environment.find_all(EnvironmentVariables)[0].values)["PYTHONPATH"] == "/workspace/src"
    )
    assert any("debian13" in note for note in report.notes)


def test_groups_and_extras_of_a_pyproject_are_kept(tmp_path: Path) -> None:
    more = """
[project.optional-dependencies]
plots = ["matplotlib"]
cpu = ["onnxruntime"]
gpu = ["onnxruntime-gpu"]
[dependency-groups]
dev = ["pytest"]
[tool.uv]
conflicts = [[{ extra = "cpu" }, { extra = "gpu" }]]
"""
    write(tmp_path, "pyproject.toml", PYPROJECT + more)
    report, environment = init_and_evaluate(tmp_path)
    (packages,) = environment.python_packages
    assert (packages.pyproject, packages.groups) == ("pyproject.toml", ("dev",))
    assert packages.extras == ("plots",)
    assert any("cpu, gpu" in note for note in report.notes)


def test_groups_alone_are_dependencies(tmp_path: Path) -> None:
    write(tmp_path, "pyproject.toml", '[dependency-groups]\ntrain = ["numpy"]\n')
    _, environment = init_and_evaluate(tmp_path)
    assert environment.python_packages[0].groups == ("train",)


POETRY = """
[tool.poetry]
name = "thing"
[tool.poetry.dependencies]
python = "^3.10"
numpy = "^1.26.4"
pandas = "~2.1"
torch = {version = "2.4.1", extras = ["opt"]}
private = {git = "https://example.org/x.git", tag = "v1"}
flask = "*"
zero = "^0.0.3"
maybe = {version = "1", optional = true}
"""


def test_poetry_dependencies_are_converted(tmp_path: Path) -> None:
    write(tmp_path, "pyproject.toml", POETRY)
    assert names(init_and_evaluate(tmp_path)[1]) == [
        "flask",
        "numpy>=1.26.4,<2",
        "pandas>=2.1,<2.2",
        "private @ git+https://example.org/x.git@v1",
        "torch[opt]==2.4.1",
        "zero>=0.0.3,<0.0.4",
    ]


@pytest.mark.parametrize("uses", ["sources", "lock"])
def test_what_uv_knows_of_a_project_is_kept(tmp_path: Path, uses: str) -> None:
    """Names alone would come from the default index, at any version."""
    source = '[tool.uv.sources]\nnumpy = { index = "x" }\n' if uses == "sources" else ""
    if uses == "lock":
        write(tmp_path, "uv.lock", "version = 1\n")
    write(tmp_path, "pyproject.toml", f'[project]\nname = "a"\ndependencies = ["numpy"]\n{source}')
    _, environment = init_and_evaluate(tmp_path)
    (packages,) = environment.python_packages
    assert (packages.pyproject, packages.names) == ("pyproject.toml", ())


def test_pyproject_without_dependencies_falls_back_to_imports(tmp_path: Path) -> None:
    write(tmp_path, "pyproject.toml", '[project]\nname = "x"\nrequires-python = "==3.12.*"\n')
    write(tmp_path, "a.py", "import numpy\n")
    _, environment = init_and_evaluate(tmp_path)
    assert names(environment) == ["numpy"]
    assert environment.base.os == "ubuntu24.04"


@pytest.mark.parametrize("line", ["dependencies = 5", "dynamic = 5", 'dependencies = ["x", 5]'])
def test_malformed_pyproject_is_an_error(tmp_path: Path, line: str) -> None:
    write(tmp_path, "pyproject.toml", f"[project]\n{line}\n")
    with pytest.raises(UsageError, match="must be a list of strings"):
        init(tmp_path)
    assert not (tmp_path / "build.envd").exists()


def test_pyproject_with_only_tool_settings_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, "pyproject.toml", "[tool.ruff]\nline-length = 100\n")
    write(tmp_path, "a.py", "import numpy\n")
    assert names(init_and_evaluate(tmp_path)[1]) == ["numpy"]


CONDA = """\
name: thing
channels: [pytorch, conda-forge]
dependencies:
  - python=3.10
  - conda-forge::numpy=1.26
  - pandas>=2,<3
  - pytorch=2.1.0
  - ffmpeg   # for videos
  - pip
  - pip:
    - transformers==4.40.0
    - "einops"
    - -r more.txt
variables:
  TOKENIZERS_PARALLELISM: "false"
"""


def test_conda_environment_becomes_wheels_and_system_packages(tmp_path: Path) -> None:
    write(tmp_path, "more.txt", "rich\n")
    source = write(tmp_path, "environment.yml", CONDA)
    _, environment = init_and_evaluate(tmp_path, source=source)
    assert environment.base.os == "ubuntu22.04"
    assert names(environment) == [
        "einops",
        "numpy==1.26.*",
        "pandas>=2,<3",
        "torch==2.1.0.*",
        "transformers==4.40.0",
    ]
    assert environment.system_packages[0].names == ("ffmpeg",)
    assert [
        package.requirements for package in environment.python_packages if package.requirements
    ] == ["more.txt"]
    assert dict(environment.find_all(EnvironmentVariables)[0].values) == {
        "TOKENIZERS_PARALLELISM": "false"
    }


def test_conda_environment_that_only_conda_can_make_is_installed_by_conda(tmp_path: Path) -> None:
    source = write(tmp_path, "environment.yml", CONDA.replace("ffmpeg ", "cudatoolkit=11.8 "))
    report, environment = init_and_evaluate(tmp_path, source=source)
    assert environment.find(CondaEnvironment)
    assert environment.find_all(CondaPackages) == (CondaPackages(env_file="environment.yml"),)
    assert environment.python is None
    assert any("cudatoolkit=11.8" in note for note in report.notes)
    assert dict(environment.find_all(EnvironmentVariables)[0].values) == {
        "TOKENIZERS_PARALLELISM": "false"
    }


def test_python_of_a_conda_environment_keeps_its_meaning(tmp_path: Path) -> None:
    for spec, version in {
        "python=3.10": "3.10",
        "python=3.10.12": "3.10.12",
        "python==3.10": "3.10.0",
        "python=3.7": "3.7",
        "python>=3.9,<3.11": "3.9",
    }.items():
        source = write(tmp_path, "environment.yml", f"dependencies:\n  - {spec}\n  - six\n")
        report, environment = init_and_evaluate(tmp_path, source=source, force=True)
        assert environment.python is not None
        assert environment.python.version == version, spec
        assert "the build file uses" not in str(report.notes)


def test_files_of_a_conda_environment_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    write(tmp_path, "env/more.txt", "rich\n")
    write(tmp_path, "env/setup.py", "")
    text = "dependencies:\n  - six\n  - pip: [-r file:more.txt, '--requirement=../a.txt', via]\n"
    write(tmp_path, "a.txt", "attrs\n")
    source = write(tmp_path, "env/environment.yml", text)
    report, environment = init_and_evaluate(tmp_path, source=source)
    files = [package.requirements for package in environment.python_packages]
    assert [file for file in files if file] == ["env/more.txt", "a.txt"]
    assert any("setup.py is not installed" in note for note in report.notes)
    write(tmp_path, "env/environment.yml", text.replace("via", "-e ."))
    report, environment = init_and_evaluate(tmp_path, source=source, force=True)
    assert environment.find_all(CondaPackages) == (CondaPackages(env_file="env/environment.yml"),)
    assert not any("setup.py" in note for note in report.notes)


def test_invalid_conda_yaml_is_an_error_with_its_line(tmp_path: Path) -> None:
    source = write(tmp_path, "environment.yml", "dependencies:\n  - numpy\n  deep:\n    - x\n")
    with pytest.raises(UsageError) as caught:
        init(tmp_path, source=source)
    assert caught.value.span is not None
    assert caught.value.span.line == 3


def test_manifest_of_pixi_is_refused_with_the_command_that_exports_it(tmp_path: Path) -> None:
    write(tmp_path, "pixi.toml", "[workspace]\n")
    with pytest.raises(UsageError, match=r"cannot convert pixi\.toml") as caught:
        init(tmp_path)
    assert "pixi workspace export conda-environment environment.yml" in caught.value.hint
    write(tmp_path, "requirements.txt", "numpy\n")
    report, _ = init_and_evaluate(tmp_path)
    assert "requirements.txt" in report.source


def notebook(*cells: str) -> str:
    return json.dumps(
        {"cells": [{"cell_type": "code", "source": cell.splitlines(True)} for cell in cells]}
    )


@pytest.mark.parametrize(
    ("line", "packages"),
    [
        ("!conda install -y -c conda-forge pytorch numpy", ["numpy", "torch"]),
        ("!mamba install -c conda-forge nodejs", None),
        ("!conda install -c team numpy", None),
        ("!conda install numpy=1.26", None),
        ("!pip install -qU 'einops>=0.7' timm[extra]", ["einops>=0.7", "timm[extra]"]),
        ("!pip install -r requirements.txt six", None),
        ("!pip install --index-url https://h.example/simple six", None),
        ("!pip install git+https://h.example/x.git", None),
        ("!pip install {package}", None),
    ],
)
def test_install_commands_of_notebooks_are_translated_or_listed(
    tmp_path: Path, line: str, packages: list[str] | None
) -> None:
    cell = {"cell_type": "code", "source": line, "metadata": {}, "outputs": []}
    write(tmp_path, "a.ipynb", json.dumps({"cells": [cell], "nbformat": 4, "metadata": {}}))
    report, environment = init_and_evaluate(tmp_path)
    if packages is None:
        assert f"#   {line}" in report.text
        assert not environment.python_packages
    else:
        assert names(environment) == packages


def test_notebook_imports_and_pip_installs_become_packages(tmp_path: Path) -> None:
    text = notebook(
        "!pip install -q einops 'timm>=1'\n%matplotlib inline\nimport numpy as np",
        "%%bash\nimport nothing",
        "!apt-get install -y ffmpeg\nimport einops\nnp.ones?\nfor x in []:\n    !ls",
    )
    source = write(tmp_path, "work.ipynb", text)
    report, environment = init_and_evaluate(tmp_path, source=source)
    assert names(environment) == ["einops", "numpy", "timm>=1"]
    assert environment.system_packages[0].names == ("ffmpeg",)
    assert environment.find(JupyterServer) is not None
    assert report.program == "work.ipynb"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [1]}', '{"cells": 3}'])
def test_invalid_notebook_is_an_error(tmp_path: Path, text: str) -> None:
    source = write(tmp_path, "x.ipynb", text)
    report, _ = init_and_evaluate(tmp_path, source=source)
    assert any("x.ipynb" in note for note in report.notes)


def test_build_py_is_equivalent_to_build_envd(tmp_path: Path) -> None:
    write(tmp_path, "environment.yml", CONDA)
    one = tmp_path / "one"
    one.mkdir()
    write(one, "environment.yml", CONDA)
    text = init(tmp_path, python=True).text
    assert text.startswith("# ")
    assert "from danlu import base, install, runtime\n" in text
    assert text.partition("def build")[2] == init(one).text.partition("def build")[2]


@pytest.mark.parametrize("python", [False, True])
def test_existing_build_file_is_not_overwritten(tmp_path: Path, python: bool) -> None:
    write(tmp_path, "build.envd", "mine")
    with pytest.raises(UsageError, match=r"build\.envd already"):
        init(tmp_path, python=python)
    assert (tmp_path / "build.envd").read_text() == "mine"


def test_force_overwrites_the_build_file(tmp_path: Path) -> None:
    write(tmp_path, "build.envd", "mine")
    assert init(tmp_path, force=True).text == (tmp_path / "build.envd").read_text()


@pytest.mark.parametrize("name", ["missing.txt", "notes.md"])
def test_missing_or_unknown_source_is_an_error(tmp_path: Path, name: str) -> None:
    write(tmp_path, "notes.md", "")
    with pytest.raises(UsageError) as caught:
        init(tmp_path, source=tmp_path / name)
    assert "requirements.txt" in caught.value.hint


def test_strings_are_quoted_for_starlark_and_python(tmp_path: Path) -> None:
    hostile = (
        "FROM python:3.11\n"
        'ENV A="q\\"uote \\\\ back" B=丹炉 C="tab\there"\n'
        'RUN echo \'"""\' "\\n"\n'
    )
    _, environment = init_and_evaluate(tmp_path, source=write(tmp_path, "Dockerfile", hostile))
    values = dict(environment.find_all(EnvironmentVariables)[0].values)
    assert values == {"A": 'q"uote \\ back', "B": "丹炉", "C": "tab\there"}
    assert run_commands(environment) == [("cd /", 'echo \'"""\' "\\n"')]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('ID=debian\nVERSION_ID="12"\n', "debian12"),
        ('ID=ubuntu\nVERSION_ID="24.04"\n', "ubuntu24.04"),
        ("ID=linuxmint\nVERSION_ID=22\nUBUNTU_CODENAME=noble\n", "ubuntu24.04"),
        ("ID=fedora\nVERSION_ID=42\n", "debian12"),
        ("", "debian12"),
    ],
)
def test_base_matches_the_machine_s_distribution(tmp_path: Path, text: str, expected: str) -> None:
    assert detect_release(write(tmp_path, "os-release", text)) == expected


def test_python_versions_of_releases_match_the_resolver_table() -> None:
    from danlu.resolve.system import _DEFAULT_PYTHONS

    for version, releases in _DEFAULT_PYTHONS.items():
        for release in releases:
            assert PYTHONS.get(release, version) == version


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("debian:bookworm-slim", "debian12"),
        ("docker.io/library/ubuntu:22.04", "ubuntu22.04"),
        ("localhost:5000/debian", ""),
        ("python:3.11", ""),
    ],
)
def test_release_is_parsed_from_the_image_name(image: str, release: str) -> None:
    assert parse_image_release(image) == release


PIECES = re.findall(
    r"\S+",
    """
FROM RUN COPY ENV ARG ADD ENTRYPOINT WORKDIR USER CMD python:3.11 AS b --from=b --from=0 pip install
-r a=b x $Y
${Z:-1} && ; ' " [ ] { <<EOF EOF # = apt-get -y dependencies: - pip: numpy=1 variables: : 丹
""",
)

WORDS = st.lists(st.sampled_from([*PIECES, "\n", "\\\n", "  - ", "channels: [a]"]), max_size=30)


def test_dockerfile_is_detected_unless_a_file_lists_packages(tmp_path: Path) -> None:
    write(tmp_path, "main.py", "import numpy\n")
    write(tmp_path, "Dockerfile", "FROM debian:12\nRUN apt-get install -y git\n")
    report, environment = init_and_evaluate(tmp_path)
    assert report.source == "Dockerfile"
    assert environment.system_packages[0].names == ("git",)
    write(tmp_path, "requirements.txt", "numpy\n")
    assert init_and_evaluate(tmp_path, force=True)[0].source == "requirements.txt"


@pytest.mark.parametrize("name", ["Dockerfile", "environment.yml", "x.ipynb", "pyproject.toml"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=WORDS, beginning=st.sampled_from(["", "FROM python:3.11\n"]))
def test_any_input_is_an_error_or_a_valid_build_file(
    tmp_path_factory: pytest.TempPathFactory, name: str, words: list[str], beginning: str
) -> None:
    from danlu.convert.detect import read_source
    from danlu.convert.draft import BuildFileDraft, render_draft

    directory = tmp_path_factory.mktemp("fuzz")
    path = write(directory, name, beginning * (name == "Dockerfile") + " ".join(words))
    draft = BuildFileDraft(os="debian12")
    try:
        read_source(path, directory, draft)
    except UsageError:
        return
    compile(render_draft(draft), "build.envd", "exec")


def test_file_name_cannot_inject_into_the_build_file(tmp_path: Path) -> None:
    path = write(tmp_path, 'x\n    run(["evil"])\n#.txt', "numpy\n")
    _, environment = init_and_evaluate(tmp_path, source=path)
    assert environment.steps == ()


def test_a_template_is_written_for_the_machines_release(tmp_path: Path) -> None:
    report = init_from_template(tmp_path, "uv")
    assert 'base(os="debian12", dev=True)' in report.text
    assert 'install.uv(python_version="3.11")' in report.text
    assert "{" not in report.text
    with pytest.raises(UsageError, match="already exists"):
        init_from_template(tmp_path, "vision")


def test_every_template_is_formatted_and_valid(tmp_path: Path) -> None:
    for name in list_templates():
        directory = tmp_path / name
        directory.mkdir()
        report = init_from_template(directory, name)
        assert format_text(report.text.encode(), name, directory=directory).decode() == report.text
        assert evaluate("build.envd", loader=OneFile(directory)).base.os == "debian12"


def test_help_and_completion_list_every_template() -> None:
    assert command.help is not None
    words = set(re.findall(r"[\w-]+", command.help))
    assert words >= set(list_templates())
    (option,) = [option for option in command.params if option.name == "template"]
    completed = option.shell_complete(click.Context(command), "r-")
    assert [item.value for item in completed] == ["r-python"]


def test_an_unknown_template_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown template 'vison'") as caught:
        init_from_template(tmp_path, "vison")
    assert caught.value.hint == "did you mean 'vision'?"
    assert not (tmp_path / "build.envd").exists()
