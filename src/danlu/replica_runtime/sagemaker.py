"""The entrypoint of an image that can also run as a SageMaker training job.

``train`` runs the program as SageMaker's training toolkit does (``sagemaker-training`` 5.1.4): with
its ``SM_…`` variables and arguments, those that version 3 of SageMaker's SDK sets, the variables by
which a framework's nodes find one another, and ``output/failure``, which says why the job failed.
``serve`` starts the image's model server. Other commands are executed as they are. The program is
copied into images without this package, together with ``node_templates.json`` and ``mpi_hosts.py``.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

#: Where SageMaker's directories are (the toolkit's variable), ``/opt/ml`` by default.
BASE_DIRECTORY = "SAGEMAKER_BASE_DIR"
#: The image's command as JSON: SageMaker replaces it by ``train``.
COMMAND = "DANLU_TRAIN_COMMAND"
#: The framework whose nodes the hosts are; without it, of all whose variables do not conflict.
FRAMEWORK = "DANLU_TRAIN_FRAMEWORK"
#: How many seconds to wait for the other hosts.
HOST_TIMEOUT = "DANLU_HOST_TIMEOUT"
SERVER = "/usr/local/bin/serve"
#: How much of ``output/failure`` SageMaker shows, in characters.
MAX_FAILURE = 1024

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
#: Where a framework's files are: Open MPI looks for its agent at the same path on every host.
_FILES = "/tmp/danlu-nodes"
_PORT = "7777"
_MPI_PORT = "7778"
_LOOKUP_SECONDS = 0.1
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
_FRAMEWORKS = {
    "sagemaker_mpi_enabled": "mpi",
    "sagemaker_multi_worker_mirrored_strategy_enabled": "tensorflow",
    _TORCHRUN: "pytorch",
}
_MPI_OPTIONS = "sagemaker_mpi_custom_mpi_options"
_MPI_SLOTS = "sagemaker_mpi_num_of_processes_per_host"
_REFERENCE = re.compile(r'\$\(([A-Z]+)(?: ([0-9]+) ("(?:[^"\\]|\\.)*"))?\)')
#: The longest argument and variable that Linux passes to a program, in bytes (MAX_ARG_STRLEN).
_MAX_STRING = (128 << 10) - 1
#: Instance types with the Elastic Fabric Adapter, as in the toolkit and the SDK.
_EFA_RDMA_TYPES = frozenset(
    ("ml.p4d.24xlarge", "ml.p4de.24xlarge", "ml.p5.48xlarge", "ml.p5e.48xlarge", "ml.trn1.32xlarge")
)
_EFA_TYPES = _EFA_RDMA_TYPES | {
    "ml.g4dn.8xlarge",
    "ml.g4dn.12xlarge",
    "ml.g5.48xlarge",
    "ml.p3dn.24xlarge",
}
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
    if is_job and (arguments[:1] == ["train"] or is_own_command(arguments)):
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


def is_own_command(arguments: "list[str]") -> bool:
    """Return whether this is the image's command: local mode of the SDK's version 3 keeps it."""
    with suppress(ValueError):
        return bool(arguments) and arguments == json.loads(os.environ.get(COMMAND, "[]"))
    return False


def train(base: str) -> int:
    """Run the program of a job whose directories are below ``base``; return its exit code."""
    # Blocked signals wait until they are asked for; process 1 would not get them at all.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_SIGNALS, signal.SIGCHLD))
    place = ""
    try:
        variables, properties = read_job(base, os.environ)
        host, hosts = properties["current_host"], properties["hosts"]
        place = f"rank {hosts.index(host)} of {len(hosts)} ({host}): "
        framework = choose_framework(properties, os.environ)
        command, directory = choose_command(base, properties, framework)
        create_directories(
            properties["output_data_dir"], properties["model_dir"], f"{base}/checkpoints"
        )
        received = wait_for_hosts(hosts)
        if received:
            return 128 + received
        environment = build_rendezvous(properties, framework, _FILES)
        # What programs find under danlu's other drivers.
        environment["DANLU_MODEL_DIR"] = properties["model_dir"]
        environment["DANLU_CHECKPOINT_DIR"] = f"{base}/checkpoints"
        environment.update(os.environ)
        environment.update(variables)
        started = command
        if framework == "mpi":
            started = build_mpi_command(command, properties, _FILES)
        if directory:  # for programs in a subdirectory
            paths = filter(None, (directory, environment.get("PYTHONPATH")))
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        code, stopped, lines = run_program(started, directory, environment)
    except (StartError, OSError) as error:
        write_result(base, "failure", f"{place}{error}")
        return _print_error(error)
    if not code:
        write_result(base, "success", "")
    elif not stopped:
        write_result(base, "failure", place + describe_failure(command, code, lines))
    return code


def create_directories(*paths: str) -> None:
    """Create what SageMaker does not; raise :class:`StartError` if that is impossible."""
    for path in paths:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            hint = "SageMaker expects images that run as root" if os.getuid() else ""
            raise StartError(f"cannot create {path}: {error.strerror}", hint) from error


def read_job(base: str, environ: Any) -> "tuple[dict[str, str], dict[str, Any]]":
    """Return the variables of the toolkit and the SDK, and the toolkit's ``Environment``.

    Raises :class:`StartError` for files that are missing or invalid.
    """
    resources = _read_object(f"{base}/input/config/resourceconfig.json")
    channels = _read_object(f"{base}/input/config/inputdataconfig.json")
    hyperparameters = _read_object(f"{base}/input/config/hyperparameters.json")
    for name, value in hyperparameters.items():
        if "=" in name or "\0" in f"{name}{value}":
            message = f"hyperparameter {name!r} cannot be a variable: it contains '=' or NUL"
            raise StartError(message, "rename it, or put the value in a file of a channel")
        with suppress(ValueError, TypeError, RecursionError):
            hyperparameters[name] = json.loads(value)
    names = [name for name in hyperparameters if _SETTING.fullmatch(name)]
    settings = {name: hyperparameters.pop(name) for name in names}
    extra = {name: settings[name] for name in names if not _KNOWN_SETTING.fullmatch(name)}
    hosts, host = _read_hosts(resources)
    group = resources.get("current_group_name", "homogeneousCluster")
    launched = [group] if any(extra[name] for name in extra if _LAUNCHER.fullmatch(name)) else []
    launched = extra.get("sagemaker_distribution_instance_groups", launched)
    groups, group_hosts, nodes = _read_groups(resources, group, launched)
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
    # The SDK's names; where the toolkit has one too, it is the same value.
    sdk = {
        "input_data_dir": f"{base}/input/data",
        "master_addr": first,
        "master_port": int(_PORT),
    }
    properties.update(sdk)
    shared.update(
        sdk,
        current_host_rank=sorted(hosts).index(host),
        host_count=len(hosts),
        output_failure=f"{base}/output/failure",
    )
    shared.update(hps=hyperparameters, framework_params=extra, channels=sorted(channels))
    shared.update(training_env=properties, user_args=build_arguments(hyperparameters))
    shared.update({"topology": properties["topology"]} if properties["topology"] else {})
    shared.update((f"channel_{name}", path) for name, path in paths.items())
    shared.update(
        (f"hp_{name.replace('-', '_')}", hyperparameters[name]) for name in hyperparameters
    )
    shared.update((f"hp_{name}", value) for name, value in hyperparameters.items())
    variables = {f"SM_{name.upper()}": _encode_value(shared[name]) for name in shared}
    region = environ.get("AWS_DEFAULT_REGION") or environ.get("AWS_REGION")
    variables["CURRENT_HOST"] = str(host)
    variables["SAGEMAKER_JOB_NAME"] = _encode_value(settings.get("sagemaker_job_name"))
    variables["SAGEMAKER_REGION"] = _encode_value(settings.get("sagemaker_region", region))
    return variables, properties


def _read_hosts(resources: "dict[str, Any]") -> "tuple[list[str], str]":
    """Return the names of all hosts, and of this one."""
    hosts, host = resources.get("hosts"), resources.get("current_host")
    if not isinstance(hosts, list) or host not in hosts:
        raise StartError(f"invalid resourceconfig.json: host {host!r} is not one of {hosts!r}")
    if not all(isinstance(name, str) and name for name in hosts) or len({*hosts}) < len(hosts):
        raise StartError(f"invalid resourceconfig.json: hosts are {hosts!r}")
    return hosts, str(host)


def _read_groups(
    resources: "dict[str, Any]", group: Any, launched: Any
) -> "tuple[dict[str, Any], list[str], list[str]]":
    """Return instance groups by name, the hosts of ``group``, and those that a launcher uses."""
    try:
        groups = {
            item["instance_group_name"]: item for item in resources.get("instance_groups", ())
        }
        group_hosts = groups[group]["hosts"] if group in groups else []
        nodes = [node for name in groups if name in launched for node in groups[name]["hosts"]]
    except (KeyError, TypeError) as error:
        raise StartError(f"invalid instance_groups in resourceconfig.json: {error}") from error
    nodes = nodes if groups else list(resources["hosts"])
    if not {*nodes} <= {*resources["hosts"]}:
        raise StartError(f"invalid resourceconfig.json: not all of {nodes!r} are in hosts")
    return groups, group_hosts, nodes


def build_arguments(hyperparameters: "dict[str, Any]") -> "list[str]":
    """Return hyperparameters as ``--name value``, or ``-n value`` for a name of one letter."""
    arguments = []
    for name, value in sorted(hyperparameters.items()):
        if isinstance(value, dict):
            value = ",".join(f"{key}={item}" for key, item in sorted(value.items()))
        arguments.append(("--" if len(name) > 1 else "-") + name if name else "")
        arguments.append("" if value is None else str(value))
    return arguments


def choose_framework(properties: "dict[str, Any]", environ: Any) -> str:
    """Return the framework whose nodes the hosts are, or an empty name.

    It is the toolkit's switch among the hyperparameters, else :data:`FRAMEWORK`. Raises
    :class:`StartError` for what needs the toolkit itself.
    """
    extra = properties["additional_framework_parameters"]
    switches = [key for key in extra if _LAUNCHER.fullmatch(key) and extra[key]]
    unsupported = [key for key in switches if key not in _FRAMEWORKS]
    if properties["framework_module"]:
        unsupported = ["SAGEMAKER_TRAINING_MODULE"]
    if unsupported:
        raise StartError(f"{unsupported[0]} is not supported", "start processes in the program")
    if len(switches) > 1:
        raise StartError(f"cannot combine {' and '.join(switches)}", "leave one of them out")
    name = _FRAMEWORKS[switches[0]] if switches else environ.get(FRAMEWORK, "")
    known = _read_object(f"{_DIRECTORY}/node_templates.json")
    if name and name not in known:
        raise StartError(f"unknown framework {name!r}", f"{FRAMEWORK} is one of {', '.join(known)}")
    takes_part = properties["current_host"] in _list_nodes(properties)
    return "" if name == "mpi" and not takes_part else name


def choose_command(
    base: str, properties: "dict[str, Any]", framework: str
) -> "tuple[list[str], str | None]":
    """Return the command to run, and its directory, None for the present one.

    It is the toolkit's program (``SAGEMAKER_PROGRAM``) or the image's command. Raises
    :class:`StartError` if there is neither, and for what needs the toolkit itself.
    """
    extra, name = properties["additional_framework_parameters"], properties["user_entry_point"]
    arguments, code = build_arguments(properties["hyperparameters"]), f"{base}/code"
    torchrun = bool(extra.get(_TORCHRUN))
    if not name:
        text = os.environ.get(COMMAND, "[]")
        try:
            command = json.loads(text)
        except ValueError:
            command = None
        if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
            raise StartError(f"invalid {COMMAND}: {text!r}", "set a list of words in JSON")
        if not command:
            hint = "set SAGEMAKER_PROGRAM, or a command of the image"
            raise StartError("no program to run", hint)
        if torchrun and not any(os.path.basename(word) == "torchrun" for word in command):
            command = ["torchrun", "--no-python", *command]
        return command + arguments, None
    if properties["module_dir"] != code:
        message = f"cannot fetch the program from {properties['module_dir']}"
        raise StartError(message, f"copy it to {code} in the image")
    if not _PROGRAM_NAME.fullmatch(str(name)) or not os.path.isfile(f"{code}/{name}"):
        raise StartError(f"program {name!r} not found in {code}", "copy it into the image")
    for file in ("requirements.txt", "setup.py"):
        if os.path.exists(f"{code}/{file}"):
            print(f"note: {file} is not installed: the image has its packages", file=sys.stderr)
    if name.endswith(".py"):
        launcher = [sys.executable, "--"]
        if torchrun:
            launcher = ["torchrun"]
        elif framework == "mpi" and find_spec("mpi4py"):
            # An exception then ends all ranks; else they would wait for this one.
            launcher = [sys.executable, "-m", "mpi4py"]
        return [*launcher, name, *arguments], code
    if not os.access(f"{code}/{name}", os.X_OK):
        os.chmod(f"{code}/{name}", 0o755)
    # As with the toolkit, a script needs no line that names its interpreter.
    return ["/bin/sh", "-c", 'exec "./$0" "$@"', name, *arguments], code


def build_rendezvous(
    properties: "dict[str, Any]", framework: str, directory: str
) -> "dict[str, str]":
    """Return the variables of the nodes of a framework, and of libraries that connect hosts.

    Its files are written to a directory. Without a framework the variables are those of all that
    start no processes themselves: they do not contradict one another.
    """
    host, interface = properties["current_host"], properties["network_interface_name"]
    # gethostname() is the same on all hosts, so these would take them for one.
    variables = {"HOROVOD_HOSTNAME": host, "NCCL_HOSTID": host}
    # The SDK's local mode names an interface that containers do not have.
    has_interface = any(interface == name for _, name in socket.if_nameindex())
    if has_interface:
        for library in ("GLOO", "NCCL", "TP"):
            variables[f"{library}_SOCKET_IFNAME"] = interface
    nodes = _list_nodes(properties)
    if host not in nodes:
        return variables  # of an instance group that does not take part
    known = _read_object(f"{_DIRECTORY}/node_templates.json")
    chosen = [known[framework]] if framework else [t for t in known.values() if "command" not in t]
    kind = "single" if len(nodes) == 1 else "other" if nodes.index(host) else "first"
    for templates in chosen:
        for name, text in templates[kind].items():
            variables[name] = fill_template(text, properties, directory)
        for name, text in templates.get("files", {}).items():
            create_directories(directory)
            agent = (
                f"#!/bin/sh\nexec '{sys.executable}' -I {_DIRECTORY}/mpi_hosts.py exec {_MPI_PORT}"
            )
            text = fill_template(f'{agent} "$@"\n' if text is None else text, properties, directory)
            with open(f"{directory}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(file.name, 0o755)
    if "PET_NPROC_PER_NODE" in variables and not properties["num_gpus"]:
        variables["PET_NPROC_PER_NODE"] = str(properties["num_neurons"] or 1)
    extra, kind = properties["additional_framework_parameters"], properties["current_instance_type"]
    if framework == "mpi" or extra.get(_TORCHRUN):
        if kind in _EFA_TYPES:
            variables.update(FI_PROVIDER="efa", NCCL_PROTO="simple")
        if kind in _EFA_RDMA_TYPES:
            variables.update(FI_EFA_USE_DEVICE_RDMA="1", RDMAV_FORK_SAFE="1")
    if framework == "mpi":
        # As the toolkit's options of mpirun: one process may use all cores, and a network that
        # other hosts do not have is not tried.
        variables["OMPI_MCA_hwloc_base_binding_policy"] = "none"
        variables["PRTE_MCA_hwloc_default_binding_policy"] = "none"
        # Else Open MPI 5 takes the first host, whose gethostname() is another, for a third one.
        variables["PRTE_MCA_prte_do_not_resolve"] = "0"
        for layer in ("OMPI_MCA_btl_tcp", "OMPI_MCA_oob_tcp", "PRTE_MCA_prte"):
            if has_interface:
                variables[f"{layer}_if_include"] = interface
    return variables


def fill_template(text: str, properties: "dict[str, Any]", directory: str) -> str:
    """Return what a template of ``node_templates.json`` means on this host."""
    nodes, slots = _list_nodes(properties), _count_slots(properties)
    values = {
        "DIRECTORY": directory,
        "FIRST": nodes[0],
        "PROCESSES": str(slots * len(nodes)),
        "RANK": str(nodes.index(properties["current_host"])),
        "SIZE": str(len(nodes)),
        "SLOTS": str(slots),
    }

    def replace(found: "re.Match[str]") -> str:
        name, start, separator = found.groups()
        if start is None:
            return values[name]
        return _REFERENCE.sub(replace, json.loads(separator)).join(nodes[int(start) :])

    return _REFERENCE.sub(replace, text)


def build_mpi_command(
    command: "list[str]", properties: "dict[str, Any]", directory: str
) -> "list[str]":
    """Return what starts a command's processes on all nodes, or waits until the first has."""
    nodes, extra = _list_nodes(properties), properties["additional_framework_parameters"]
    program = [sys.executable, "-I", f"{_DIRECTORY}/mpi_hosts.py"]
    if properties["current_host"] != nodes[0]:
        return [*program, "wait", _MPI_PORT, nodes[0]]
    words = [
        fill_template(word, properties, directory)
        for word in _read_object(f"{_DIRECTORY}/node_templates.json")["mpi"]["command"]
    ]
    number = _read_number(extra, "sagemaker_mpi_num_processes")
    if number:
        words[words.index("-np") + 1] = str(number)
    text = str(extra.get(_MPI_OPTIONS) or "")
    try:
        options = shlex.split(re.sub(r"--NCCL_DEBUG[ =](\S+)", r"-x NCCL_DEBUG=\1", text))
    except ValueError as error:
        raise StartError(f"invalid {_MPI_OPTIONS}: {error}: {text!r}") from error
    return [
        *program,
        "launch",
        _MPI_PORT,
        ",".join(nodes[1:]),
        *words,
        *options,
        *command,
    ]


def wait_for_hosts(hosts: "list[str]") -> int:
    """Wait until all names resolve, or a signal arrives; return that, or 0.

    Raises :class:`StartError` after the time limit.
    """
    limit = os.environ.get(HOST_TIMEOUT, "900")
    if not re.fullmatch("[0-9]{1,8}", limit):
        raise StartError(f"invalid {HOST_TIMEOUT}: {limit!r}", "set a number of seconds")
    end = time.monotonic() + int(limit)
    waiting = list(hosts)
    while waiting:
        try:
            socket.gethostbyname(waiting[0])
            del waiting[0]
            continue
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
        if time.monotonic() >= end:
            message = f"host {waiting[0]} not found within {limit} seconds: {reason}"
            raise StartError(message, f"{HOST_TIMEOUT} is the limit")
        received = signal.sigtimedwait(_SIGNALS, _LOOKUP_SECONDS)
        if received:
            return received.si_signo
    return 0


def run_program(
    command: "list[str]", directory: "str | None", environment: "dict[str, str]"
) -> "tuple[int, bool, list[str]]":
    """Run a command and forward signals to it.

    Return its exit code, whether a signal was forwarded, and its last lines on stderr.
    """
    texts = [(f"the argument {word[:20]!r}…", word) for word in command]
    texts.extend((f"the variable {name}", f"{name}={environment[name]}") for name in environment)
    for shown, text in texts:
        try:
            length = len(os.fsencode(text))
        except UnicodeError as error:
            message = f"cannot start {command[0]}: {shown!a} is not valid text"
            raise StartError(message) from error
        if length > _MAX_STRING:
            message = f"cannot start {command[0]}: {shown} has {length} bytes, more than Linux's"
            hint = "put long hyperparameters in a file of a channel"
            raise StartError(f"{message} {_MAX_STRING}", hint)
    unblock = lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ())  # noqa: E731
    options = {"cwd": directory, "env": environment, "preexec_fn": unblock}  # type: dict[str, Any]
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, **options)
    except (OSError, ValueError) as error:
        raise StartError(f"cannot start {command[0]}: {error}") from error
    tail, stopped, code = bytearray(), False, None
    reader = threading.Thread(target=_copy_errors, args=(process.stderr, tail), daemon=True)
    reader.start()
    while code is None:
        code = _reap_processes(process.pid)
        number = signal.SIGCHLD if code is not None else signal.sigwait((*_SIGNALS, signal.SIGCHLD))
        if number != signal.SIGCHLD:
            stopped = True
            os.kill(process.pid, number)
    process.returncode = code  # it was reaped here
    reader.join(_DRAIN_SECONDS)  # a process that the program left may keep the pipe open
    lines = bytes(tail).decode("utf-8", "replace").splitlines()
    return code, stopped, lines


def _reap_processes(program: int) -> "int | None":
    """Reap what has ended, as process 1 also orphans; return the program's exit code, if it has."""
    result = None
    with suppress(ChildProcessError):
        while True:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                break
            if child == program:
                killed = os.WIFSIGNALED(status)
                result = 128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
    return result


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


def write_result(base: str, name: str, text: str) -> None:
    """Write why the job failed, unless the program has said so itself, or that it succeeded."""
    path = f"{base}/output/{name}"
    try:
        os.makedirs(f"{base}/output", exist_ok=True)
        with suppress(FileExistsError), open(path, "x", encoding="utf-8", errors="replace") as file:
            file.write(text[:MAX_FAILURE])
    except OSError as error:
        print(f"warning: cannot write {path}: {error.strerror}", file=sys.stderr)


def _list_nodes(properties: "dict[str, Any]") -> "list[str]":
    """Return the hosts that run the program together."""
    return list(properties["distribution_hosts"] or properties["hosts"])


def _count_slots(properties: "dict[str, Any]") -> int:
    """Return the number of MPI's processes on each host."""
    number = _read_number(properties["additional_framework_parameters"], _MPI_SLOTS)
    return int(number or properties["num_gpus"] or properties["num_neurons"] or 1)


def _read_number(settings: "dict[str, Any]", name: str) -> int:
    """Return a number of processes, 0 if it is not set."""
    value = settings.get(name) or 0
    if not re.fullmatch("[0-9]{1,6}", str(value)):
        raise StartError(f"{name} cannot be {value!r}", "set a number")
    return int(value)


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
    output = _query_devices("neuron-ls", "-j") or b"[]"
    try:
        return sum(device.get("nc_count", 0) for device in json.loads(output.decode()))
    except (ValueError, TypeError, AttributeError):
        shown = output[:100].decode("utf-8", "replace")
        raise StartError(f"cannot read the answer of neuron-ls -j: {shown!r}") from None


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
