#!/usr/bin/env bash
# Run `make demo` and `make test` as the README says, in a minimal Debian root file system in new
# namespaces, where only python3, make and git are installed:
#   - as root, and
#   - as an unprivileged user, with the packages that `make setup` asks an administrator for.
# As an ordinary user with sudo, install danlu as docs/guides/install.md says, and use it.
#
#   scripts/fresh-root.sh [--keep] [--demo-only | --quick | --sample] [root] [user] [page]
#
# All by default, side by side in a system each. With --sample (CI) root runs all tests; the user runs
# `make demo`, the framework example, and the tests of what is different for an ordinary user.
#
# The new system uses the machine's network and its configuration of apt, pip and certificates, but
# not danlu's store. Needs root and util-linux; installs mmdebstrap. Tests the committed state of the
# tree.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly LIMIT=3600 # seconds, for each command
readonly USER_NAME=alchemist
readonly TOOLS=(runc crun newuidmap mmdebstrap cc gcc docker podman)
keep=0
sample=0
root_goals=(demo test)
user_goals=(demo test "test-slow REAL=tests/engine") # rootless Podman
parts=()
for argument in "$@"; do
    case $argument in
        --keep) keep=1 ;;
        --demo-only) root_goals=(demo) user_goals=(demo) ;;
        --quick) root_goals=(demo test-quick) user_goals=(demo test-quick) ;;
        --sample) sample=1 root_goals=(test) user_goals=(demo test-ordinary-user) ;;
        root | user | page) parts+=("$argument") ;;
        *) sed -n '2,18s/^# \?//p' "$0" >&2; exit 2 ;;
    esac
done
((${#parts[@]})) || parts=(root user page)

say() { printf '\n--- fresh root: %s (%s s)\n' "$*" "$SECONDS"; }
die() { echo "fresh-root: $*" >&2; exit 1; }

[[ $(id -u) == 0 ]] || { echo "fresh-root: needs root" >&2; exit 4; }
repository=$PWD
work=$(mktemp -d "${DANLU_FRESH_DIR:-/var/tmp}/danlu-fresh.XXXXXX")
clean() { ((keep)) || rm -rf --one-file-system "$work"; }
trap clean EXIT
if ! command -v mmdebstrap >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
fi

# --- the machine's configuration -----------------------------------------------------------------

apt_sources() { # print sources.list lines of this machine's release
    # shellcheck disable=SC1091
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")
    # shellcheck disable=SC2016
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v codename="$codename" 'index($3, codename) == 1' | sort -u
}

apt_options() { # print the options with which this machine reaches its mirrors
    apt-config dump | grep -E '^Acquire::(Check|https?|ftp|Retries|Force|AllowRedirect|Proxy)' || true
}

pip_settings() { # print KEY VALUE for each setting in pip's configuration files
    "${repository}/.venv/bin/python" -m pip config list |
        sed -n "/^:env:/d; s/^[a-z]*\.\([a-z-]*\)='\(.*\)'$/\1 \2/p"
}

named_paths() { # print the local files and directories that settings of pip and uv name
    { pip_settings; env | sed -n 's/^\(PIP\|UV\)_[A-Z_]*=/ /p'; } | tr ' ,' '\n\n' |
        sed -n 's#^file://##; s#^\(/.*\)/simple/*$#\1#; /^\//p' | sort -u | # pages of simple/ link outside
        while read -r path; do [[ ! -e $path ]] || echo "$path"; done
}

certificates() { echo "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"; }

environment() { # print NAME=VALUE for the variables that a login shell would have here
    env | grep -E '^(PIP|UV)_[A-Z_]+=|^(https?|no|all)_proxy=|^(HTTPS?|NO|ALL)_PROXY=|^CI=' || true
    [[ ! -e /usr/local/share/ca-certificates ]] || printf '%s\n' \
        {SSL_CERT_FILE,REQUESTS_CA_BUNDLE,PIP_CERT}=/etc/ssl/certs/ca-certificates.crt
    echo LANG=C.UTF-8
}

# --- the root ------------------------------------------------------------------------------------

make_base() {
    say "create a minimal system with python3, make and git"
    apt_options >"$work/apt.conf"
    apt_sources >"$work/sources.list"
    [[ -s $work/sources.list ]] || die "apt is not configured for this machine's own release"
    mmdebstrap --quiet --variant=minbase --format=directory --aptopt="$work/apt.conf" \
        --include=ca-certificates,git,make,python3 "" "$work/base" "$work/sources.list"
    cp -L /etc/resolv.conf /etc/hosts "$work/base/etc/"
    cp -a /usr/local/share/ca-certificates/. "$work/base/usr/local/share/ca-certificates/"
    chroot "$work/base" update-ca-certificates >/dev/null 2>&1
    cp -L "$(certificates)" "$work/base/etc/ssl/certs/ca-certificates.crt"
    { echo "[global]"; pip_settings | sed 's/ / = /'; } >"$work/base/etc/pip.conf"
    [[ ! -e /etc/uv/uv.toml ]] || install -D -m 644 /etc/uv/uv.toml "$work/base/etc/uv/uv.toml"
    chmod 755 "$work/base"
    local path
    while read -r path; do
        [[ ! -e $work/base$path ]] || continue # such as the certificates
        if [[ -d $path ]]; then mkdir -p "$work/base$path"; else install -D /dev/null "$work/base$path"; fi
        echo "$path"
    done < <(named_paths) >"$work/mounts"
}

make_root() { # NAME HOME: copy the base, and clone the repository into HOME
    cp -a "$work/base" "$work/$1"
    mkdir -p "$work/$1$2"
    git clone --quiet --no-hardlinks "$repository" "$work/$1$2/danlu"
}

inside() { # ROOT USER COMMAND: run it in new mount, PID, IPC and UTS namespaces
    local root=$work/$1 user=$2 command=$3
    timeout --kill-after=20 $LIMIT unshare --mount --pid --ipc --uts --fork --kill-child \
        --propagation private bash -euc "$INSIDE" inside "$root" "$user" "$command" \
        "$(environment)" "$(<"$work/mounts")"
}

# pivot_root and not chroot: the kernel refuses user namespaces to a process under a chroot.
# shellcheck disable=SC2016
readonly INSIDE='
root=$1 user=$2 command=$3 environment=$4 mounts=$5
hostname fresh
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
for path in $mounts; do
    mount --bind "$path" "$root$path"
    mount -o remount,bind,ro "$root$path"
done
cd "$root"
mkdir -p .old
pivot_root . .old
umount -l /.old
readarray -t variables <<<"$environment"
home=$(getent passwd "$user" | cut -d: -f6)
[ ! -d "$home/danlu" ] || cd "$home/danlu"
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$home" USER="$user" \
    "${variables[@]}" setpriv --reuid "$user" --regid "$user" --init-groups bash -c "$command"
'

check_tools_absent() { # ROOT
    local tool
    for tool in "${TOOLS[@]}"; do
        ! inside "$1" root "command -v $tool" || die "the fresh root already has $tool"
    done
}

run_goals() { # ROOT USER GOAL...
    local goal
    for goal in "${@:3}"; do
        say "make $goal as $2"
        inside "$1" "$2" "make --keep-going $goal" || die "make $goal as $2 failed"
    done
    [[ $sample == 0 || $2 != root ]] || return 0
    say "examples/cmake/verify as $2, with no compiler on the host"
    inside "$1" "$2" "! command -v cc && examples/cmake/verify" || die "examples/cmake as $2 failed"
}

as_root() {
    make_root as-root /root
    check_tools_absent as-root
    run_goals as-root root "${root_goals[@]}"
}

as_user() {
    # Takes what root's tests, which take longest, leave of the processors.
    ((!sample)) || renice -n 5 -p $BASHPID >/dev/null
    make_root as-user "/home/$USER_NAME"
    inside_setup="useradd --home-dir /home/$USER_NAME --shell /bin/bash $USER_NAME &&
        chown -R $USER_NAME:$USER_NAME /home/$USER_NAME && sed -i /^$USER_NAME:/d /etc/subuid /etc/subgid"
    chroot "$work/as-user" bash -c "touch /etc/subuid /etc/subgid && $inside_setup"
    say "make demo as $USER_NAME, without the system packages"
    local code=0 line
    inside as-user $USER_NAME "make demo" >"$work/setup.log" 2>&1 || code=$?
    cat "$work/setup.log"
    ((code)) || die "make demo succeeded without the system packages"
    grep -q 'Error 4' "$work/setup.log" || die "make setup did not exit 4"
    line=$(sed -n 's/^  \(apt-get update.*\)$/\1/p' "$work/setup.log")
    [[ -n $line ]] || die "make setup printed no command for the administrator"
    say "the administrator runs the printed command"
    inside as-user root "export DEBIAN_FRONTEND=noninteractive; $line" >"$work/administrator.log" 2>&1 ||
        { cat "$work/administrator.log"; die "the printed command failed"; }
    case " ${user_goals[*]} " in
        *" test "*) install_test_programs --tests ;;
        *" test-ordinary-user "*) install_test_programs --ordinary-user ;;
    esac
    run_goals as-user $USER_NAME "${user_goals[@]}"
}

as_page() {
    local page=docs/guides/install.md commands
    make_root as-page "/home/$USER_NAME"
    say "install sudo, which people have"
    chroot "$work/as-page" bash -c "useradd --home-dir /home/$USER_NAME --shell /bin/bash $USER_NAME &&
        chown -R $USER_NAME:$USER_NAME /home/$USER_NAME"
    inside as-page root "apt-get update -qq && apt-get install -y -qq --no-install-recommends sudo >/dev/null &&
        echo '$USER_NAME ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/$USER_NAME"
    check_tools_absent as-page
    commands=$("$repository/.venv/bin/python" - <<END
import sys
from pathlib import Path
sys.path.insert(0, "$repository")
from tests.e2e.page_script import read_blocks
need = "a machine on which nothing is set up"
print(*(block.body for block in read_blocks(Path("$repository/$page")) if block.needs.startswith(need)))
END
    )
    [[ $commands == *"make setup"*"danlu doctor"* ]] || die "$page lacks the commands"
    say "the commands of $page as $USER_NAME"
    # danlu doctor also fails if this machine lacks what only some commands need.
    inside as-page $USER_NAME "set -e; { $commands; } | tee /tmp/output; grep -q '^ok *OCI runtime' /tmp/output" ||
        die "the commands of $page failed"
    say "danlu run as $USER_NAME"
    inside as-page $USER_NAME "mkdir ~/hello && cd ~/hello && echo 'print(6 * 7)' >main.py &&
        ~/.local/bin/danlu init && [ \$(~/.local/bin/danlu run -- python main.py) = 42 ]" || die "danlu run failed"
}

install_test_programs() { # OPTION of setup.sh
    local line
    say "install the programs that the tests use, by the printed command"
    inside as-user $USER_NAME "scripts/setup.sh $1" | tee "$work/setup.log"
    line=$(sed -n 's/^  \(apt-get update.*\)$/\1/p' "$work/setup.log")
    [[ -n $line ]] || die "setup.sh $1 printed no command for the administrator"
    inside as-user root "export DEBIAN_FRONTEND=noninteractive; $line" >"$work/administrator.log" 2>&1 ||
        { cat "$work/administrator.log"; die "the printed command failed"; }
}

make_base
jobs=()
for part in "${parts[@]}"; do
    "as_$part" >"$work/$part.log" 2>&1 &
    jobs+=($!)
done
code=0
for i in "${!parts[@]}"; do
    wait "${jobs[i]}" || code=1
    cat "$work/${parts[i]}.log"
done
((code)) || say "done"
exit $code
