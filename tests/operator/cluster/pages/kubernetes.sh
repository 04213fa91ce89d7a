mkdir digits && cd digits
cat >train.py <<'END-OF-FILE'
import os

try:  # the framework is detected from the imports
    import torch
except ImportError:
    print("rank", os.environ["RANK"])
END-OF-FILE
cat >build.envd <<'END-OF-FILE'
def build():
    base(os="debian12")
    install.python()
    io.copy("train.py", "/workspace/")
END-OF-FILE
# The node may have the image of that name from another page, hence two.
danlu build -t registry.example/team/env:1 -t registry.example/team/digits:1 --push
danlu operator crds | kubectl apply --server-side -f -
kubectl wait --for=condition=Established crd --all
danlu operator run --metrics-bind-address= --health-probe-bind-address= &
operator=$!
uninstall() {
    danlu operator crds | kubectl delete -f -
    kill "$operator"
}
trap uninstall EXIT
danlu train train.py --framework pytorch --worker 2 --name manifest \
    --on kubernetes --image registry.example/team/digits:1 --dry-run -o yaml >job.yaml
