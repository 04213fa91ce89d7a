#!/usr/bin/env bash
# `make setup`: the system packages danlu stands on, then a virtual environment with danlu in it.
# Says what is missing and why before it installs anything. Exits 4 where only an administrator
# can go on, after printing the one line to ask for.
#
# With --tests: the programs of others that the real tests talk to; with --notebook, those that the
# tests of notebooks do. Without them those tests are skipped, each saying so; so an ordinary user is
# told the line to ask for, and that is no failure.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export PATH="$PATH:/usr/sbin:/sbin"

venv=.venv
stamp=$venv/.danlu-setup
packages=()
reasons=()

need() { # need PACKAGE WHY: to be called when what the package gives is not there
    packages+=("$1")
    reasons+=("$2")
}

has() { command -v "$1" >/dev/null 2>&1; }

find_missing() {
    has runc || has crun || need runc "runs build steps and commands in containers, without a daemon"
    has newuidmap || need uidmap "lets an ordinary user build: maps subordinate user ids"
    has slirp4netns || need slirp4netns "gives the containers of jobs the internet"
    has git || need git "fetches included libraries and sources"
    [[ -e /etc/ssl/certs/ca-certificates.crt ]] || need ca-certificates "to verify whom is talked to"
    [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] ||
        need debian-archive-keyring "verifies Debian's packages"
    python3 -c 'import ensurepip, venv' 2>/dev/null || need python3-venv "makes the virtual environment"
}

find_missing_for_notebook() {
    has chromium || need chromium "tests: the browser that notebooks are used in"
    [[ -e /usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf ]] ||
        need fonts-dejavu-core "tests: letters for the browser"
}

find_missing_for_tests() {
    has dpkg-scanpackages || need dpkg-dev "tests: an archive of another distribution"
    has gpg || need gnupg "tests: signs that archive"
    has busybox || need busybox-static "tests: a root file system of one program"
    has buildah || need buildah "tests: reads what danlu writes"
    has docker-registry || need docker-registry "tests: a registry to push to and pull from"
    { has docker && has dockerd; } || need docker.io "tests: loads, pulls and runs what danlu writes"
    { has ssh && has scp && has sftp && has ssh-agent; } || need openssh-client "tests: connects to environments; an agent for steps"
    has rsync || need rsync "tests: copies a tree into an environment over ssh"
    has faketime || need faketime "tests: builds on another day"
    has mkfs.xfs || [[ -x /usr/sbin/mkfs.xfs ]] || need xfsprogs "tests: a file system that clones files"
    has kubectl || need kubernetes-client "tests: an operator's manifests, applied as users do"
    has mpirun || need openmpi-bin "tests: starts the programs of MPIJobs"
    has openssl || need openssl "tests: certificates of servers"
    has podman || need podman "tests: loads, pulls and runs what danlu writes"
    has skopeo || need skopeo "tests: reads and copies what danlu writes"
    has slirp4netns || need slirp4netns "tests: the network of containers of an ordinary user"
}

check_python() {
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "setup: danlu needs Python 3.11 or later as python3; here: $(python3 --version 2>&1 || true)" >&2
        echo "hint: put one on PATH, or install python3 of Debian 12, Ubuntu 24.04 or later" >&2
        exit 4
    fi
}

lacks_subordinate_ids() { # true for an ordinary user whom /etc/sub?id gives no ids
    [[ $(id -u) != 0 ]] || return 1
    local file
    for file in /etc/subuid /etc/subgid; do
        grep -qE "^($(id -un)|$(id -u)):" "$file" 2>/dev/null || return 0
    done
    return 1
}

free_subordinate_ids() { # FIRST-LAST above all that are given away
    local last
    last=$(cat /etc/subuid /etc/subgid 2>/dev/null |
        awk -F: 'BEGIN { m = 99999 } { e = $2 + $3 - 1; if (e > m) m = e } END { print m }')
    echo "$((last + 1))-$((last + 65536))"
}

administrator_line() { # the one line that makes this account able to go on
    local line="" range
    if ((${#packages[@]})); then
        line="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
    fi
    if lacks_subordinate_ids; then
        range=$(free_subordinate_ids)
        line+="${line:+ && }usermod --add-subuids $range --add-subgids $range $(id -un)"
    fi
    echo "$line"
}

explain() { # WHOSE: for what they are needed
    local i
    echo "setup: this machine lacks ${#packages[@]} system package(s) that $1:"
    for i in "${!packages[@]}"; do
        printf '  %-24s %s\n' "${packages[i]}" "${reasons[i]}"
    done
}

ask_administrator() {
    if lacks_subordinate_ids; then
        echo "setup: $(id -un) has no subordinate ids, which building as an ordinary user needs"
    fi
    echo "setup: $(id -un) may not do that here. Please ask an administrator to run, as root:"
    echo
    echo "  $1"
    echo
    echo "and then run the same command again."
    exit 4
} >&2

as_administrator() { # run LINE as root if that is possible without asking anybody else
    if [[ $(id -u) == 0 ]]; then
        DEBIAN_FRONTEND=noninteractive bash -c "$1"
    elif has sudo && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
        sudo DEBIAN_FRONTEND=noninteractive bash -c "$1" || ask_administrator "$1"
    else
        ask_administrator "$1"
    fi
}

install_system_packages() {
    find_missing
    local line
    line=$(administrator_line)
    [[ -n $line ]] || return 0
    ((${#packages[@]} == 0)) || explain "danlu stands on"
    if ! has apt-get; then
        echo "setup: there is no apt-get here; install these with your system's package manager" >&2
        exit 4
    fi
    [[ $(id -u) != 0 ]] || echo "setup: installing them now: $line"
    as_administrator "$line"
}

install_for_tests() { # WHICH: tests, or notebook
    has apt-get || return 0
    "find_missing_for_$1"
    ((${#packages[@]})) || return 0
    explain "tests talk to"
    local line="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
    if [[ $(id -u) == 0 ]]; then
        echo "setup: installing them now: $line"
        as_administrator "$line"
    else
        printf 'setup: tests that need one of them are skipped. To have them, ask for this, as root:\n\n'
        printf '  %s\n\n' "$line"
    fi
}

fingerprint() {
    { pwd; python3 -c 'import sys; print(sys.version, sys.base_prefix)'; cat constraints.txt pyproject.toml; } |
        sha256sum | cut -d' ' -f1
}

make_environment() {
    local want
    want=$(fingerprint)
    if [[ -f $stamp && $(<"$stamp") == "$want" ]]; then
        return 0
    fi
    echo "setup: making $venv with danlu and what it stands on (constraints.txt, by hash)"
    python3 -m venv --clear $venv
    $venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes \
        --only-binary :all: --no-deps -r constraints.txt
    $venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-index \
        --no-build-isolation --editable .
    # Also for those who let Python write no byte code: compiling takes longer than most commands.
    $venv/bin/python -m compileall -q src
    echo "$want" >$stamp
    echo "setup: done; try $venv/bin/danlu --help"
}

case ${1:-} in
    --tests | --notebook)
        install_for_tests "${1#--}"
        exit
        ;;
esac
check_python
install_system_packages
make_environment
