"""Shell scripts that run in containers of all engines (POSIX, also BusyBox)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

_VARIABLE_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")

#: Printed by :data:`HOLD_SCRIPT` when programs can be started.
READY_LINE = b"danlu: ready"

#: The first process: adds the user ``$1`` with the ids ``$2:$3`` and the home ``$4`` if given, and
#: waits until its input ends, because nobody would run services and ``exec`` without a supervisor.
#: A shell gives background commands no input unless it has another number.
HOLD_SCRIPT = r"""trap 'exit 0' TERM
exec 3<&0 </dev/null
if [ -n "$1" ]; then
  if grep -q "^$1:" /etc/passwd; then
    sed -i "s|^\($1:[^:]*\):[0-9]*:[0-9]*:|\1:$2:$3:|" /etc/passwd
  elif ! grep -q "^[^:]*:[^:]*:$2:" /etc/passwd; then
    shell=/bin/sh; [ -x /bin/bash ] && shell=/bin/bash
    echo "$1:x:$2:$3::$4:$shell" >>/etc/passwd
  fi
  grep -q "^[^:]*:[^:]*:$3:" /etc/group || echo "$1:x:$3:" >>/etc/group
  mkdir -p "$4" && chown -R "$2:$3" "$4"
  if [ -d /etc/sudoers.d ] && [ ! -e /etc/sudoers.d/danlu ]; then
    echo "$1 ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/danlu && chmod 440 /etc/sudoers.d/danlu
  fi
fi
echo 'danlu: ready'
cat -- - <&3 >/dev/null & wait $!"""

#: Runs a program, so that one that cannot be found gives 127 as in shells.
EXEC_SCRIPT = r"""command -v -- "$1" >/dev/null || [ -e "$1" ] || {
  echo "error: $1: not found in the environment" >&2
  exit 127
}
exec "$@"
"""

#: Sets SHELL: the image's, which ``shell()`` declares, else the user's in passwd, else bash or sh.
#: Accounts of services have a program there that only refuses a login.
FIND_SHELL_SCRIPT = r"""if [ ! -x "$SHELL" ]; then
  uid=$(id -u)
  while IFS=: read -r _ _ id _ _ _ SHELL || [ -n "$id" ]; do
    [ "$id" != "$uid" ] || break
    SHELL=
  done
fi </etc/passwd 2>/dev/null
case $SHELL in */nologin|*/false) SHELL=;; esac
[ -x "$SHELL" ] || SHELL=/bin/bash
[ -x "$SHELL" ] || SHELL=/bin/sh
export SHELL
"""

#: Runs that shell as a login shell, as OpenSSH does. Old versions of dash do not know ``-l``.
LOGIN_SCRIPT = rf"""{FIND_SHELL_SCRIPT}
case $SHELL in */sh|*/dash) "$SHELL" -lc : </dev/null >/dev/null 2>&1 || exec "$SHELL";; esac
exec "$SHELL" -l
"""

#: Prints the process id of the program with ``DANLU_EXEC=$1``. Only programs that the engine has
#: started have the parent 0.
FIND_SCRIPT = r"""for directory in /proc/[0-9]*; do
  read -r stat <"$directory/stat" || continue
  fields=${stat##*) }; fields=${fields#* }
  [ "${fields%% *}" = 0 ] || continue
  tr '\0' '\n' <"$directory/environ" | grep -qxF "DANLU_EXEC=$1" && echo "${directory#/proc/}"
done 2>/dev/null; true"""

#: Sends the signal ``$1`` to the process ``$2`` and, if ``$3`` is not empty, to its session and
#: all descendants; then to those that were forked while they were searched for.
KILL_SCRIPT = r"""targets=" $2 " reached=" "
while true; do
  while [ -n "$3" ]; do
    before=$targets
    for directory in /proc/[0-9]*; do
      pid=${directory#/proc/}
      case $targets in *" $pid "*) continue;; esac
      read -r stat <"$directory/stat" || continue
      fields=${stat##*) }; fields=${fields#* }; parent=${fields%% *}
      fields=${fields#* }; fields=${fields#* }; session=${fields%% *}
      case $targets in *" $parent "*) targets="$targets$pid "; continue;; esac
      [ "$session" != "$2" ] || targets="$targets$pid "
    done 2>/dev/null
    [ "$targets" != "$before" ] || break
  done
  more=
  for pid in $targets; do
    case $reached in *" $pid "*) ;; *) more="$more $pid";; esac
  done
  [ -n "$more" ] || break
  kill -"$1" $more 2>/dev/null
  reached=$targets
done; true"""


def render_exports(variables: Mapping[str, str]) -> str:
    """Return lines of shell that set variables, without those that a shell cannot have."""
    return "".join(
        f"export {name}={shlex.quote(value)}\n"
        for name, value in variables.items()
        if _VARIABLE_NAME.fullmatch(name)
    )
