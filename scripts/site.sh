#!/usr/bin/env bash
# Build the documentation site in build/site; a broken link is an error.
# MkDocs is installed in a separate environment, .venv-docs (constraints-docs.txt, by hash).
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
