#!/usr/bin/env bash
# Build the documentation site into build/site, strictly: a broken link is an error.
# Its tools (constraints-docs.txt, by hash) have an environment of their own, .venv-docs.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-docs
stamp=$venv/.constraints
if ! cmp -s constraints-docs.txt $stamp; then
    echo "docs: creating $venv (constraints-docs.txt)"
    python3 -m venv --clear $venv
    $venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes \
        --only-binary :all: --no-deps -r constraints-docs.txt
    cp constraints-docs.txt $stamp
fi
# Material announces the next MkDocs on every run.
NO_MKDOCS_2_WARNING=1 $venv/bin/mkdocs build --strict --clean
echo "docs: build/site/index.html"
