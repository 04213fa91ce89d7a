"""The program and real processes together: failures, Ctrl-C, what another terminal sees."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import Cli

pytestmark = pytest.mark.real

SCRIPT = """
import os, signal, sys, time
rank = os.environ["RANK"]
print("rank", rank, "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
open(f"said-{rank}", "w").close()
if "fail" in sys.argv and rank == "1":
    while not os.path.exists("said-0"):
        time.sleep(0.01)
    raise ValueError("boom")
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"pid-{rank}", "w").write(str(os.getpid()))
    time.sleep(600)
if "chatty" in sys.argv:
    open(f"pid-{rank}", "w").write(str(os.getpid()))
    while True:
        print("more")
        time.sleep(0.02)
if "kill" in sys.argv and rank == "0":
    os.kill(os.getpid(), signal.SIGKILL)
"""
TRAIN = ("train", "train.py", "--framework", "pytorch", "--host-python", "--name", "demo")


@pytest.fixture(autouse=True)
def script(home: Path) -> Iterator[None]:
    Path("train.py").write_text(SCRIPT)
    yield
    subprocess.run(
        [sys.executable, "-m", "danlu", "jobs", "rm", "--all", "--force", "-q"], check=False
    )


def start_danlu(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "danlu", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def is_dead(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_the_first_failure_is_named_with_a_command_that_reruns_it(program: Cli) -> None:
    result = program(*TRAIN, "--worker", "2", "--", "fail", "a b")
    assert result.code == 1
    assert "worker-0 │ rank 0 of 2 ['fail', 'a b']" in result.out.splitlines()
    assert "demo failed after" in result.err
    assert "worker-1 failed first: ValueError: boom (line 9 of train.py)\n" in result.err
    assert result.out.count("worker-1 │ ValueError: boom") == 1
    assert result.err.count("ValueError: boom") == 1
    hint = result.err.strip().splitlines()[-1].partition(": danlu ")[2]
    line = program(*shlex.split(hint)).out
    again = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert again.stdout == "rank 1 of 2 ['fail', 'a b']\n"
    assert "ValueError: boom" in again.stderr


def test_a_replica_that_lost_its_connection_is_not_the_one_that_failed_first(
    program: Cli,
) -> None:
    Path("train.py").write_text(
        "import os, pathlib, socket\n"
        "rank = int(os.environ['RANK'])\n"
        "if rank == 1:\n"
        "    server = socket.create_server(('127.0.0.1', 0))\n"
        "    pathlib.Path('port.new').write_text(str(server.getsockname()[1]))\n"
        "    os.rename('port.new', 'port')\n"
        "    peers = [server.accept()[0] for _ in range(2)]\n"
        # The connections close before Python prints the traceback.
        "    try:\n        raise ValueError('boom')\n"
        "    finally:\n        [peer.close() for peer in peers]\n"
        "while not pathlib.Path('port').exists():\n    pass\n"
        "peer = socket.create_connection(('127.0.0.1', int(pathlib.Path('port').read_text())))\n"
        "if not peer.recv(1):\n    raise ConnectionResetError('closed by peer')\n"
    )
    result = program(*TRAIN, "--worker", "3")
    assert result.code == 1
    assert ": worker-1 failed first: " in result.err, result.out + result.err
    shown = program("jobs", "show", "demo").out
    assert next(line for line in shown.splitlines() if "first failure" in line).split()[2] == (
        "worker-1"
    )


def test_a_module_runs_with_its_relative_imports_and_can_be_rerun(program: Cli) -> None:
    Path("pkg").mkdir()
    Path("pkg/__init__.py").write_text("")
    Path("pkg/common.py").write_text("WORD = 'boom'\n")
    Path("pkg/fit.py").write_text(
        "import os, pathlib, sys, time\nfrom .common import WORD\n"
        "print(__package__, sys.argv[1:], flush=True)\n"
        "printed = pathlib.Path('printed')\n"
        "if os.environ['RANK'] == '0':\n    printed.touch()\n    sys.exit()\n"
        # The job stops worker 0 as soon as worker 1 fails.
        "while not printed.exists():\n    time.sleep(0.01)\n"
        "raise SystemExit(WORD)\n"
    )
    options = ("--framework", "pytorch", "--host-python", "--name", "demo", "--worker", "2")
    result = program("train", "-m", "pkg.fit", *options, "--", "a b")
    assert result.code == 1
    assert "worker-0 │ pkg ['a b']" in result.out.splitlines()
    assert "worker-1 │ boom" in result.out.splitlines()
    hint = result.err.strip().splitlines()[-1].partition(": danlu ")[2]
    line = program(*shlex.split(hint)).out
    again = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout, again.stderr) == (1, "pkg ['a b']\n", "boom\n")


@pytest.mark.parametrize("module", [(), ("-m",)])
def test_arguments_and_variables_arrive_byte_for_byte(
    program: Cli, module: tuple[str, ...]
) -> None:
    Path("show.py").write_text("import os, sys\nprint(sys.argv[1:], os.environ['X'])\n")
    words = ("a$$b", "$$", "$(RANK)", "$$(RANK)", "$HOME", "{x}", "*", " ", "")
    target = ("-m", "show") if module else ("show.py",)
    result = program(
        "train", *target, "--host-python", "--framework", "pytorch", "--name", "demo",
        "-e", "X=$$ $(RANK)", "--", *words,
    )  # fmt: skip
    assert result.out == f"worker-0 │ {list(words)} $$ $(RANK)\n", result.err
    swept = program(
        "train", *target, "--host-python", "--framework", "pytorch", "-e", "X=", "--name", "sweep",
        "--sweep", "v=$$,$(RANK)", "--", "$$", "x/{v}",
    )  # fmt: skip
    assert swept.code == 0, swept.err
    logs = [program("jobs", "logs", f"sweep-{number}").out for number in (1, 2)]
    assert logs == [
        f"worker-0 │ {['$$', f'x/{value}', '--v', value]}\n" for value in ("$$", "$(RANK)")
    ]


def test_a_progress_bar_is_shown_while_it_runs_and_apart_from_the_next_line() -> None:
    Path("bar.py").write_text(
        "import os, sys, time\n"
        "for n in range(2):\n"
        "    os.write(2, b'\\r%d/2' % n)\n"
        "    while not os.path.exists(f'go{n}'): time.sleep(0.01)\n"
        "os.write(1, b'loss=0.5\\n')\n"
    )
    run = start_danlu("train", "bar.py", "--host-python", "--framework", "pytorch", "--name", "bar")
    assert run.stdout is not None
    assert run.stdout.readline() == "worker-0 │ 0/2\n"
    Path("go0").touch()
    wait_until(
        lambda: "1/2" in Path(os.environ["DANLU_HOME"], "jobs/bar/logs/worker-0.log").read_text()
    )
    Path("go1").touch()
    out, err = run.communicate(timeout=60)
    assert out.splitlines() == ["worker-0 │ 1/2", "worker-0 │ loss=0.5"], err


def test_a_killed_replica_is_named_with_its_signal(program: Cli) -> None:
    result = program(*TRAIN, "--worker", "2", "--", "kill")
    assert result.code == 1
    assert "worker-0 failed first: killed by SIGKILL (exit code 137)" in result.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_kills_replicas_that_ignore_sigterm_after_the_grace_period(
    number: signal.Signals, code: int
) -> None:
    run = start_danlu(*TRAIN, "--worker", "2", "--grace", "1", "--", "deaf")
    pids = [Path("pid-0"), Path("pid-1")]
    wait_until(lambda: all(pid.is_file() and pid.read_text() for pid in pids))
    assert run.stderr is not None
    # The message names the replicas that the command has seen running.
    awaited = {"worker-0: running", "worker-1: running"}
    while awaited:
        awaited.discard(run.stderr.readline().strip())
    run.send_signal(number)
    _, output = run.communicate(timeout=60)
    assert run.returncode == code
    assert "stopping: waiting up to 1 s for worker-0, worker-1" in output
    assert "worker-0, worker-1 had not ended and were killed" in output
    wait_until(lambda: all(is_dead(int(pid.read_text())) for pid in pids))


def test_a_second_interrupt_waits_for_nothing() -> None:
    run = start_danlu(*TRAIN, "--worker", "1", "--grace", "600", "--", "deaf")
    wait_until(lambda: Path("pid-0").is_file() and bool(Path("pid-0").read_text()))
    assert run.stderr is not None
    run.send_signal(signal.SIGINT)
    assert any("stopping: waiting up to 600 s" in line for line in iter(run.stderr.readline, ""))
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode == 130
    wait_until(lambda: is_dead(int(Path("pid-0").read_text())))


def test_a_detached_job_is_shown_and_stopped_by_another_process(program: Cli) -> None:
    result = program(*TRAIN, "--worker", "1", "--detach", "--", "deaf")
    assert (result.code, result.out) == (0, "demo\n")
    wait_until(lambda: Path("pid-0").is_file() and bool(Path("pid-0").read_text()))
    assert "demo" in program("jobs", "ls").out
    assert program("jobs", "logs", "demo", "worker-0").out == "rank 0 of 1 ['deaf']\n"
    assert program("jobs", "rm", "demo").code == 2
    follower = start_danlu("jobs", "logs", "demo", "--follow")
    assert program("jobs", "stop", "demo", "--grace", "1").code == 0
    out, _ = follower.communicate(timeout=60)
    assert out == "worker-0 │ rank 0 of 1 ['deaf']\n"
    assert is_dead(int(Path("pid-0").read_text()))
    assert program("jobs", "wait", "demo").code == 1
    assert program("jobs", "rm", "demo").code == 0
    assert program("jobs", "show", "demo").code == 2


def test_a_closed_stdout_ends_the_job() -> None:
    run = start_danlu(*TRAIN, "--worker", "1", "--", "chatty")
    assert run.stdout is not None
    assert run.stderr is not None
    assert run.stdout.readline() == "worker-0 │ rank 0 of 1 ['chatty']\n"
    run.stdout.close()
    assert run.wait(timeout=60) == 141
    assert "defect" not in run.stderr.read()
    run.stderr.close()
    wait_until(lambda: is_dead(int(Path("pid-0").read_text())), 5.0)


def test_a_terminal_shows_the_table_and_is_restored() -> None:
    pytest.importorskip("pty")
    import pty

    ours, other = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "danlu", *TRAIN, "--worker", "2"],
        stdin=other,
        stdout=other,
        stderr=other,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(other)
    output = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # EIO: nobody has the other side any more
            break
        output += piece
        if not piece:
            break
    os.close(ours)
    assert run.wait(timeout=60) == 0
    text = output.decode()
    assert "REPLICA" in text
    assert "rank 1 of 2" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "demo succeeded" in text[text.rindex("\x1b[?25h") :]


TRAIN_JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: staged}
spec:
  mlPolicy: {torch: {}}
  template:
    spec:
      failurePolicy: {maxRestarts: 2}
      replicatedJobs:
      - name: dataset-initializer
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
          spec:
            backoffLimit: 0
            template:
              spec:
                containers:
                - name: dataset-initializer
                  image: data:1
                  command: [sh, -c, 'echo "data of $STORAGE_URI" > data']
                  volumeMounts: [{name: initializer, mountPath: /workspace}]
                volumes: [{name: initializer, emptyDir: {}}]
      - name: node
        dependsOn: [{name: dataset-initializer, status: Complete}]
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            backoffLimit: 0
            template: {spec: {containers: [{name: node, image: train:1}]}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: staged}
spec:
  runtimeRef: {kind: TrainingRuntime, name: staged}
  initializer: {dataset: {storageUri: "file:///digits"}}
  trainer:
    numNodes: 2
    command: [python3, node.py]
"""


def test_the_nodes_of_a_train_job_follow_its_initializer_and_restart_together(
    program: Cli,
) -> None:
    # Node 1 fails once, while node 0 waits for it as in a rendezvous.
    Path("node.py").write_text(
        "import os, pathlib, time\n"
        "rank, mark = os.environ['PET_NODE_RANK'], pathlib.Path('has-failed')\n"
        "restarted = mark.exists()\n"
        "print(pathlib.Path('data').read_text().strip(), 'at', rank, restarted, flush=True)\n"
        "if rank == '1' and not restarted:\n    mark.touch()\n    raise ValueError('boom')\n"
        "while not restarted:\n    time.sleep(0.01)\n"
    )
    Path("job.yaml").write_text(TRAIN_JOB)
    result = program("train", "-f", "job.yaml", "--host-python")
    assert result.code == 0, result.err
    for rank in "01":
        assert f"data of file:///digits at {rank} True" in result.out


V1_JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: converted
  annotations: {danlu.dev/restart-policy: Job}
spec:
  nprocPerNode: "1"
  runPolicy: {backoffLimit: 2}
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers: [{name: pytorch, image: "train:1", command: [python3, node.py]}]
    Worker: *replica
"""


def test_a_converted_job_runs_with_its_nodes_and_its_restarts(program: Cli) -> None:
    # Node 1 fails once, while node 0 waits for it as in a rendezvous.
    Path("node.py").write_text(
        "import os, pathlib, time\n"
        "names = 'PET_NODE_RANK', 'PET_NNODES', 'PET_NPROC_PER_NODE'\n"
        "mark = pathlib.Path('has-failed')\n"
        "restarted = mark.exists()\n"
        "print('node', *(os.environ[name] for name in names), restarted, flush=True)\n"
        "if os.environ['PET_NODE_RANK'] == '1' and not restarted:\n"
        "    mark.touch()\n    raise ValueError('boom')\n"
        "while not restarted:\n    time.sleep(0.01)\n"
    )
    Path("v1.yaml").write_text(V1_JOB)
    converted = program("convert", "v1.yaml")
    assert converted.code == 1, converted.err
    Path("converted.yaml").write_text(converted.out)
    result = program("train", "-f", "converted.yaml", "--host-python")
    assert result.code == 0, result.err
    for rank in "01":
        assert f"node {rank} 2 1 True" in result.out
