"""Build files of envd users, in language v0 and v1, have the same meaning here."""

from __future__ import annotations

from danlu.environment.runtime_settings import ExposedPort
from danlu.environment.types import (
    BaseSystem,
    PythonInterpreter,
    PythonPackages,
    SystemPackages,
)
from danlu.lang.evaluation import evaluate
from danlu.lang.functions.base import LoginShell
from danlu.lang.functions.config import JupyterServer
from danlu.lang.functions.runtime import NamedCommands, PortExposure
from danlu.lang.functions.steps import RunStep
from danlu.lang.functions.vscode import VscodeExtensions
from tests.lang.support import InMemoryLoader, envd

MONITORING = '''
def tensorboard(
    envd_port=6006, envd_dir="/home/envd/logs", host_port=0, host_dir="/tmp"
):
    """Configure TensorBoard."""
    install.python_packages(["tensorboard"])
    runtime.mount(host_path=host_dir, envd_path=envd_dir)
    runtime.daemon(commands=[["tensorboard", "--logdir", envd_dir, "--port", str(envd_port)]])
    runtime.expose(envd_port=envd_port, host_port=host_port, service="tensorboard")
'''


def test_a_gpu_file_of_language_v0() -> None:
    environment = envd(
        """
        # syntax=v0

        def build():
            base(os="ubuntu20.04", language="python3")
            install.cuda(version="11.2.2", cudnn="8")
            install.python_packages(name=["tensorflow-gpu"])
            install.vscode_extensions(["ms-python.python"])
            config.jupyter()
            shell("zsh")
        """
    )
    image = "nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04"
    assert environment.base == BaseSystem(image=image, dev=True, language="python3")
    assert environment.python == PythonInterpreter("")
    assert environment.python_packages == (PythonPackages(("tensorflow-gpu",)),)
    assert environment.find(JupyterServer) == JupyterServer()
    assert environment.find(LoginShell) == LoginShell("zsh")


def test_a_library_that_is_included() -> None:
    environment = envd(
        """
        envdlib = include("https://example.org/envdlib")


        def build():
            base(dev=True)
            install.conda()
            install.python()
            envdlib.tensorboard(8888)
        """,
        envdlib=MONITORING,
    )
    assert environment.python_packages == (PythonPackages(("tensorboard",)),)
    expose = environment.find(PortExposure)
    assert expose is not None
    assert expose.port == ExposedPort(8888, service="tensorboard")
    assert (expose.span.file, expose.span.line) == ("build.envd", 9)
    assert [use.url for use in environment.includes] == ["https://example.org/envdlib"]


def test_a_development_file_of_language_v1() -> None:
    environment = envd(
        """
        # syntax=v1


        def build():
            base(dev=True)
            install.python()
            install.python_packages(
                name=[
                    "via",
                ]
            )
            install.apt_packages(name=["screenfetch"])
            shell("zsh")
            config.pip_index(url="https://pypi.example.org/simple")
            install.vscode_extensions(["ms-python.python"])
        """
    )
    assert environment.base == BaseSystem(image="ubuntu:22.04", dev=True)
    assert environment.python == PythonInterpreter("3.11")
    assert environment.python_packages == (PythonPackages(("via",)),)
    assert environment.system_packages == (SystemPackages(("screenfetch",)),)
    assert environment.find(VscodeExtensions) == VscodeExtensions(("ms-python.python",))


def test_file_without_base_uses_the_default_image() -> None:
    environment = envd("def build():\n    install.python()\n")
    assert environment.base == BaseSystem(image="ubuntu:22.04")
    assert environment.base.span.line == 1


def test_several_functions_share_helpers_and_top_level_declarations() -> None:
    text = """
        install.apt_packages(["git"])
        VERSIONS = ["3.10", "3.11"]
        for version in VERSIONS:
            newest = version

        def _common(name, version=newest):
            install.python(version)
            run([f"echo {name}"])

        def build():
            _common("build")

        def serve(port=80):
            _common("serve", version="3.10")
        """
    build, serve = envd(text), envd(text, "serve")
    assert (build.name, build.python, build.steps) == (
        "build",
        PythonInterpreter("3.11"),
        (RunStep(("echo build",)),),
    )
    assert (serve.name, serve.python, serve.steps) == (
        "serve",
        PythonInterpreter("3.10"),
        (RunStep(("echo serve",)),),
    )
    assert build.system_packages == serve.system_packages == (SystemPackages(("git",)),)


def test_tabs_indent_as_in_envd_and_are_kept_in_strings() -> None:
    environment = envd('def build():\n\trun(["a\tb", """\n\tc"""])\n')
    assert environment.steps == (RunStep(("a\tb", "\n\tc")),)


def test_line_ends_and_byte_order_mark_of_other_systems() -> None:
    environment = envd("\ufeffdef build():\r\n    run(['''a\r\nb'''])\r\n")
    assert environment.steps == (RunStep(("a\nb",)),)


def test_load_is_relative_to_the_loading_file() -> None:
    loader = InMemoryLoader(
        {
            "envs/build.envd": 'load("lib/tools.envd", "tools", v="VERSION")\n'
            "def build():\n    tools()\n    install.python(v)\n",
            "envs/lib/tools.envd": 'load("../names.envd", "NAMES")\nVERSION = "3.12"\n'
            "def tools():\n    install.apt_packages(NAMES)\n",
            "envs/names.envd": 'NAMES = ["git"]\n',
        }
    )
    environment = evaluate("envs/build.envd", loader=loader)
    assert environment.python == PythonInterpreter("3.12")
    assert environment.system_packages == (SystemPackages(("git",)),)
    assert environment.system_packages[0].span.file == "envs/lib/tools.envd"
    assert loader.asked == ["envs/build.envd", "envs/lib/tools.envd", "envs/names.envd"]


def test_the_names_of_commands_that_envds_own_files_use() -> None:
    names = (
        "go version",
        "rust version",
        "nodejs version",
        "pixi-via",
        "uv-python",
        "numpy",
        "root",
    )
    environment = envd(
        f"""
        def build():
            runtime.command(commands={{name: "true" for name in {names}}})
        """
    )
    (declared,) = environment.find_all(NamedCommands)
    assert tuple(name for name, _ in declared.commands) == names
