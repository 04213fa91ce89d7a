"""The entrypoint of an image that can also run as a SageMaker training job.

``train`` runs the program as SageMaker's training toolkit does (``sagemaker-training`` 5.1.4): with
its ``SM_…`` variables and arguments, the variables of torchrun, and ``output/failure``, which says
why the job failed. ``serve`` starts the image's model server. Other commands are executed as they
are. The program is copied into images alone.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

#: Where SageMaker's directories are (the toolkit's variable), ``/opt/ml`` by default.
BASE_DIRECTORY = "SAGEMAKER_BASE_DIR"
#: The image's command as JSON: SageMaker replaces it by ``train``.
COMMAND = "DANLU_TRAIN_COMMAND"
#: How many seconds to wait for the name of the first host.
HOST_TIMEOUT = "DANLU_HOST_TIMEOUT"
SERVER = "/usr/local/bin/serve"
#: How much of ``output/failure`` SageMaker shows, in characters.
MAX_FAILURE = 1024

_PORT = "7777"
_LOOKUP_SECONDS = 0.5
_DRAIN_SECONDS = 5
_MAX_TAIL = 256 << 10
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Hyperparameters that are the toolkit's settings; those with the prefix that it does not know are
#: settings of a framework's toolkit.
_SETTING = re.compile("sagemaker_.*|default_user_module_name|_tuning_objective_metric")
_KNOWN_SETTING = re.compile(
    "sagemaker_(program|submit_directory|enable_cloudwatch_metrics|region|container_log_level"
    "|job_name|s3_output)|(?!sagemaker_).*"
)
_LAUNCHER = re.compile(
    "sagemaker_(mpi|parameter_server|distributed_dataparallel|pytorch_ddp|torch_distributed"
    "|pytorch_xla_multi_worker|multi_worker_mirrored_strategy)_enabled"
)
_TORCHRUN = "sagemaker_torch_distributed_enabled"
_PROGRAM_NAME = re.compile(
    r"(?!.*(^|/)\.\.?(/|$))[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*"
)
_RANK = re.compile(r"\[(?:rank|default)?(\d+)\]: ?")
_CHAINS = ("During handling of the above", "The above exception was")


class StartError(Exception):
    """Why the program cannot start, and what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message + (f"\nhint: {hint}" if hint else ""))


def main(arguments: "list[str]") -> int:
    """Train, serve, or execute another command; return the exit code."""
    base = os.environ.get(BASE_DIRECTORY, "/opt/ml")
    is_job = BASE_DIRECTORY in os.environ or os.path.isdir(f"{base}/input/config")
    if arguments[:1] == ["train"] and is_job:
        return train(base)
    if arguments[:1] == ["serve"]:
        if not os.access(SERVER, os.X_OK):
            return _print_error(StartError("the image has no model server", "use `danlu pack`"))
        arguments = [SERVER, *arguments[1:]]
    if not arguments:
        return _print_error(StartError("no command given, and the image has none"))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        _print_error(StartError(f"cannot execute {arguments[0]}: {error.strerror}"))
        return 127 if isinstance(error, FileNotFoundError) else 126


def train(base: str) -> int:
    """Run the program of a job whose directories are below ``base``; return its exit code."""
    # Blocked signals wait until they are asked for; process 1 would not get them at all.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_SIGNALS, signal.SIGCHLD))
    place = ""
    try:
        variables, properties = read_job(base, os.environ)
        host, hosts = properties["current_host"], properties["hosts"]
        place = f"rank {hosts.index(host)} of {len(hosts)} ({host}): "
        command, directory = choose_command(base, properties)
        os.makedirs(properties["output_data_dir"], exist_ok=True)
        os.makedirs(properties["model_dir"], exist_ok=True)
        received = wait_for_host(properties["master_hostname"])
        if received:
            return 128 + received
        environment = dict(build_rendezvous(properties), **os.environ)
        environment.update(variables)
        if directory:  # for programs in a subdirectory
            paths = filter(None, (directory, environment.get("PYTHONPATH")))
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        code, stopped, lines = run_program(command, directory, environment)
    except (StartError, OSError) as error:
        write_failure(base, f"{place}{error}")
        return _print_error(error)
    if code and not stopped:
        write_failure(base, place + describe_failure(command, code, lines))
    return code


def read_job(base: str, environ: Any) -> "tuple[dict[str, str], dict[str, Any]]":
    """Return the toolkit's variables, and the properties of its ``Environment``.

    Raises :class:`StartError` for files that are missing or invalid.
    """
    resources = _read_object(f"{base}/input/config/resourceconfig.json")
    channels = _read_object(f"{base}/input/config/inputdataconfig.json")
    hyperparameters = _read_object(f"{base}/input/config/hyperparameters.json")
    for name, value in hyperparameters.items():
        with suppress(ValueError, TypeError):
            hyperparameters[name] = json.loads(value)
    names = [name for name in hyperparameters if _SETTING.fullmatch(name)]
    settings = {name: hyperparameters.pop(name) for name in names}
    extra = {name: settings[name] for name in names if not _KNOWN_SETTING.fullmatch(name)}
    hosts, host = resources.get("hosts"), resources.get("current_host")
    if not isinstance(hosts, list) or host not in hosts:
        raise StartError(f"invalid resourceconfig.json: host {host!r} is not one of {hosts!r}")
    group = resources.get("current_group_name", "homogeneousCluster")
    launched = [group] if any(extra[name] for name in extra if _LAUNCHER.fullmatch(name)) else []
    launched = extra.get("sagemaker_distribution_instance_groups", launched)
    try:
        groups = {
            item["instance_group_name"]: item for item in resources.get("instance_groups", ())
        }
        group_hosts = groups[group]["hosts"] if group in groups else []
        nodes = [node for name in groups if name in launched for node in groups[name]["hosts"]]
    except (KeyError, TypeError) as error:
        raise StartError(f"invalid instance_groups in resourceconfig.json: {error}") from error
    nodes = nodes if groups else list(hosts)
    module = str(environ.get("SAGEMAKER_PROGRAM", settings.get("sagemaker_program")))
    instance_type = resources.get("current_instance_type", "local")
    paths = {name: f"{base}/input/data/{name}" for name in channels}
    shared = {
        "current_host": host,
        "current_instance_group": group,
        "current_instance_group_hosts": group_hosts,
        "current_instance_type": instance_type,
        "distribution_instance_groups": launched,
        "framework_module": environ.get("SAGEMAKER_TRAINING_MODULE"),
        "hosts": hosts,
        "input_config_dir": f"{base}/input/config",
        "input_data_config": channels,
        "input_dir": f"{base}/input",
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
        "log_level": settings.get("sagemaker_container_log_level", 20),
        "model_dir": f"{base}/model",
        "module_dir": str(settings.get("sagemaker_submit_directory", f"{base}/code")),
        "module_name": module[:-3] if module.endswith(".py") else module,
        "network_interface_name": resources.get("network_interface_name", "eth0"),
        "num_cpus": os.cpu_count(),
        "num_gpus": _count_gpus(),
        "num_neurons": _count_neurons(instance_type),
        "output_data_dir": f"{base}/output/data",
        "output_dir": f"{base}/output",
        "output_intermediate_dir": f"{base}/output/intermediate",
        "resource_config": resources,
        "user_entry_point": environ.get("SAGEMAKER_PROGRAM") or settings.get("sagemaker_program"),
    }  # type: dict[str, Any]
    parallel, first = environ.get("SM_HP_MP_PARAMETERS"), [*nodes, *hosts][0]
    properties = dict(
        shared,
        additional_framework_parameters=extra,
        channel_input_dirs=paths,
        distribution_hosts=nodes,
        hyperparameters=hyperparameters,
        is_master=host == first,
        is_modelparallel_enabled=parallel and parallel != "{}",
        is_smddpmprun_installed=shutil.which("smddpmprun") is not None,
        is_smddprun_installed=shutil.which("smddprun") is not None,
        job_name=environ.get("TRAINING_JOB_NAME"),
        master_hostname=first,
        topology=resources.get("topology", []),
    )
    shared.update(hps=hyperparameters, framework_params=extra, channels=sorted(channels))
    shared.update(training_env=properties, user_args=build_arguments(hyperparameters))
    shared.update({"topology": properties["topology"]} if properties["topology"] else {})
    shared.update((f"channel_{name}", path) for name, path in paths.items())
    shared.update((f"hp_{name}", value) for name, value in hyperparameters.items())
    return {f"SM_{name.upper()}": _encode_value(shared[name]) for name in shared}, properties


def build_arguments(hyperparameters: "dict[str, Any]") -> "list[str]":
    """Return hyperparameters as ``--name value``, or ``-n value`` for a name of one letter."""
    arguments = []
    for name, value in sorted(hyperparameters.items()):
        if isinstance(value, dict):
            value = ",".join(f"{key}={item}" for key, item in sorted(value.items()))
        arguments.append(("--" if len(name) > 1 else "-") + name if name else "")
        arguments.append("" if value is None else str(value))
    return arguments


def choose_command(base: str, properties: "dict[str, Any]") -> "tuple[list[str], str | None]":
    """Return the command to run, and its directory, None for the present one.

    It is the toolkit's program (``SAGEMAKER_PROGRAM``) or the image's command. Raises
    :class:`StartError` if there is neither, and for what needs the toolkit itself.
    """
    extra, name = properties["additional_framework_parameters"], properties["user_entry_point"]
    arguments, code = build_arguments(properties["hyperparameters"]), f"{base}/code"
    unsupported = [key for key in extra if _LAUNCHER.fullmatch(key) and extra[key]]
    if properties["framework_module"]:
        unsupported = ["SAGEMAKER_TRAINING_MODULE"]
    if unsupported not in ([], [_TORCHRUN]):
        raise StartError(f"{unsupported[0]} is not supported", "start processes in the program")
    if not name:
        command = json.loads(os.environ.get(COMMAND, "[]"))
        if command:
            return command + arguments, None
        raise StartError("no program to run", "set SAGEMAKER_PROGRAM, or a command of the image")
    if properties["module_dir"] != code:
        message = f"cannot fetch the program from {properties['module_dir']}"
        raise StartError(message, f"copy it to {code} in the image")
    if not _PROGRAM_NAME.fullmatch(str(name)) or not os.path.isfile(f"{code}/{name}"):
        raise StartError(f"program {name!r} not found in {code}", "copy it into the image")
    for file in ("requirements.txt", "setup.py"):
        if os.path.exists(f"{code}/{file}"):
            print(f"note: {file} is not installed: the image has its packages", file=sys.stderr)
    if name.endswith(".py"):
        launcher = ["torchrun"] if extra.get(_TORCHRUN) else [sys.executable, "--"]
        return [*launcher, name, *arguments], code
    if not os.access(f"{code}/{name}", os.X_OK):
        os.chmod(f"{code}/{name}", 0o755)
    # As with the toolkit, a script needs no line that names its interpreter.
    return ["/bin/sh", "-c", 'exec "./$0" "$@"', name, *arguments], code


def build_rendezvous(properties: "dict[str, Any]") -> "dict[str, str]":
    """Return the variables of torchrun and torch.distributed: those of a ``PyTorchJob``."""
    nodes = properties["distribution_hosts"] or properties["hosts"]
    host, first = properties["current_host"], properties["master_hostname"]
    if host not in nodes:
        return {}  # of an instance group that does not take part
    rank, size = str(nodes.index(host)), str(len(nodes))
    variables = {"MASTER_ADDR": first, "MASTER_PORT": _PORT, "RANK": rank, "WORLD_SIZE": size}
    variables.update({"PET_MASTER_ADDR": first, "PET_MASTER_PORT": _PORT, "PET_NODE_RANK": rank})
    processes = "auto" if properties["num_gpus"] else str(properties["num_neurons"] or 1)
    variables.update({"PET_NNODES": size, "PET_NPROC_PER_NODE": processes, "PYTHONUNBUFFERED": "1"})
    # gethostname() is the same on all hosts, so NCCL would take them for one.
    return {
        "NCCL_SOCKET_IFNAME": properties["network_interface_name"],
        "NCCL_HOSTID": host,
        **variables,
    }


def wait_for_host(host: str) -> int:
    """Wait until a name resolves, or a signal arrives; return that, or 0.

    Raises :class:`StartError` after the time limit.
    """
    limit = os.environ.get(HOST_TIMEOUT, "900")
    if not limit.isdigit():
        raise StartError(f"invalid {HOST_TIMEOUT}: {limit!r}", "set a number of seconds")
    end = time.monotonic() + int(limit)
    while True:
        try:
            socket.gethostbyname(host)
            return 0
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
        if time.monotonic() >= end:
            message = f"host {host} not found within {limit} seconds: {reason}"
            raise StartError(message, f"{HOST_TIMEOUT} is the limit")
        received = signal.sigtimedwait(_SIGNALS, _LOOKUP_SECONDS)
        if received:
            return received.si_signo


def run_program(
    command: "list[str]", directory: "str | None", environment: "dict[str, str]"
) -> "tuple[int, bool, list[str]]":
    """Run a command and forward signals to it.

    Return its exit code, whether a signal was forwarded, and its last lines on stderr.
    """
    unblock = lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ())  # noqa: E731
    options = {"cwd": directory, "env": environment, "preexec_fn": unblock}  # type: dict[str, Any]
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, **options)
    except (OSError, ValueError) as error:
        raise StartError(f"cannot start {command[0]}: {error}") from error
    tail, stopped = bytearray(), False
    reader = threading.Thread(target=_copy_errors, args=(process.stderr, tail), daemon=True)
    reader.start()
    while process.poll() is None:
        number = signal.sigwait((*_SIGNALS, signal.SIGCHLD))
        if number != signal.SIGCHLD:
            stopped = True
            process.send_signal(number)
    reader.join(_DRAIN_SECONDS)  # a process that the program left may keep the pipe open
    code = process.returncode
    lines = bytes(tail).decode("utf-8", "replace").splitlines()
    return code if code >= 0 else 128 - code, stopped, lines


def describe_failure(command: "list[str]", code: int, lines: "list[str]") -> str:
    """Return how the program ended, its first exception, and as many last lines as fit."""
    name = next((word for word in command if word.endswith((".py", ".sh"))), command[0])
    reason = f"{name} ended with exit code {code}"
    if code == 128 + signal.SIGKILL:
        reason += " (SIGKILL: perhaps out of memory)"
    head = f"{reason}\n{find_exception(lines)}".strip()[: MAX_FAILURE // 2]
    last = "\n".join(line for line in lines if line.strip())
    return f"{head}\n{last[-MAX_FAILURE // 3 :]}".strip()


def find_exception(lines: "list[str]") -> str:
    """Return the exception of the first traceback, with the rank that torchrun names."""
    found, inside, chained = "", False, False
    for line in lines:
        prefix = _RANK.match(line)
        text = line[prefix.end() :] if prefix else line
        if text.startswith("Traceback (most recent call last):"):
            if found and not chained:
                break
            inside, chained = True, False
        elif inside and text and not text[0].isspace():
            found, inside = (f"rank {prefix.group(1)}: " if prefix else "") + text, False
        elif text.startswith(_CHAINS):
            chained = True
    return found


def write_failure(base: str, text: str) -> None:
    """Write why the job failed, unless the program has said so itself."""
    with suppress(OSError):
        os.makedirs(f"{base}/output", exist_ok=True)
        with open(f"{base}/output/failure", "x", encoding="utf-8", errors="replace") as file:
            file.write(text[:MAX_FAILURE])


def _read_object(path: str) -> "dict[str, Any]":
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartError(f"cannot read {path}: {reason}") from error
    if not isinstance(value, dict):
        raise StartError(f"cannot read {path}: not an object")
    return value


def _encode_value(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _query_devices(*command: str) -> bytes:
    try:
        return subprocess.check_output(command)
    except (OSError, subprocess.CalledProcessError):
        return b""


def _count_gpus() -> int:
    lines = _query_devices("nvidia-smi", "--list-gpus").split(b"\n")
    return sum(line.startswith(b"GPU ") for line in lines)


def _count_neurons(instance_type: Any) -> int:
    if "trn2.48xlarge" in str(instance_type):
        return 64
    devices = json.loads(_query_devices("neuron-ls", "-j") or b"[]")
    return sum(device.get("nc_count", 0) for device in devices)


def _copy_errors(stream: Any, tail: bytearray) -> None:
    for data in iter(lambda: os.read(stream.fileno(), 1 << 16), b""):
        tail += data
        del tail[:-_MAX_TAIL]
        with suppress(OSError):
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()


def _print_error(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
