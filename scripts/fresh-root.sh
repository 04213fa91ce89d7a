#!/usr/bin/env bash
# The README's promise on a machine that has nothing: a minimal Debian root of its own namespaces,
# with only python3, make and git, in which `make demo` and `make test` are run
#   - as root, and
#   - as an ordinary user, who is first told what to ask an administrator for.
#
#   scripts/fresh-root.sh [--keep] [--demo-only | --quick | --real-user] [root] [user]
#
# Both by default; with --real-user the user runs the real tests only, root all of them.
#
# The network and the machine's configuration of apt, pip and certificates are kept; nothing of
# danlu's store is. Needs root, mmdebstrap and util-linux. Works on the committed state of the tree.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly LIMIT=3600 # seconds any one command may take
readonly USER_NAME=alchemist
# Where toolchains come from does not depend on the account; `make test-all` tests that, too.
readonly MANY_DOWNLOADS=(--ignore=tests/e2e/test_{languages,templates,foreign_distribution}.py)
readonly TOOLS=(runc crun newuidmap mmdebstrap cc gcc docker podman)
keep=0
goals=(demo test)
real_user=0
parts=()
for argument in "$@"; do
    case $argument in
        --keep) keep=1 ;;
        --demo-only) goals=(demo) ;;
        --quick) goals=(demo test-quick) ;;
        --real-user) real_user=1 ;;
        root | user) parts+=("$argument") ;;
        *) sed -n '2,13s/^# \?//p' "$0" >&2; exit 2 ;;
    esac
done
((${#parts[@]})) || parts=(root user)

say() { printf '\n--- fresh root: %s (%s s)\n' "$*" "$SECONDS"; }
die() { echo "fresh-root: $*" >&2; exit 1; }

[[ $(id -u) == 0 ]] || { echo "fresh-root: needs root" >&2; exit 4; }
repository=$PWD
work=$(mktemp -d "${DANLU_FRESH_DIR:-/var/tmp}/danlu-fresh.XXXXXX")
clean() { ((keep)) || rm -rf --one-file-system "$work"; }
trap clean EXIT

# --- what the machine is configured with ---------------------------------------------------------

apt_sources() { # one-line sources of this machine's own release
    # shellcheck disable=SC1091
    local codename
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:?}")
    # shellcheck disable=SC2016
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v codename="$codename" 'index($3, codename) == 1' | sort -u
}

apt_options() { # how this machine reaches its mirrors
    apt-config dump | grep -E '^Acquire::(Check|https?|ftp|Retries|Force|AllowRedirect|Proxy)' || true
}

pip_settings() { # KEY VALUE of the files that configure pip
    "${repository}/.venv/bin/python" -m pip config list |
        sed -n "/^:env:/d; s/^[a-z]*\.\([a-z-]*\)='\(.*\)'$/\1 \2/p"
}

local_sources() { # the files and directories of this machine that pip and uv are configured with
    { pip_settings; env | grep -E '^(PIP|UV)_' | tr '=' ' '; } | tr ' ' '\n' |
        sed -n 's#^file://##; /^\//p' | sort -u |
        while read -r path; do
            # Of an index, whole: its pages name files beside themselves.
            [[ $path != */simple ]] || path=${path%/simple}
            [[ ! -d $path ]] || echo "$path"
        done
}

certificates() { echo "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"; }

environment() { # NAME=VALUE of what a person's login would have here
    env | grep -E '^(PIP|UV)_[A-Z_]+=|^(https?|no|all)_proxy=|^(HTTPS?|NO|ALL)_PROXY=|^CI=' || true
    [[ ! -e /usr/local/share/ca-certificates ]] || printf '%s\n' \
        {SSL_CERT_FILE,REQUESTS_CA_BUNDLE,PIP_CERT}=/etc/ssl/certs/ca-certificates.crt
    echo LANG=C.UTF-8
}

# --- the root ------------------------------------------------------------------------------------

make_base() {
    say "a minimal system with python3, make and git"
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
    chmod 755 "$work/base"
    local path
    while read -r path; do mkdir -p "$work/base$path"; done < <(local_sources)
}

make_root() { # NAME HOME: a copy of the base with the project cloned into HOME
    cp -a "$work/base" "$work/$1"
    mkdir -p "$work/$1$2"
    git clone --quiet --no-hardlinks "$repository" "$work/$1$2/danlu"
}

inside() { # ROOT USER COMMAND: in new mount, process, IPC and host name namespaces
    local root=$work/$1 user=$2 command=$3
    timeout --kill-after=20 $LIMIT unshare --mount --pid --ipc --uts --fork --kill-child \
        --propagation private bash -euc "$INSIDE" inside "$root" "$user" "$command" \
        "$(environment)" "$(local_sources)"
}

# pivot_root and not chroot: the kernel refuses user namespaces to a process under a chroot.
# shellcheck disable=SC2016
readonly INSIDE='
root=$1 user=$2 command=$3 environment=$4 sources=$5
hostname fresh
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
for path in $sources; do
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

expect_bare() { # ROOT
    local tool
    for tool in "${TOOLS[@]}"; do
        ! inside "$1" root "command -v $tool" || die "the fresh root already has $tool"
    done
}

run_goals() { # ROOT USER
    local goal
    for goal in "${goals[@]}"; do
        say "make $goal as $2"
        inside "$1" "$2" "make $goal" || die "make $goal as $2 failed"
    done
    say "examples/cmake/verify as $2, with no compiler on the host"
    inside "$1" "$2" "! command -v cc && examples/cmake/verify" || die "examples/cmake as $2 failed"
}

as_root() {
    make_root as-root /root
    expect_bare as-root
    run_goals as-root root
}

as_user() {
    make_root as-user "/home/$USER_NAME"
    inside_setup="useradd --home-dir /home/$USER_NAME --shell /bin/bash $USER_NAME &&
        chown -R $USER_NAME:$USER_NAME /home/$USER_NAME && sed -i /^$USER_NAME:/d /etc/subuid /etc/subgid"
    chroot "$work/as-user" bash -c "touch /etc/subuid /etc/subgid && $inside_setup"
    say "an ordinary user on a machine without the system packages"
    local code=0 line
    inside as-user $USER_NAME "make demo" >"$work/told" 2>&1 || code=$?
    cat "$work/told"
    ((code)) || die "make demo went on without the system packages"
    grep -q 'Error 4' "$work/told" || die "make setup did not exit 4"
    line=$(sed -n 's/^  \(apt-get update.*\)$/\1/p' "$work/told")
    [[ -n $line ]] || die "the user was not told what to ask for"
    say "the administrator runs exactly that line"
    inside as-user root "export DEBIAN_FRONTEND=noninteractive; $line" >"$work/asked" 2>&1 ||
        { cat "$work/asked"; die "the line that the user was told fails"; }
    [[ " ${goals[*]} " != *" test "* ]] || give_test_programs
    ((!real_user)) || goals=(demo "test-real REAL='${MANY_DOWNLOADS[*]}'")
    run_goals as-user $USER_NAME
}

give_test_programs() {
    local line
    say "what the tests talk to: the user asks, the administrator runs exactly that line"
    inside as-user $USER_NAME "scripts/setup.sh --tests" | tee "$work/told"
    line=$(sed -n 's/^  \(apt-get update.*\)$/\1/p' "$work/told")
    [[ -n $line ]] || die "the user was not told what the tests talk to"
    inside as-user root "export DEBIAN_FRONTEND=noninteractive; $line" >"$work/asked" 2>&1 ||
        { cat "$work/asked"; die "the line that the user was told fails"; }
}

make_base
for part in "${parts[@]}"; do "as_$part"; done
say "did what the README says"
