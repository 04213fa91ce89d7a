"""Shell scripts that run in an environment's pod (POSIX, also BusyBox)."""

from __future__ import annotations

from danlu.engine import container_scripts
from danlu.engine.environment_directory import WAITING_MARK

#: A directory in memory, for files of danlu.
RUN_DIRECTORY = "/run/danlu"

#: The first process: waits until nobody has renewed the pod for ``$1`` seconds, because a pod whose
#: supervisor is gone would keep its GPUs for ever.
HOLD_SCRIPT = rf"""trap 'exit 0' TERM INT
idle=0
while [ "$idle" -lt "$1" ]; do
  sleep 05 & wait $!
  if [ -e {WAITING_MARK} ]; then rm -f {WAITING_MARK}; idle=0
  else idle=$((idle + 5)); fi
done"""

#: Renews the pod with each line of its input. With ``$1``, what an earlier supervisor started is
#: killed, because it has lost its streams.
RENEW_SCRIPT = rf"""[ -z "$1" ] || kill -KILL -1 2>/dev/null
echo ready
while read -r line; do : >{WAITING_MARK}; done"""

#: Runs the script ``$2`` with the other arguments in a shell that ``$1`` marks for ``FIND_SCRIPT``,
#: which sees the variables that a process started with: programs of BusyBox, such as ``yes``, may
#: run in the process of their shell.
MARK_SCRIPT = """DANLU_EXEC=$1; export DANLU_EXEC
script=$2; shift 2
exec /bin/sh -c "$script" danlu "$@"
"""

#: Runs a program, or without arguments the login shell. ``$1`` is a file with variables, which is
#: removed, and ``$2`` its working directory.
EXEC_SCRIPT = rf"""if [ -n "$1" ]; then . "$1"; rm -f "$1"; fi
if [ -n "$2" ]; then cd "$2" || exit 125; fi
shift 2
if [ $# -gt 0 ]; then
{container_scripts.EXEC_SCRIPT}fi
"""

#: Writes its input to a file that only its owner may read.
WRITE_SCRIPT = 'umask 077; cat >"$1"'
