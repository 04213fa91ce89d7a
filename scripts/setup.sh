#!/usr/bin/env bash
# `make setup`: install the system packages that danlu needs, then create .venv with danlu in it.
# Missing packages are listed, with the reason for each, before anything is installed. If that needs
# root and the user cannot become root, print the command for an administrator and exit with 4.
#
#   --tests           install the programs that the real tests use instead (registries, ssh …)
#   --ordinary-user   install those of them that `make test-ordinary-user` uses
#   --notebook        install those that the notebook tests use
#
# A test whose program is missing is skipped. So without root, these options only print the
# command for an administrator and exit with 0.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export PATH="$PATH:/usr/sbin:/sbin"

venv=.venv
stamp=$venv/.danlu-setup
packages=()
reasons=()

need() { # PACKAGE REASON: add a missing package to the list
    packages+=("$1")
    reasons+=("$2")
}

has() { command -v "$1" >/dev/null 2>&1; }

find_missing() {
    has runc || has crun || need runc "runs build steps and commands in containers, without a daemon"
    has newuidmap || need uidmap "maps subordinate user ids, for rootless builds"
    has slirp4netns || need slirp4netns "connects the containers of jobs to the internet"
    has git || need git "fetches included libraries and sources"
    [[ -e /etc/ssl/certs/ca-certificates.crt ]] || need ca-certificates "verifies the certificates of servers"
    [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] ||
        need debian-archive-keyring "verifies Debian's packages"
    python3 -c 'import ensurepip, venv' 2>/dev/null || need python3-venv "creates the virtual environment"
}

find_missing_for_notebook() {
    has chromium || need chromium "tests: the browser for notebooks"
    [[ -e /usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf ]] ||
        need fonts-dejavu-core "tests: a font for the browser"
}

find_missing_for_ordinary_user() {
    has busybox || need busybox-static "tests: a root file system with a single program"
    has ldconfig || need libc-bin "tests: writes the cache of the dynamic loader"
}

find_missing_for_tests() {
    find_missing_for_ordinary_user
    has unshare || need util-linux "tests: the engine of an example"
    has dash || need dash "tests: the shell of Dockerfiles"
    has dpkg-scanpackages || need dpkg-dev "tests: creates an archive of another distribution"
    has tcc || need tcc "tests: a library that answers as NVIDIA's"
    has gpg || need gnupg "tests: signs that archive"
    has buildah || need buildah "tests: reads danlu's images"
    has docker-registry || need docker-registry "tests: a registry to push to and pull from"
    has docker-credential-ecr-login || need amazon-ecr-credential-helper "tests: AWS's logins for its registries"
    { has docker && has dockerd; } || need docker.io "tests: loads, pulls and runs danlu's images"
    has docker-compose || need docker-compose "tests: the local mode of SageMaker's SDK"
    has sshd || need openssh-server "tests: the server of a remote machine (Debian starts it on installation)"
    { has ssh && has scp && has sftp && has ssh-agent; } || need openssh-client "tests: connects to environments, forwards an agent to build steps"
    has rsync || need rsync "tests: copies a tree into an environment over ssh"
    has faketime || need faketime "tests: builds with a different clock"
    has mkfs.xfs || [[ -x /usr/sbin/mkfs.xfs ]] || need xfsprogs "tests: a file system with reflinks"
    has mkfs.btrfs || [[ -x /usr/sbin/mkfs.btrfs ]] || need btrfs-progs "tests: a file system with quotas"
    has kubectl || need kubernetes-client "tests: applies the operator's manifests"
    { has mpirun && has ompi_info; } || need openmpi-bin "tests: starts the processes of MPIJobs"
    has perl || need perl "tests: starts the processes of MPIJobs without Python"
    has openssl || need openssl "tests: creates server certificates"
    has podman || need podman "tests: loads, pulls and runs danlu's images"
    has skopeo || need skopeo "tests: reads and copies danlu's images"
    has slirp4netns || need slirp4netns "tests: the network of rootless containers"
}

check_python() {
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "setup: danlu needs Python 3.11 or later; python3 is $(python3 --version 2>&1 || true)" >&2
        echo "hint: put a newer python3 on PATH; Debian 12 and Ubuntu 24.04 have one" >&2
        exit 4
    fi
}

lacks_subordinate_ids() { # true for a user other than root without an entry in /etc/sub[ug]id
    [[ $(id -u) != 0 ]] || return 1
    local file
    for file in /etc/subuid /etc/subgid; do
        grep -qE "^($(id -un)|$(id -u)):" "$file" 2>/dev/null || return 0
    done
    return 1
}

free_subordinate_ids() { # print FIRST-LAST, a range above all that are assigned
    local last
    last=$(cat /etc/subuid /etc/subgid 2>/dev/null |
        awk -F: 'BEGIN { m = 99999 } { e = $2 + $3 - 1; if (e > m) m = e } END { print m }')
    echo "$((last + 1))-$((last + 65536))"
}

administrator_command() { # print the command that installs the packages and assigns ids
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

list_missing_packages() { # SUBJECT: who needs them, such as "danlu needs"
    local i
    echo "setup: $1 ${#packages[@]} system package(s) that are not installed:"
    for i in "${!packages[@]}"; do
        printf '  %-24s %s\n' "${packages[i]}" "${reasons[i]}"
    done
}

ask_administrator() {
    if lacks_subordinate_ids; then
        echo "setup: $(id -un) has no subordinate ids, which rootless builds need"
    fi
    echo "setup: this needs root. Please ask an administrator to run:"
    echo
    echo "  $1"
    echo
    echo "Then run the same command again."
    exit 4
} >&2

run_as_root() { # COMMAND: run it as root or with sudo, else print it for an administrator
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
    line=$(administrator_command)
    [[ -n $line ]] || return 0
    ((${#packages[@]} == 0)) || list_missing_packages "danlu needs"
    if ! has apt-get; then
        echo "setup: apt-get not found: install these packages with your system's package manager" >&2
        exit 4
    fi
    [[ $(id -u) != 0 ]] || echo "setup: installing: $line"
    run_as_root "$line"
}

install_for_tests() { # GROUP: tests, ordinary-user or notebook
    has apt-get || return 0
    "find_missing_for_${1//-/_}"
    ((${#packages[@]})) || return 0
    list_missing_packages "the tests need"
    local line="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
    if [[ $(id -u) == 0 ]]; then
        echo "setup: installing: $line"
        run_as_root "$line"
    else
        printf 'setup: tests that need one of them are skipped. To install them, run as root:\n\n'
        printf '  %s\n\n' "$line"
    fi
}

warn_about_user_namespaces() { # Ubuntu 24.04 forbids them to ordinary users
    [[ $(id -u) != 0 ]] || return 0
    local setting=kernel.apparmor_restrict_unprivileged_userns
    [[ $(cat "/proc/sys/${setting//.//}" 2>/dev/null) == 1 ]] || return 0
    echo "setup: AppArmor keeps ordinary users from creating user namespaces, which rootless builds need"
    echo "hint: echo '$setting=0' | sudo tee /etc/sysctl.d/60-danlu.conf && sudo sysctl --system"
} >&2

show_progress() { # TEXT: until stdin ends, say every 10 seconds that it is still going on
    local code start=$SECONDS
    while :; do
        code=0
        read -r -N 4096 -t 10 || code=$?
        ((code)) || continue
        ((code > 128)) || return 0 # above 128: it has not ended
        echo "setup: $1 ($((SECONDS - start)) s)"
    done
}

run_pip() { # pip's warnings are about settings of this machine that this does not use
    $venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes \
        --only-binary :all: --no-deps -r "$1" 2> >(grep -v '^WARNING: ' >&2)
}

install_packages() { # by hash, into the virtual environment
    local total code=0
    total=$(grep -c '^[A-Za-z0-9].*==' constraints.txt)
    echo "setup: installing $total packages (constraints.txt, by hash)"
    {
        run_pip <($venv/bin/python scripts/install_packages.py --bootstrap) &&
            $venv/bin/python scripts/install_packages.py
    } | show_progress "still installing" || code=$?
    if ((code)); then
        echo "setup: uv could not install them; pip does, which takes a minute or two" >&2
        run_pip constraints.txt | show_progress "still installing"
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
    echo "setup: creating $venv"
    python3 -m venv --clear $venv
    install_packages
    echo "setup: installing danlu"
    $venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-index \
        --no-build-isolation --editable .
    # If PYTHONDONTWRITEBYTECODE is set, every command would compile danlu again.
    $venv/bin/python -m compileall -q src
    echo "$want" >$stamp
    echo "setup: done; try $venv/bin/danlu --help"
}

case ${1:-} in
    --tests | --ordinary-user | --notebook)
        install_for_tests "${1#--}"
        exit
        ;;
esac
check_python
install_system_packages
make_environment
warn_about_user_namespaces
