"""Editable packages in a real environment: edited without a build, copied for other machines."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.e2e.conftest import Project

pytestmark = pytest.mark.real

#: Name, directory of the code, requirement and name of the build backend, and its own tables.
BACKENDS = (
    ("aflit", "aflit", "flit_core>=3.4", "flit_core.buildapi", ""),
    ("bhatch", "src/bhatch", "hatchling", "hatchling.build", ""),
    ("cpoetry", "cpoetry", "poetry-core>=2", "poetry.core.masonry.api", ""),
    ("duv", "src/duv", "uv_build", "uv_build", ""),
    ("esetup", "esetup", "setuptools", "setuptools.build_meta", ""),
    (
        "fsetup",
        "src/fsetup",
        "setuptools",
        "setuptools.build_meta",
        '[tool.setuptools.package-dir]\n"" = "src"\n',
    ),
)
NAMES = [name for name, *_ in BACKENDS]

#: A build backend of the project's own, so that nothing has to be fetched; ``{make}`` is what its
#: build does besides.
BACKEND = """
import os, zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    return build_editable(directory)
def build_editable(directory, config_settings=None, metadata_directory=None):
    info = "mine-1.0.dist-info"
    {make}
    with zipfile.ZipFile(os.path.join(directory, "mine-1.0-py3-none-any.whl"), "w") as archive:
        archive.writestr("mine.pth", os.getcwd() + "\\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: mine\\nVersion: 1.0\\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n"
            "Tag: py3-none-any\\n")
        archive.writestr(f"{info}/RECORD", "")
    return "mine-1.0-py3-none-any.whl"
"""


def write_package(directory: Path, name: str, code: str, requirement: str, backend: str) -> None:
    (directory / code).mkdir(parents=True)
    (directory / code / "__init__.py").write_text(
        f'WORD = "first"\n\n\ndef say():\n    print("{name}", WORD)\n'
    )
    (directory / "README.md").write_text(f"# {name}\n")
    (directory / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["{requirement}"]\nbuild-backend = "{backend}"\n'
        f'[project]\nname = "{name}"\nversion = "1.0"\ndescription = "x"\nreadme = "README.md"\n'
        f'[project.scripts]\nsay-{name} = "{name}:say"\n'
    )


@pytest.mark.slow
def test_packages_of_every_backend_are_edited_without_a_build(project: Project) -> None:
    for name, code, requirement, backend, tables in BACKENDS:
        directory = project.directory / name
        write_package(directory, name, code, requirement, backend)
        (directory / "pyproject.toml").write_text(
            (directory / "pyproject.toml").read_text() + tables
        )
    listing = ", ".join(f'"-e ./{name}"' for name in NAMES[1:])
    (project.directory / "requirements.txt").write_text(f"-e ./{NAMES[0]}\n")
    project.write(
        "install.python()",
        f'install.python_packages([{listing}], requirements="requirements.txt")',
    )
    say = " && ".join(f"say-{name}" for name in NAMES)
    assert project.run("sh", "-c", say).splitlines() == [f"{name} first" for name in NAMES]
    lock = (project.directory / "danlu.lock").read_text()

    for name, code, *_ in BACKENDS:
        module = project.directory / name / code / "__init__.py"
        module.write_text(module.read_text().replace("first", "second"))
        (module.parent / "added.py").write_text("")
        (project.directory / name / "README.md").write_text("# Other\n")
    project("lock", "--check")
    assert "up to date" in project("build", "--frozen").stderr
    assert project.run("sh", "-c", say).splitlines() == [f"{name} second" for name in NAMES]
    where = f"import {', '.join(NAMES)}; print(*(m.__file__ for m in ({', '.join(NAMES)})))"
    assert project.run("python", "-P", "-c", where).split() == [
        f"/workspace/{name}/{code}/__init__.py" for name, code, *_ in BACKENDS
    ]
    assert (project.directory / "danlu.lock").read_text() == lock

    file = project.directory / "bhatch/pyproject.toml"
    text = file.read_text()
    text = text.replace("readme =", 'dependencies = ["six"]\nreadme =')
    file.write_text(text.replace("say-bhatch", "tell-bhatch"))
    assert project("lock", "--check", check=False).returncode == 1
    refused = project("build", "--frozen", check=False)
    assert (refused.returncode, "Python packages changed" in refused.stderr) == (2, True)
    assert project.run("python", "-c", "import six; print(six.__name__)") == "six"
    assert project.run("tell-bhatch") == "bhatch second"


def test_an_image_that_leaves_the_machine_has_a_copy(project: Project, tmp_path: Path) -> None:
    write_package(project.directory, "mine", "src/mine", "flit_core", "flit_core.buildapi")
    project.write("install.python()", 'install.python_packages(["-e ."])')
    local = project.build("-t", "mine:1")["image"]["config"]
    lock = (project.directory / "danlu.lock").read_bytes()
    output = tmp_path / "image.tar"
    code = project.directory / "src/mine/__init__.py"
    code.write_text(code.read_text().replace("first", "second"))
    project("build", "--frozen", "-o", f"type=tar,dest={output}")
    with tarfile.open(output) as archive:
        names = archive.getnames()
        (name,) = [path for path in names if path.endswith("site-packages/mine/__init__.py")]
        content = archive.extractfile(name)
        assert content is not None
        assert content.read() == code.read_bytes()
        assert not [path for path in names if path.endswith("mine.pth")]
    assert project.build("--frozen")["image"]["config"] == local, "here the project is mounted"
    where = project.run("python", "-c", "import mine; print(mine.__file__)")
    assert where == "/workspace/src/mine/__init__.py"
    assert (project.directory / "danlu.lock").read_bytes() == lock

    for transfer in (
        ("image", "save", "mine:1", "-o", str(tmp_path / "saved.tar")),
        ("image", "push", "mine:1", "127.0.0.1:1/mine:1"),
    ):
        refused = project(*transfer, check=False)
        assert refused.returncode == 2
        assert "mine is installed with -e" in refused.stderr
        assert "hint: `danlu build` with --push or --output" in refused.stderr
    project.write(base='    base(image="mine:1")\n')
    refused = project("lock", check=False)
    assert refused.returncode == 2
    assert "mine:1 cannot be a base: mine is installed with -e" in refused.stderr


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ('open("mine/fast.cpython-311.so", "w").close()', "it has compiled modules"),
        ('open("mine/version.py", "w").close()', "its build generates mine/version.py"),
        ('os.symlink("/etc", "/workspace/out"); open("/workspace/out/x", "w")', "denied"),
        (
            "os.symlink('/etc/passwd', os.path.join(directory, 'mine-1.0-py3-none-any.whl')); "
            "return 'x'",
            "symbolic links",
        ),
    ],
)
def test_a_build_that_an_editable_package_cannot_have_is_refused(
    project: Project, make: str, message: str
) -> None:
    (project.directory / "mine").mkdir()
    (project.directory / "mine/__init__.py").write_text("")
    (project.directory / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "mine"\nversion = "1.0"\n'
    )
    (project.directory / "backend.py").write_text(BACKEND.replace("{make}", make))
    project.write("install.python()", 'install.python_packages(["-e ."])')
    failed = project("build", check=False)
    assert failed.returncode in (1, 2, 3)
    assert message in failed.stderr
    if failed.returncode == 2:
        assert "build.envd:4" in failed.stderr
        assert "hint: " in failed.stderr
        assert ". without -e" in failed.stderr
    assert not (project.directory / "out").exists()
    assert sorted(path.name for path in (project.directory / "mine").iterdir()) == ["__init__.py"]


def test_a_backend_without_editable_wheels_is_refused_when_locking(project: Project) -> None:
    (project.directory / "mine.py").write_text("")
    (project.directory / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "mine"\nversion = "1.0"\n'
    )
    (project.directory / "backend.py").write_text("def build_wheel(*arguments):\n    return ''\n")
    project.write("install.python()", 'install.python_packages(["-e ."])')
    refused = project("lock", check=False)
    assert refused.returncode == 2
    assert "its build backend backend does not support it (PEP 660)" in refused.stderr
    assert not (project.directory / "danlu.lock").exists()
