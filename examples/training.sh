#!/usr/bin/env bash
# Helpers for the `verify` scripts of the training examples, which source this file.
set -euo pipefail
danlu=${DANLU:-../../.venv/bin/danlu}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

build() { # IMAGE: build the environment of this directory under the name in its manifest
    echo "verify: danlu build -t $1"
    "$danlu" build -t "$1"
}

expect_training() { # RANKS ARGUMENTS...: the job succeeds, its loss falls, and all RANKS agree
    local ranks=$1
    shift
    echo "verify: danlu train $*"
    "$danlu" train --replace "$@" 2>&1 | tee "$log"
    grep -Eq "result: $ranks ranks agree on [0-9a-f]+; loss" "$log" ||
        { echo "verify: danlu train $*: no result with $ranks ranks" >&2; exit 1; }
}
