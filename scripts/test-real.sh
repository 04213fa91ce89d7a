#!/usr/bin/env bash
# Run the real tests. Those that fail are run once more, one after another: if all pass then, so does
# the run, and its last line names them as unsteady, so that they are mended next.
#
#   scripts/test-real.sh [PYTEST ARGUMENT ...]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly MAX_UNSTEADY=8 # more failures than that have a common cause, which a second run only delays
readonly TESTS_FAILED=1 # pytest's exit code
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

run_pytest() { .venv/bin/python -m pytest -rfE --durations=25 -o "cache_dir=$cache" "$@"; }

code=0
# More than CI's two processors: they often wait.
run_pytest -n 4 --dist loadfile "$@" || code=$?
((code == TESTS_FAILED)) || exit "$code"

readarray -t failed < <(.venv/bin/python -c '
import json, sys
print(*sorted(json.load(open(sys.argv[1]))), sep="\n")' "$cache/v/cache/lastfailed")
((${#failed[@]} <= MAX_UNSTEADY)) || exit "$code"
printf '\n%s of the tests failed; they run once more by themselves\n' "${#failed[@]}"
run_pytest --last-failed "$@" || exit
printf 'unsteady: %s\n' "${failed[@]}"
