"""Write the files through which login shells get the image's variables.

A container's programs get the variables from the image's configuration. A login shell loses them:
``/etc/profile`` of Debian and Alpine replaces PATH, and ``su -`` and ``sudo -i`` start it with an
empty environment.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from danlu.builder.embedded.context import OpContext, extend_environment
from danlu.builder.embedded.staged_tree import commit_tree, write_over
from danlu.graph.ops import ShellStartup
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.layer_view import LayerView
from danlu.store import Layer

_SH_FILE = "/etc/profile.d/danlu.sh"
_FISH_FILE = "/etc/fish/conf.d/danlu.fish"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

#: For a distribution whose shell reads no directory of files.
_READ_SH_FILE = f"# Added by danlu.\n. {_SH_FILE}\n"
_READ_SH_FILE_IN_ZSH = f"# Added by danlu.\nemulate sh -c '. {_SH_FILE}'\n"

# POSIX, also for BusyBox, and run by bash, zsh, ksh and dash. ``/proc/$$/environ`` is what the
# shell was started with, before ``/etc/profile`` replaced PATH.
_SH_SCRIPT = r"""# Written by danlu, so that login shells have the variables of the image.
# A variable that is set keeps its value.
danlu_merge() {
  # Set danlu_path to the PATH $1 and the directories of $2 that it lacks.
  danlu_path=$1 danlu_rest=$2:
  while [ -n "$danlu_rest" ]; do
    danlu_directory=${danlu_rest%%:*} danlu_rest=${danlu_rest#*:}
    case ":$danlu_path:" in
      *":${danlu_directory:-$danlu_path}:"*) ;;
      *) danlu_path=$danlu_path${danlu_path:+:}$danlu_directory ;;
    esac
  done
}
danlu_newline='
'
# The variables that this shell was started with, one in a line.
danlu_started=$( (tr '\n\000' ' \n' </proc/$$/environ) 2>/dev/null) || danlu_started=
danlu_started=$danlu_newline$danlu_started$danlu_newline
danlu_image=@PATH@
for danlu_name in @NAMES@; do
  case $danlu_started in
    *"$danlu_newline$danlu_name="*) ;;
    # It is not the environment of a container: su and sudo start with an empty one.
    *) danlu_started= ;;
  esac
done
case $danlu_started in
  *"${danlu_newline}PATH="*)
    danlu_started=${danlu_started#*"${danlu_newline}PATH="}
    danlu_started=${danlu_started%%"$danlu_newline"*}
    danlu_merge "$PATH" "$danlu_started"
    # Unless nothing was taken from it, what the shell was started with comes first.
    [ "$danlu_path" = "$PATH" ] || danlu_merge "$danlu_started" "$PATH"
    ;;
  *) danlu_merge "$danlu_image" "$PATH" ;;
esac
export PATH="$danlu_path"
unset -f danlu_merge
unset danlu_path danlu_rest danlu_directory danlu_newline danlu_started danlu_image danlu_name
"""

_FISH_SCRIPT = r"""# Written by danlu, so that login shells have the variables of the image.
# A variable that is set keeps its value.
if status is-login
    # The variables that this shell was started with: none of the image's after su and sudo.
    set -l danlu_started
    if test -r /proc/$fish_pid/environ
        set danlu_started (string split0 </proc/$fish_pid/environ | string replace -r '=[\s\S]*' '')
    end
    set -l danlu_missing
    for danlu_name in @NAMES@
        contains -- $danlu_name $danlu_started; or set -a danlu_missing $danlu_name
    end
    if test (count $danlu_missing) -gt 0
        set -l danlu_path @PATH@
        for danlu_directory in $PATH
            contains -- $danlu_directory $danlu_path; or set -a danlu_path $danlu_directory
        end
        set -gx PATH $danlu_path
    end
"""


async def execute(op: ShellStartup, context: OpContext) -> list[Layer]:
    """Return one layer with the startup files of the shells below; none without a shell."""
    view = LayerView(tuple(layer.tree for layer in context.below))
    inherited = context.inputs[0].inherited
    variables = extend_environment(inherited, op.environment, op.path)
    with context.store.staging() as staged:
        await context.run_sync(write_startup_files, view, staged, variables)
        made_by = "danlu: variables of login shells"
        return await commit_tree(context, staged, NormalizeOptions(mtime=op.epoch), made_by)


def write_startup_files(view: LayerView, staged: Path, variables: Mapping[str, str]) -> None:
    """Write the files with ``variables`` for the shells of ``view`` into the tree ``staged``.

    Those that a base image made by danlu has already are left out.
    """
    for path, text in _render_files(view, variables):
        if _read_text(view, path) == text:
            continue
        write_over(view, staged, path, text, 0o644)


def _render_files(view: LayerView, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if not _has_program(view, "sh"):
        return
    yield _SH_FILE, render_sh_file(variables)
    profile = _read_text(view, "/etc/profile")
    if not _contains_path(profile, "/etc/profile.d"):
        yield "/etc/profile", _end_line(profile) + _READ_SH_FILE
    if _has_program(view, "zsh"):
        # Debian, Alpine and Arch have the directory.
        has_directory = view.entry(view.resolve("/etc/zsh")) is not None
        zprofile = "/etc/zsh/zprofile" if has_directory else "/etc/zprofile"
        text = _read_text(view, zprofile)
        if not _contains_path(text, "/etc/profile"):
            yield zprofile, _end_line(text) + _READ_SH_FILE_IN_ZSH
    if _has_program(view, "fish"):
        yield _FISH_FILE, render_fish_file(variables)


def render_sh_file(variables: Mapping[str, str]) -> str:
    """Return the script for shells that read ``/etc/profile``."""
    names, values = _split_path_off(variables)
    text = _SH_SCRIPT.replace("@NAMES@", " ".join(names))
    text = text.replace("@PATH@", shlex.quote(variables["PATH"]))
    lines = (
        f'[ -n "${{{name}+set}}" ] || export {name}={shlex.quote(value)}\n'
        for name, value in values.items()
    )
    return text + "".join(lines)


def render_fish_file(variables: Mapping[str, str]) -> str:
    """Return the script for fish."""
    names, values = _split_path_off(variables)
    path = " ".join(map(_quote_for_fish, variables["PATH"].split(":")))
    text = _FISH_SCRIPT.replace("@NAMES@", " ".join(names)).replace("@PATH@", path)
    lines = (
        f"    set -q {name}; or set -gx {name} {_quote_for_fish(value)}\n"
        for name, value in values.items()
    )
    return text + "".join(lines) + "end\n"


def _split_path_off(variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the names and values that a shell can set, without PATH."""
    values = {
        name: value
        for name, value in sorted(variables.items())
        if name != "PATH" and _NAME.fullmatch(name)
    }
    return list(values), values


def _quote_for_fish(text: str) -> str:
    # In single quotes, only \ and ' are special (fish: "Quotes").
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _has_program(view: LayerView, name: str) -> bool:
    places = (view.resolve(f"{directory}/{name}") for directory in ("/bin", "/usr/bin"))
    return any(view.entry(parts) is not None for parts in places)


def _read_text(view: LayerView, path: str) -> str:
    return (view.read(path) or b"").decode(errors="surrogateescape")


def _end_line(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"


def _contains_path(text: str, path: str) -> bool:
    """Return whether a script names ``path`` outside of comments."""
    return any(path in line for line in text.splitlines() if not line.lstrip().startswith("#"))
