"""Start the replica of this host in a SageMaker training job.

It is next to ``sagemaker.py``, which runs it with the variables of SageMaker and torchrun, in the
input channel of the job. ``job.json`` says which command and variables each host has. The code of
the project is copied to the working directory, where the program may write. The program is copied
into jobs alone.
"""

import json
import os
import shutil
import sys

#: The host's name, such as ``algo-1``: SageMaker gives it to ``sagemaker.py``.
HOST = "SM_CURRENT_HOST"
#: Where the replica writes an exception, next to the value that it returns.
RAISED_FILE = "DANLU_RAISED_FILE"
JOB, CODE = "job.json", "code"


def main() -> int:
    """Execute the command of this host; return an exit code only if that fails."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, JOB), encoding="utf-8") as file:
        job = json.load(file)
    replica = job["replicas"][os.environ[HOST]]
    os.environ.update(replica["variables"])
    if RAISED_FILE in os.environ:
        os.makedirs(os.path.dirname(os.environ[RAISED_FILE]), exist_ok=True)
    command, directory = replica["command"], replica["directory"]
    if directory:
        os.makedirs(directory, exist_ok=True)
        copy_code(os.path.join(here, CODE), directory, job["executables"])
        os.chdir(directory)
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: cannot execute {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def copy_code(source: str, directory: str, executables: "list[str]") -> None:
    """Copy the files of ``source`` into ``directory``; objects in S3 have no modes."""
    if os.path.isdir(source):
        shutil.copytree(source, directory, copy_function=shutil.copyfile, dirs_exist_ok=True)
    for path in executables:
        os.chmod(os.path.join(directory, path), 0o755)


if __name__ == "__main__":
    sys.exit(main())
