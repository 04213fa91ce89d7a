#!/usr/bin/env bash
# Install danlu as the README says (a wheel built once), outside the checkout, and use it: `danlu doctor`, `init`,
# `run`, `train`, and a notebook cell in the user's own environment. If run as root, do it twice: as
# root, then as another account, but for `danlu run` and the notebook.
#
#     scripts/test-install.sh [WHEEL]       WHEEL: a built wheel to install (for the second run)
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
umask 022

work=$(mktemp -d "${TMPDIR:-/tmp}/danlu-install.XXXXXX")
account=danlu-install
cleanup() {
    rm -rf "$work"
    if [[ $(id -u) == 0 ]] && id $account >/dev/null 2>&1; then
        userdel --remove $account >/dev/null 2>&1 || true
    fi
}
trap cleanup EXIT

step() { printf '\n--- %s: %s\n' "$(id -un)" "$*"; }

wheel=${1:-}
if [[ -z $wheel ]]; then
    step "build the wheel"
    python3 -m venv "$work/build"
    "$work/build/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps \
        --wheel-dir "$work/dist" "$checkout"
    wheel=$(echo "$work"/dist/danlu-*.whl)
fi

# The tested versions; users get the newest ones.
versions=$work/versions.txt
grep -v '^ *--hash' "$checkout/constraints.txt" | sed 's/ *\\$//' >"$versions"

step "install it as a tool"
python3 -m venv "$work/uv"
"$work/uv/bin/python" -m pip install -q --disable-pip-version-check --constraint "$versions" uv
# uv does not read pip's configuration, in which this machine may name its index.
configured() { "$work/uv/bin/python" -m pip config get "global.$1" 2>/dev/null || true; }
index=$(configured index-url) certificate=$(configured cert)
[[ -z $index ]] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
[[ -z $certificate ]] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$certificate}
export UV_TOOL_DIR=$work/tools UV_TOOL_BIN_DIR=$work/bin UV_CACHE_DIR=$work/cache
"$work/uv/bin/uv" tool install -q --python python3 --constraints "$versions" "$wheel"
export PATH="$work/bin:$PATH" DANLU_HOME="$work/home" DANLU_UPKEEP=off
export IPYTHONDIR="$work/ipython"
unset PYTHONPATH
[[ $(command -v danlu) == "$work/bin/danlu" ]]

mkdir "$work/project"
cd "$work/project"

step "danlu doctor"
# It fails if the machine lacks something, such as access to /dev/net/tun, that is not needed here.
danlu doctor >doctor || [[ $? == 4 || $? == 1 ]]
grep '^ok *OCI runtime' doctor || { cat doctor; exit 1; }

step "danlu init"
cat >main.py <<'END'
import six
print("six", six.__version__)
END
danlu init
grep -q six build.envd

if [[ $# == 0 ]]; then # the second account's build is in scripts/fresh-root.sh
    step "danlu run"
    danlu run -- python main.py | tee output
    grep -q '^six ' output
fi

step "danlu train"
mkdir training
cat >training/count.py <<'END'
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
END
(cd training && danlu train count.py --framework pytorch --worker 2 --name install) | tee output
grep -q 'rank 1 of 2' output

if [[ $# == 0 ]]; then # `make test-fresh` has the notebook tests as an ordinary user
    step "a notebook cell"
    "$work/uv/bin/uv" venv -q --python python3 "$work/jupyter"
    "$work/uv/bin/uv" pip install -q --python "$work/jupyter" --constraints "$versions" \
        "danlu[notebook] @ file://$wheel"
    cat >cell.py <<'END'
from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name="python3")
code = "%%distributed --framework pytorch --worker 2 --return total\ntotal = 6 * 7\n"
for cell in ("%load_ext danlu.notebook", code, "assert total == 42, total"):
    reply = client.execute_interactive(cell, timeout=120)
    assert reply["content"]["status"] == "ok", reply["content"]
client.stop_channels()
manager.shutdown_kernel(now=True)
print("the cell returned 42")
END
    (cd training && "$work/jupyter/bin/python" ../cell.py)
fi

if [[ $(id -u) == 0 && $# == 0 ]]; then
    cd /
    id $account >/dev/null 2>&1 || useradd --create-home --shell /bin/bash $account
    chmod 755 "$work" "$work/dist"
    cp "$0" "$checkout/constraints.txt" "$work/dist/" 2>/dev/null ||
        cp "$checkout/scripts/test-install.sh" "$checkout/constraints.txt" "$work/dist/"
    mkdir "$work/dist/scripts"
    mv "$work/dist/test-install.sh" "$work/dist/scripts/"
    # The account inherits only the settings with which this machine reaches the network.
    keep=(PATH LANG http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE
        REQUESTS_CA_BUNDLE PIP_CONFIG_FILE PIP_INDEX_URL PIP_CERT UV_DEFAULT_INDEX)
    variables=()
    for name in "${keep[@]}"; do
        [[ -z ${!name:-} ]] || variables+=("$name=${!name}")
    done
    setpriv --reuid $account --regid $account --init-groups env -i HOME="/home/$account" \
        USER=$account TMPDIR=/tmp "${variables[@]}" bash "$work/dist/scripts/test-install.sh" "$wheel"
fi
step "done"
