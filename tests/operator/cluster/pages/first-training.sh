cat >image.envd <<'END-OF-FILE'
def build():
    base(os="debian12")
    install.python()
END-OF-FILE
danlu build -f image.envd -t registry.example/team/env:1 --push
danlu operator crds | kubectl apply --server-side -f -
kubectl wait --for=condition=Established crd --all
danlu operator run --metrics-bind-address= --health-probe-bind-address= &
operator=$!
uninstall() {
    danlu operator crds | kubectl delete -f -
    kill "$operator"
}
trap uninstall EXIT
