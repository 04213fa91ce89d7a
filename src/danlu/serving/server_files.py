"""The files of the model server in a packed image: its modules, what they need, its program."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

from danlu.errors import OutsideError
from danlu.serving import layout
from danlu.serving.model_servers import SHARED_MODULE, ModelServer
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.uv import Uv, target_options

_MODULES = Path(__file__).with_name("server")
_REQUIREMENTS = _MODULES / "requirements.txt"
_GRPC_REQUIREMENTS = _MODULES / "requirements-grpc.txt"
_NOT_COPIED = shutil.ignore_patterns("requirements*.txt", "__pycache__")

#: The program starts the modules of the image, not what its directory or PYTHONPATH may have. The
#: server's packages come last, so that a predictor gets those that it was trained with.
_PROGRAM = """\
#!{interpreter}
import sys

sys.path[0] = "{root}"
sys.path.append("{server}")

if __name__ == "__main__":
    try:
        from model_server.main import main

        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
"""

_ADAPTER_PROGRAM = """\
#!{interpreter}
import sys

sys.path[0] = "{root}"
sys.path.insert(1, "{server}")

from adapter import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


#: SageMaker starts a training job by this name, as it does the server by its own. The image lacks
#: what only training needs, even if the environment says what to train (config.sagemaker).
_TRAIN_PROGRAM = """\
#!{interpreter}
import sys

FAILURE = "/opt/ml/output/failure"
MESSAGE = "this image serves a model and has no training program"

if __name__ == "__main__":
    try:
        with open(FAILURE, "x") as file:
            file.write(MESSAGE)
    except OSError:
        pass  # it is not on SageMaker
    sys.exit(f"error: {{MESSAGE}}\\nhint: train with the image that it was packed from")
"""


def write_server(
    place: Path, target: PlatformTarget, interpreter: str, uv: Uv, *, grpc: bool
) -> list[tuple[str, str]]:
    """Write the server below ``place``; return its directories there and in the image.

    ``target`` is the image's Python, whose program is ``interpreter``; ``grpc`` says whether the
    server has what gRPC needs. Raises :class:`OutsideError` if the user's package indexes do not
    have what the server needs.
    """
    server = place / "server"
    options = [
        *target_options(target),
        *("--target", str(server), "--requirements", str(_REQUIREMENTS)),
        *(("--requirements", str(_GRPC_REQUIREMENTS)) if grpc else ()),
        *("--no-deps", "--require-hashes", "--link-mode", "copy"),
    ]
    code, _, messages = asyncio.run(uv.run(("pip", "install"), options))
    if code:
        raise OutsideError(
            "cannot get the packages of the model server",
            details=tuple(messages.strip().splitlines()),
            hint="pack without it: --no-server",
        )
    # Programs whose first line names this machine's Python, and uv's own files.
    shutil.rmtree(server / "bin", ignore_errors=True)
    (server / ".lock").unlink(missing_ok=True)
    shutil.copytree(_MODULES, server / "model_server", ignore=_NOT_COPIED)
    return _write_program(place, _PROGRAM, interpreter)


def write_adapter(
    place: Path, server: ModelServer, interpreter: str, command: str
) -> list[tuple[str, str]]:
    """Write the adapter of another server below ``place``, as :func:`write_server` does.

    The server is not written: the environment or the base image has it. ``command`` is the command
    line of one that has no adapter.
    """
    directory = place / "server"
    directory.mkdir()
    shutil.copyfile(server.adapter, directory / "adapter.py")
    shutil.copyfile(SHARED_MODULE, directory / "packed.py")
    if command:
        (directory / "command.json").write_text(json.dumps({"command": command}))
    return _write_program(place, _ADAPTER_PROGRAM, interpreter)


def _write_program(place: Path, template: str, interpreter: str) -> list[tuple[str, str]]:
    for name, text in (("serve", template), ("train", _TRAIN_PROGRAM)):
        program = place / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            text.format(interpreter=interpreter, root=layout.ROOT, server=layout.SERVER)
        )
        program.chmod(0o755)
    return [("server", layout.SERVER), ("bin", layout.SERVE.rpartition("/")[0])]
