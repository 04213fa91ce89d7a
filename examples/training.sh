#!/usr/bin/env bash
# Sourced by the `verify` of each training example: training is judged by its result.
set -euo pipefail
danlu=${DANLU:-../../.venv/bin/danlu}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

build() { # IMAGE: the environment of this directory, by the name that its manifest gives
    echo "verify: danlu build -t $1"
    "$danlu" build -t "$1"
}

trains() { # RANKS ARGUMENTS...: the job ends well, its loss falls, and so many ranks agree
    local ranks=$1
    shift
    echo "verify: danlu train $*"
    "$danlu" train --replace "$@" 2>&1 | tee "$log"
    grep -Eq "result: $ranks ranks agree on [0-9a-f]+; loss" "$log" ||
        { echo "verify: danlu train $*: no result of $ranks ranks" >&2; exit 1; }
}
