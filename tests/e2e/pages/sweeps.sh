cat >train.py <<'END'
import json
import os
import ssl
import urllib.request
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):
    import torch

rate = float(os.environ["DANLU_SWEEP_LR"])
metrics = [{"name": name, "value": str((rate - 0.01) ** 2)} for name in ("loss", "val_loss")]
status = {"lastUpdatedTime": "2026-01-23T10:30:45Z", "progressPercentage": 100, "metrics": metrics}
authority = os.environ.get("KUBEFLOW_TRAINER_SERVER_CA_CERT")
token = Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text()
request = urllib.request.Request(
    os.environ["KUBEFLOW_TRAINER_SERVER_URL"],
    json.dumps({"trainerStatus": status}).encode(),
    {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
)
context = ssl.create_default_context(cafile=authority) if authority else None
urllib.request.urlopen(request, context=context).close()
END
cat >build.envd <<'END'
def build():
    base(os="debian12")
    install.python()
END
danlu build -t framework-$$:1
danlu train train.py --framework pytorch --worker 1 --image framework-$$:1 --dry-run -o yaml >job.yaml
rm build.envd danlu.lock
