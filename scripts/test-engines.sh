#!/usr/bin/env bash
# Run the tests of environments in each engine that this machine can run: danlu's own, Docker, Podman,
# another machine over SSH, and Kubernetes. Root runs them once more as an ordinary user with
# subordinate ids: danlu's own engine and Podman without root. Each run ends with what it skipped, and why.
#
#   scripts/test-engines.sh [PYTEST ARGUMENT ...]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TESTS=(-m real tests/engine tests/remote "$@")

say() { printf '\n--- engines: %s (%s s)\n' "$*" "$SECONDS"; }

code=0
if [[ $(id -u) == 0 ]]; then
    say "as root"
    scripts/test-real.sh "${TESTS[@]}" || code=$?
    say "as an ordinary user"
    .venv/bin/python -m tests.ordinary_user scripts/test-real.sh "${TESTS[@]}" || code=$?
else
    scripts/test-real.sh "${TESTS[@]}" || code=$?
    say "not run: the tests as root, with a Docker daemon and Podman's own (sudo make test-engines)"
fi
exit $code
