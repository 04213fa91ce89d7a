mkdir image && cd image
cp "$ROOT/examples/operator/image/build.envd" .
cp "$WHEELS"/danlu-*.whl .
danlu build -t registry.example/team/danlu:1 --push
cd ..
uninstall() {
    danlu operator manifests --image registry.example/team/danlu:1 |
        kubectl delete --ignore-not-found -f -
}
trap uninstall EXIT
mkdir digits && cd digits
cat >image.envd <<'END-OF-FILE'
def build():
    base(os="debian12")
    install.python()
END-OF-FILE
danlu build -f image.envd -t registry.example/team/env:1 --push
echo 'import os; print("rank", os.environ["RANK"])' >train.py
