mkdir danlu
cp -r "$ROOT/examples" "$ROOT/src" "$ROOT"/{pyproject.toml,setup.py,README.md,LICENSE} danlu
cd danlu
