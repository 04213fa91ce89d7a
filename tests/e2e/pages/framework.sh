# Arguments: the options of a job for the manifest, then `--` and variables that its replicas have.
# The program has no framework: it checks what danlu sets for one (examples/*/verify train for real).
# The name of its image is its own: pages that are run at the same time have one store.
options=()
while [[ $1 != -- ]]; do
    options+=("$1")
    shift
done
shift
cat >train.py <<END
import os
import sys

print("trained", sys.argv[1:])
missing = [name for name in "$*".split() if name not in os.environ]
sys.exit(f"not set: {missing}" if missing else 0)
END
cat >build.envd <<'END'
def build():
    base(os="debian12")
    install.python()
END
danlu build -t framework-$$:1
danlu train train.py "${options[@]}" --image framework-$$:1 --dry-run -o yaml >job.yaml
