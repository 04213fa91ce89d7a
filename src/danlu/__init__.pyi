# Made by `python -m danlu.lang.reference` from danlu.lang.table; do not edit.
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from danlu.api import attach, sweep, train
from danlu.guest.report import report

__version__: str
__all__ = [
    "attach",
    "base",
    "config",
    "data",
    "git_config",
    "include",
    "install",
    "io",
    "report",
    "run",
    "runtime",
    "shell",
    "sweep",
    "train",
]

def base(
    image: str | None = "ubuntu:22.04",
    dev: bool | None = None,
    *,
    os: str | None = "",
    language: str | None = "",
) -> None:
    """Say what the environment stands on: a distribution (`os`) or an image. Without either it
    is the image `ubuntu:22.04`.

    Args:
        image: a Debian-like image; `os` and `image` exclude each other
        dev: add what living in the environment needs: ssh, git, an editor, a user.
            Where `language` is given (language v0) it is True, else False
        os: a distribution and its version, such as `debian12` or `ubuntu22.04`
        language: language v0: `python3.8`, `r` or `julia`, installed as by `install.*`

    Example:
        base(os="debian12", dev=True)
    """

def shell(name: Literal["bash", "zsh", "fish"] | None = "bash") -> None:
    """Choose the shell that a user of the environment gets.

    Args:
        name: the shell

    Example:
        shell("zsh")
    """

def run(
    commands: Sequence[str],
    mount_host: bool | None = False,
    secrets: Sequence[str | Mapping[str, str]] | None = (),
    ssh: bool | None = False,
) -> None:
    """Run shell commands while building. One call is one bash script (`set -euo pipefail`) and
    one layer. Runs keep the order in which they are written, after everything declared.

    Args:
        commands: the lines of the script
        mount_host: show the project's files while it runs; it runs again when one of
            them changes
        secrets: secrets that the commands may read, each as a file: by default
            `/run/secrets/ID`. They never enter the image
        ssh: let the commands use the ssh agent that `danlu build --ssh default`
            forwards

    Example:
        run(["make", "make install"], secrets=["token"])
    """

def git_config(
    name: str | None = "",
    email: str | None = "",
    editor: str | None = "",
) -> None:
    """Write the user's git configuration.

    Args:
        name: `user.name`
        email: `user.email`
        editor: `core.editor`

    Example:
        git_config(name="Ada", email="ada@example.org", editor="vim")
    """

def include(url: str, ref: str | None = "") -> Any:
    """Load the functions of another git repository: all its `*.envd` files. Its value holds
    them by name. The commit is pinned by the lock file.

    Args:
        url: the repository's address
        ref: a branch, a tag or a commit; empty for the default branch

    Example:
        lib = include("https://github.com/tensorchord/envdlib", ref="main")
    """

class _Install:
    @staticmethod
    def python(version: str | None = "3.11") -> None:
        """Install Python.

        Args:
            version: `3.11` or `3.11.2`; empty for the distribution's own Python

        Example:
            install.python("3.11")
        """

    @staticmethod
    def uv(python_version: str | None = "3.11") -> None:
        """Install uv, and a Python for it.

        Args:
            python_version: the version of Python

        Example:
            install.uv()
        """

    @staticmethod
    def apt_packages(name: Sequence[str] | None = ()) -> None:
        """Install packages of the distribution. Calls add up.

        Args:
            name: package names; one may be pinned: `git=1:2.39*`

        Example:
            install.apt_packages(["git", "ffmpeg"])
        """

    @staticmethod
    def python_packages(
        name: Sequence[str] | None = (),
        requirements: str | None = "",
        local_wheels: Sequence[str] | None = (),
    ) -> None:
        """Install Python packages. Calls add up and are resolved together.

        Args:
            name: requirements: `numpy`, `torch==2.4.*`, `pkg @ git+https://…`; options of
                the installer such as `--extra-index-url URL` are accepted too
            requirements: path of a requirements file of the project
            local_wheels: paths of wheel files of the project

        Example:
            install.python_packages(["numpy", "torch"], requirements="requirements.txt")
        """

    @staticmethod
    def conda(use_mamba: bool | None = False) -> None:
        """Install conda.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            use_mamba: micromamba instead of Miniconda
        """

    @staticmethod
    def conda_packages(
        name: Sequence[str] | None = (),
        channel: Sequence[str] | None = (),
        env_file: str | None = "",
    ) -> None:
        """Install conda packages: by name, or all of an environment file.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            name: package names, such as `tensorflow==1.13.0`
            channel: further channels
            env_file: path of a conda environment file of the project

        Example:
            install.conda_packages(["gcc"], channel=["conda-forge"])
        """

    @staticmethod
    def pixi(use_pixi_mirror: bool | None = False, pypi_index: str | None = "") -> None:
        """Install pixi.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            use_pixi_mirror: use pixi's mirror
            pypi_index: address of a Python package index
        """

    @staticmethod
    def r_lang() -> None:
        """Install R.

        Checked and shown by `danlu plan`; this version does not build it.
        """

    @staticmethod
    def r_packages(name: Sequence[str]) -> None:
        """Install R packages.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            name: package names
        """

    @staticmethod
    def julia() -> None:
        """Install Julia.

        Checked and shown by `danlu plan`; this version does not build it.
        """

    @staticmethod
    def julia_packages(name: Sequence[str]) -> None:
        """Install Julia packages.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            name: package names
        """

    @staticmethod
    def rust(version: str | None = "") -> None:
        """Install Rust.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            version: version of the toolchain, such as `1.72.0`; empty for the stable one
        """

    @staticmethod
    def go(version: str | None = "") -> None:
        """Install Go.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            version: such as `1.25.3`; empty for the present one
        """

    @staticmethod
    def nodejs(version: str | None = "") -> None:
        """Install Node.js.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            version: such as `25.1.0`; empty for the present one
        """

    @staticmethod
    def codex(version: str | None = "") -> None:
        """Install the Codex agent.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            version: a release, such as `rust-v0.98.0`; empty for the present one
        """

    @staticmethod
    def cuda(version: str, cudnn: str | None = "8") -> None:
        """Stand on CUDA and cuDNN of that version.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            version: version of CUDA, such as `11.6.2`
            cudnn: version of cuDNN

        Example:
            install.cuda(version="11.6.2", cudnn="8")
        """

    @staticmethod
    def vscode_extensions(name: Sequence[str]) -> None:
        """Install extensions of VS Code.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            name: `publisher.extension`, with `-version` or without

        Example:
            install.vscode_extensions(["ms-python.python"])
        """

install: Final[_Install]

class _Config:
    @staticmethod
    def apt_source(source: str) -> None:
        """Write the image's `/etc/apt/sources.list`.

        Args:
            source: the file's text
        """

    @staticmethod
    def pip_index(url: str, extra_url: str | None = "", trust: bool | None = False) -> None:
        """Use a Python package index: to resolve, and inside the environment.

        Args:
            url: the index's address
            extra_url: address of a second index
            trust: do not check its certificate

        Example:
            config.pip_index(url="https://pypi.example.org/simple")
        """

    @staticmethod
    def owner(uid: int, gid: int) -> None:
        """Say who owns the environment when it starts.

        Args:
            uid: user id
            gid: group id

        Example:
            config.owner(1000, 1000)
        """

    @staticmethod
    def entrypoint(args: Sequence[str]) -> None:
        """Set the image's entry program.

        Args:
            args: the program and its arguments

        Example:
            config.entrypoint(["python", "main.py"])
        """

    @staticmethod
    def jupyter(token: str | None = "", port: int | None = 0) -> None:
        """Serve Jupyter while the environment runs.

        Args:
            token: the access token; it never enters the image
            port: port on the host, 0 for any

        Example:
            config.jupyter(port=8888)
        """

    @staticmethod
    def gpu(count: int) -> None:
        """Say how many GPUs the environment gets when it starts.

        Acts when the environment starts; nothing in the image.

        Args:
            count: number of GPUs
        """

    @staticmethod
    def shm_size(size: int) -> None:
        """Set the size of the shared memory when the environment starts.

        Acts when the environment starts; nothing in the image.

        Args:
            size: size in megabytes
        """

    @staticmethod
    def repo(url: str, description: str | None = "") -> None:
        """Name the repository that the environment belongs to.

        Acts when the environment starts; nothing in the image.

        Args:
            url: the repository's address
            description: a line about it
        """

    @staticmethod
    def conda_channel(channel: str, use_mamba: bool | None = False) -> None:
        """Write conda's configuration.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            channel: the text of a `.condarc`
            use_mamba: language v0: `install.conda(use_mamba=True)`
        """

    @staticmethod
    def cran_mirror(url: str) -> None:
        """Use a mirror of CRAN.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            url: the mirror's address
        """

    @staticmethod
    def julia_pkg_server(url: str) -> None:
        """Use a package server of Julia.

        Checked and shown by `danlu plan`; this version does not build it.

        Args:
            url: the server's address
        """

    @staticmethod
    def rstudio_server() -> None:
        """Serve RStudio while the environment runs.

        Checked and shown by `danlu plan`; this version does not build it.
        """

config: Final[_Config]

class _Io:
    @staticmethod
    def copy(source: str, target: str, image: str | None = "") -> None:
        """Copy files into the image: from the project, or from another image.

        Args:
            source: path in the project or in `image`
            target: path in the environment
            image: the image to copy from

        Example:
            io.copy("main.py", "/opt/app/")
        """

    @staticmethod
    def http(url: str, checksum: str | None = "", filename: str | None = "") -> None:
        """Download a file to `/home/envd/extra_source`.

        Args:
            url: the file's address
            checksum: `sha256:…`; without it the lock file pins it
            filename: its name; by default the last part of the address

        Example:
            io.http("https://example.org/model.bin", filename="model.bin")
        """

io: Final[_Io]

class _Runtime:
    @staticmethod
    def environ(
        env: Mapping[str, str] | None = {},
        extra_path: Sequence[str] | None = (),
    ) -> None:
        """Set environment variables of the image. A later call wins over an earlier one.

        Args:
            env: values by name
            extra_path: directories put before `PATH`

        Example:
            runtime.environ({"MODE": "train"}, extra_path=["/opt/bin"])
        """

    @staticmethod
    def command(commands: Mapping[str, str]) -> None:
        """Name commands for later use.

        Acts when the environment starts; nothing in the image.

        Args:
            commands: commands by name

        Example:
            runtime.command({"train": "python train.py"})
        """

    @staticmethod
    def expose(
        envd_port: int,
        host_port: int | None = 0,
        service: str | None = "",
        listen_addr: str | None = "127.0.0.1",
    ) -> None:
        """Show a port of the environment on the host.

        Acts when the environment starts; nothing in the image.

        Args:
            envd_port: port in the environment
            host_port: port on the host, 0 for any
            service: name of the service
            listen_addr: address of the host to listen on

        Example:
            runtime.expose(8888, service="tensorboard")
        """

    @staticmethod
    def daemon(commands: Sequence[Sequence[str]]) -> None:
        """Keep programs running beside yours.

        Acts when the environment starts; nothing in the image.

        Args:
            commands: programs, each with its arguments

        Example:
            runtime.daemon([["tensorboard", "--logdir", "logs"]])
        """

    @staticmethod
    def mount(host_path: str, envd_path: str) -> None:
        """Show a directory of the host in the environment.

        Acts when the environment starts; nothing in the image.

        Args:
            host_path: path on the host, or `data.envd(name)`
            envd_path: path in the environment

        Example:
            runtime.mount("~/datasets", "/data")
        """

    @staticmethod
    def init(commands: Sequence[str]) -> None:
        """Run commands once, when the environment starts.

        Acts when the environment starts; nothing in the image.

        Args:
            commands: the commands

        Example:
            runtime.init(["mkdir -p /tmp/work"])
        """

runtime: Final[_Runtime]

class _DataPath:
    huggingface: Final[str]
    dgl: Final[str]

class _Data:
    path: Final[_DataPath]

    @staticmethod
    def envd(name: str) -> str:
        """Name a directory that danlu keeps on the host; for `runtime.mount`.

        Acts when the environment starts; nothing in the image.

        Args:
            name: letters, digits, `_`, `-` and `.`

        Example:
            runtime.mount(data.envd("imagenet"), "/data")
        """

data: Final[_Data]
