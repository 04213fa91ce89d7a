. "$ROOT/tests/e2e/pages/framework.sh" --framework tensorflow --worker 2 -- TF_CONFIG
cp train.py coordinator.py
cp train.py session.py
