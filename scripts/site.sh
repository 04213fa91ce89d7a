#!/usr/bin/env bash
# Build the documentation site in build/site; a broken link is an error.
# MkDocs is installed in a separate environment, .venv-docs (constraints-docs.txt, by hash).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-docs
stamp=$venv/.constraints
if ! cmp -s constraints-docs.txt $stamp; then
    echo "docs: creating $venv (constraints-docs.txt)"
    python3 -m venv --clear --without-pip $venv
    .venv/bin/python scripts/install_packages.py constraints-docs.txt $venv
    cp constraints-docs.txt $stamp
fi
# Material announces the next MkDocs on every run.
NO_MKDOCS_2_WARNING=1 $venv/bin/python -m mkdocs build --strict --clean
echo "docs: build/site/index.html"
