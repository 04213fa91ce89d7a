#!/usr/bin/env bash
# `make check`: run all checks, and list those that failed at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
failed=()

check() {
    local name=$1
    shift
    echo "== $name"
    "$@" || failed+=("$name")
}

check format $bin/ruff format --check
check lint $bin/ruff check
check types $bin/mypy
check layers $bin/lint-imports --cache-dir .import_linter_cache
check cycles $bin/python scripts/cycles.py
check names $bin/python scripts/names.py
check readability $bin/python scripts/readability.py --check
check constraints $bin/python scripts/constraints.py --check
check docs $bin/python scripts/docs.py --check
check shell bash -c 'for file in scripts/*.sh .ci/run examples/*/verify; do bash -n "$file" || exit 1; done'

if ((${#failed[@]})); then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
echo "all checks passed"
