"""Users and groups that were added, changed or removed by hand in an environment.

They become calls of ``useradd`` and its siblings, because packages that are added to the build file
later write the same files. Passwords are secret: they are never read into the result.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from danlu.engine.layer_reading import read_lower, read_text
from danlu.sandbox.layer_view import LayerView

#: Column of the password, and number of columns (passwd(5), group(5), shadow(5), gshadow(5)).
_COLUMNS = {"passwd": 7, "group": 4, "shadow": 9, "gshadow": 4}
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}\$?")
_ID = re.compile(r"[0-9]{1,10}")
#: What locks a password, so that nobody logs in with it (shadow(5)).
_LOCKED = ("!", "*", "!!", "!*", "x")
#: What useradd sets unless login.defs(5) says otherwise.
_USUAL_EXPIRY = ("0", "99999", "7", "", "")
_PROGRAMS = ("usr/sbin/useradd", "usr/sbin/groupadd")

_Entries = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class AccountChanges:
    """The commands that make the changes, what they do in words, and what they do not make."""

    commands: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


def find_account_changes(upper: Path, view: LayerView) -> AccountChanges:
    """Compare the account files of the layer with the image's."""
    before: dict[str, _Entries] = {}
    now: dict[str, _Entries] = {}
    for name, columns in _COLUMNS.items():
        text = read_lower(view, f"etc/{name}")
        before[name] = _parse_entries(text, columns)
        changed = read_text(upper / "etc" / name) if not (upper / "etc").is_symlink() else None
        now[name] = _parse_entries(text if changed is None else changed, columns)
    summary = tuple(_describe_changes(before, now))
    renames = tuple(_rename_accounts(before, now))
    problems = list(_find_problems(before, now))
    invalid = {what for what, _ in problems}
    commands = (*renames, *_render_commands(before, now, invalid))
    has_programs = all(view.entry(tuple(path.split("/"))) is not None for path in _PROGRAMS)
    if commands and not has_programs:
        return AccountChanges((), (), (("/etc/passwd", "the image has no useradd"), *problems))
    return AccountChanges(commands, summary, tuple(problems))


def _parse_entries(text: str, columns: int) -> _Entries:
    entries: _Entries = {}
    for line in text.splitlines():
        fields = tuple(line.split(":"))
        if len(fields) == columns:
            entries.setdefault(fields[0], fields)
    return entries


def _rename_accounts(before: dict[str, _Entries], now: Mapping[str, _Entries]) -> Iterator[str]:
    """Yield the commands that rename users and groups, and rename them in ``before``."""
    for file, shadow, program, option in (
        ("passwd", "shadow", "usermod", "-l"),
        ("group", "gshadow", "groupmod", "-n"),
    ):
        ids = {entry[2]: name for name, entry in now[file].items() if name not in before[file]}
        for name, entry in list(before[file].items()):
            new = ids.get(entry[2], "")
            if name in now[file] or not (_NAME.fullmatch(name) and _NAME.fullmatch(new)):
                continue
            del ids[entry[2]]
            for entries in (before[file], before[shadow]):
                if name in entries:
                    entries[new] = (new, *entries.pop(name)[1:])
            yield f"! grep -q '^{name}:' /etc/{file} || {program} {option} {new} {name}"


def _describe_changes(before: Mapping[str, _Entries], now: Mapping[str, _Entries]) -> Iterator[str]:
    for file, what in (("passwd", "user"), ("group", "group")):
        for name in sorted(now[file].keys() | before[file].keys()):
            old, new = before[file].get(name), now[file].get(name)
            if old != new:
                sign = "+" if old is None else "-" if new is None else "~"
                yield f"{sign} {what} {name}"


def _find_problems(
    before: Mapping[str, _Entries], now: Mapping[str, _Entries]
) -> Iterator[tuple[str, str]]:
    for name, user in now["passwd"].items():
        if user != before["passwd"].get(name) and not _is_valid_user(user, now["group"]):
            yield f"user {name}", "useradd refuses its entry"
    for name, group in now["group"].items():
        if group != before["group"].get(name) and not _is_valid_group(group):
            yield f"group {name}", "groupadd refuses its entry"
    for file, what in (("shadow", "user"), ("gshadow", "group"), ("passwd", "user")):
        for name, entry in now[file].items():
            old = before[file].get(name)
            if (old[1] if old else "!") != entry[1] and (old or entry[1] not in _LOCKED):
                yield f"the password of {what} {name}", "passwords never go to the project"


def _is_valid_user(user: tuple[str, ...], groups: _Entries) -> bool:
    name, _, uid, gid, comment, home, shell = user
    gids = {group[2] for group in groups.values()}
    texts = (comment, home, shell)
    return (
        _NAME.fullmatch(name) is not None
        and _ID.fullmatch(uid) is not None
        and gid in gids
        and home.startswith("/")
        and all(text.isprintable() and "\ufffd" not in text for text in texts)
    )


def _is_valid_group(group: tuple[str, ...]) -> bool:
    name, _, gid, members = group
    valid = all(_NAME.fullmatch(member) for member in members.split(",") if member)
    return bool(_NAME.fullmatch(name) and _ID.fullmatch(gid) and valid)


def _render_commands(
    before: Mapping[str, _Entries], now: Mapping[str, _Entries], invalid: set[str]
) -> Iterator[str]:
    """Yield commands; each may find its work done already, by a package that adds the account."""
    users, groups = (
        {name: entry for name, entry in now[file].items() if f"{what} {name}" not in invalid}
        for file, what in (("passwd", "user"), ("group", "group"))
    )
    removed = sorted(
        name for name in before["passwd"].keys() - now["passwd"].keys() if _NAME.fullmatch(name)
    )
    for name in removed:
        yield f"! grep -q '^{name}:' /etc/passwd || userdel {name}"
    for name in sorted(before["group"].keys() - now["group"].keys()):
        if _NAME.fullmatch(name):
            # groupdel refuses a group that still is a user's.
            yield f"sed -i '/^{name}:/d' /etc/group"
            yield f"test ! -e /etc/gshadow || sed -i '/^{name}:/d' /etc/gshadow"
    for name, group in groups.items():
        old = before["group"].get(name)
        # userdel removes the group of the same name, too.
        if old is None or name in removed:
            yield f"grep -q '^{name}:' /etc/group || groupadd -o -g {group[2]} {name}"
        if old is not None and old[2] != group[2]:
            yield f"groupmod -o -g {group[2]} {name}"
    for name, user in users.items():
        old = before["passwd"].get(name)
        if old is None:
            yield _render_useradd(user)
        else:
            if old[2:4] != user[2:4]:
                # usermod would also give the files of the home directory to the new id.
                ids = f"s/^{name}:([^:]*):[0-9]+:[0-9]+:/{name}:\\1:{user[2]}:{user[3]}:/"
                yield f"sed -i -E {shlex.quote(ids)} /etc/passwd"
            if options := _render_options(user, (*old[:2], *user[2:4], *old[4:])):
                yield f"usermod {options} {name}"
        yield from _render_chage(before["shadow"].get(name), now["shadow"].get(name))
    for name, group in groups.items():
        old = before["group"].get(name)
        if (old[3] if old else "") != group[3]:
            yield f"gpasswd -M {shlex.quote(group[3])} {name}"


def _render_useradd(user: tuple[str, ...]) -> str:
    name = user[0]
    # The home directory is a change like others; subordinate ids are in files of their own.
    fixed = "-l -M -N -K SUB_UID_COUNT=0 -K SUB_GID_COUNT=0"
    return f"grep -q '^{name}:' /etc/passwd || useradd {fixed} {_render_options(user, ())} {name}"


def _render_chage(old: tuple[str, ...] | None, entry: tuple[str, ...] | None) -> Iterator[str]:
    """Yield the command that sets when a password expires, unless useradd does."""
    if entry is None or entry[3:8] == (old[3:8] if old else _USUAL_EXPIRY):
        return
    options = zip(("-m", "-M", "-W", "-I", "-E"), entry[3:8], strict=True)
    words = [
        f"{option} {days or -1}" for option, days in options if not days or _ID.fullmatch(days)
    ]
    yield f"chage {' '.join(words)} {entry[0]}"


def _render_options(user: tuple[str, ...], old: tuple[str, ...]) -> str:
    options = ("-o -u", 2), ("-g", 3), ("-c", 4), ("-d", 5), ("-s", 6)
    return " ".join(
        f"{option} {shlex.quote(user[column])}"
        for option, column in options
        if not old or old[column] != user[column]
    )
