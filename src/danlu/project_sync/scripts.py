"""Shell scripts of the other side (POSIX, also BusyBox). Their output is not trusted."""

from __future__ import annotations

from danlu.project_sync.types import CONFLICT_SUFFIX, STAGE_NAME

_SETTINGS = "LC_ALL=C; export LC_ALL; unset CDPATH TAR_OPTIONS POSIXLY_CORRECT\n"

#: ``$1`` is the copy's directory, ``$2`` the stage. It is new for each script: what is left of one
#: that was cut off finds its files no more, and its time is that of the file system's clock.
_ENTER = r"""start=$PWD
rm -rf -- "$2" && mkdir -m 700 -- "$2" && cd -P -- "$2" || exit 1
stage=$PWD
cd -- "$start" && cd -P -- "$1" || exit 1
root=$PWD
"""

#: Prints the volume, the time, and mode, size, times, inode and name of what is in the copy. If
#: ``$3`` is the name of a file, it keeps the volume, and the copy and it are created if they do not
#: exist: nobody else may enter the directory around the copy. ``$4`` is the name of a new volume.
LIST_SCRIPT = rf"""{_SETTINGS}if [ -n "$3" ]; then
  (umask 077; mkdir -p -- "${{1%/*}}") && chmod 700 -- "${{1%/*}}" || exit 1
  [ -d "$1" ] || {{ rm -f -- "$3"; mkdir -- "$1" && chmod 755 -- "$1" || exit 1; }}
  [ -s "$3" ] || (umask 077; echo "$4" >"$3") || exit 1
  echo "volume $(cat -- "$3")"
fi
{_ENTER}echo "now $(stat -c %Z -- "$stage")"
rmdir -- "$stage"
find . \( -name .git -o -path ./{STAGE_NAME} \) -prune -o \
  \( -type f -o -type d -o -type l \) -exec stat -c '%f %s %Y %Z %i %n' {{}} + 2>/dev/null
echo end"""

#: Runs a script below the directory ``$1``.
EVAL_SCRIPT = rf"""{_SETTINGS}cd -P -- "$1" || exit 1
script=$(cat)
eval "$script" </dev/null"""

#: Prints digests of files, and what belongs to an index (``$1``) if a name has unusual letters.
CONTENT_FUNCTIONS = r"""sum() { sha256sum -- "$@" 2>/dev/null; }
one() { printf '%s ' "$1"; sha256sum <"$2" 2>/dev/null || echo; }
link() { printf '%s ' "$1"; readlink "$2" || echo; }
"""

#: Unpacks an archive in the stage and does what ``plan`` in it says. Nothing is written or removed
#: through a link: ``at`` enters a directory of the copy, in which everything else happens. The
#: first argument of ``place`` and ``remove`` has a line of ``stat`` for each name: what a program
#: has changed since it was listed is kept. A line is empty for what was not there, and for
#: directories, of which only empty ones are removed.
APPLY_SCRIPT = rf"""{_SETTINGS}{_ENTER}umask 077
tar -xpof - -C "$stage" && [ -f "$stage/plan" ] || exit 1
failed=
newline='
'
at() {{
  directory=${{1:+$1/}}
  cd -P -- "$root/$1" 2>/dev/null && [ "$PWD" = "$root${{1:+/$1}}" ] && return
  echo "$1 is not a directory" >&2
  return 1
}}
exists() {{ [ -e "$1" ] || [ -L "$1" ]; }}
is_same() {{ [ "$(stat -c '%f %s %Y %Z %i' -- "$@" 2>/dev/null)" = "$expected" ]; }}
next_expected() {{
  expected=${{lines%%"$newline"*}}
  lines=${{lines#*"$newline"}}
}}
keep() {{
  free=$1{CONFLICT_SUFFIX}
  number=2
  while exists "$free"; do free=$1{CONFLICT_SUFFIX}.$number; number=$((number + 1)); done
  mv -- "$1" "$free" && printf 'kept %s\n' "$directory$free"
}}
place() {{
  lines=$1 expected=$1
  shift
  is_same "$@" || for name; do
    next_expected
    ! exists "$name" || is_same "$name" || rmdir -- "$name" 2>/dev/null || keep "$name" || return
  done
  for name; do shift; set -- "$@" "$stage/files/$directory$name"; done
  mv -f -- "$@" .
}}
remove() {{
  lines=$1
  shift
  for name; do
    next_expected
    rmdir -- "$name" 2>/dev/null || ! is_same "$name" || rm -f -- "$name" || return
  done
}}
make_directories() {{
  mode=$1
  shift
  for name; do
    [ -d "$name" ] && [ ! -L "$name" ] && continue
    ! exists "$name" || keep "$name" || return
    mkdir -- "$name" || return
  done
  chmod "$mode" "$@"
}}
. "$stage/plan"
cd -- "$root"
rm -rf -- "$stage"
[ -z "$failed" ]"""
