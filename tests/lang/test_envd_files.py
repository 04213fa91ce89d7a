"""Files that users of envd have, in language v0 and v1, mean here what they mean there."""

from __future__ import annotations

from danlu.environment.types import (
    Base,
    Jupyter,
    Other,
    Python,
    PythonPackages,
    Run,
    Shell,
    SystemPackages,
)
from danlu.lang.evaluation import evaluate, functions
from tests.lang.support import Texts, envd

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
    assert environment.base == Base(os="ubuntu20.04", dev=True, language="python3")
    assert environment.python == Python("")
    assert environment.python_packages == (PythonPackages(("tensorflow-gpu",)),)
    assert environment.jupyter == Jupyter()
    assert environment.shell == Shell("zsh")
    assert [(o.function, o.at_start) for o in environment.other] == [
        ("install.cuda", False),
        ("install.vscode_extensions", False),
    ]


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
    expose = environment.other[-1]
    assert expose.function == "runtime.expose"
    assert expose.arguments == (("envd_port", "8888"), ("service", '"tensorboard"'))
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
    assert environment.base == Base(image="ubuntu:22.04", dev=True)
    assert environment.python == Python("3.11")
    assert environment.python_packages == (PythonPackages(("via",)),)
    assert environment.system_packages == (SystemPackages(("screenfetch",)),)
    assert environment.other == (
        Other("install.vscode_extensions", (("name", '["ms-python.python"]'),)),
    )


def test_a_file_without_base_stands_on_the_default_image() -> None:
    environment = envd("def build():\n    install.python()\n")
    assert environment.base == Base(image="ubuntu:22.04")
    assert environment.base.span.line == 1


def test_several_functions_share_helpers_and_what_the_top_level_declares() -> None:
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
        Python("3.11"),
        (Run(("echo build",)),),
    )
    assert (serve.name, serve.python, serve.steps) == (
        "serve",
        Python("3.10"),
        (Run(("echo serve",)),),
    )
    assert build.system_packages == serve.system_packages == (SystemPackages(("git",)),)


def test_tabs_indent_as_in_envd_and_stay_in_strings() -> None:
    environment = envd('def build():\n\trun(["a\tb", """\n\tc"""])\n')
    assert environment.steps == (Run(("a\tb", "\n\tc")),)


def test_line_ends_and_byte_order_mark_of_other_systems() -> None:
    environment = envd("\ufeffdef build():\r\n    run(['''a\r\nb'''])\r\n")
    assert environment.steps == (Run(("a\nb",)),)


def test_load_takes_names_from_files_beside_the_one_that_loads() -> None:
    loader = Texts(
        {
            "envs/build.envd": 'load("lib/tools.envd", "tools", v="VERSION")\n'
            "def build():\n    tools()\n    install.python(v)\n",
            "envs/lib/tools.envd": 'load("../names.envd", "NAMES")\nVERSION = "3.12"\n'
            "def tools():\n    install.apt_packages(NAMES)\n",
            "envs/names.envd": 'NAMES = ["git"]\n',
        }
    )
    environment = evaluate("envs/build.envd", loader=loader)
    assert environment.python == Python("3.12")
    assert environment.system_packages == (SystemPackages(("git",)),)
    assert environment.system_packages[0].span.file == "envs/lib/tools.envd"
    assert loader.asked == ["envs/build.envd", "envs/lib/tools.envd", "envs/names.envd"]


def test_functions_lists_what_can_be_built() -> None:
    text = "def build():\n  pass\ndef _h():\n  pass\ndef f(a):\n  pass\ndef g(a=1):\n  pass\n"
    assert functions("build.envd", Texts({"build.envd": text})) == ["build", "g"]
