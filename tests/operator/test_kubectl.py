"""Install, upgrade, use and uninstall with the real kubectl and a separate server."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from danlu.operator.installation import (
    list_crds,
    list_manifests,
    render_documents,
)
from danlu.operator.manifests import InstallOptions
from danlu.operator.types import OperatorSettings
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from tests.conftest import ROOT
from tests.kube.servers import ApiServer, real_server
from tests.operator.clients.kubeconfigs import kubeconfig
from tests.operator.clients.kubectl import find_kubectl
from tests.waiting import wait_for

pytestmark = pytest.mark.real
Kubectl = Callable[..., str]
EXAMPLES = sorted([*ROOT.glob("examples/operator/*.yaml"), *ROOT.glob("examples/*/job.yaml")])
#: Examples of a plugin package, whose kind is not built in.
OTHERS = {"add-a-framework"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with real_server(tmp_path_factory.mktemp("kubectl")) as server:
        yield server


@pytest.fixture(scope="module")
def kubectl(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """Runs kubectl against the server and returns its output."""
    program = find_kubectl()
    home = tmp_path_factory.mktemp("home")
    config = kubeconfig(server.access, home / "config")

    def execute(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, f"--kubeconfig={config}", *arguments],
            input=input,
            capture_output=True,
            text=True,
            timeout=50,
            env={"HOME": str(home)},
            check=False,
        )

    def run(*arguments: str, input: str = "", fails: bool = False) -> str:
        outcome = execute(*arguments, input=input)
        assert (outcome.returncode != 0) == fails, outcome.stderr
        return outcome.stderr if fails else outcome.stdout

    # A server is ready before it has collected the schemas that kubectl validates with.
    wait_for(lambda: execute("get", "--raw", "/openapi/v2").returncode == 0)
    return run


def render_install_manifests(image: str = "registry.example/danlu:1", **settings: object) -> str:
    used = OperatorSettings(**settings)  # type: ignore[arg-type]
    documents = list_manifests(InstallOptions(image=image, settings=used))
    return render_documents(documents, form="yaml")


@pytest.fixture(scope="module")
def installation(kubectl: Kubectl) -> None:
    """Install the operator as the guide describes."""
    kubectl(
        "apply", "--server-side", "-f", "-", input=render_install_manifests(reports_address=":8443")
    )
    names = [f"crd/{framework.plural}.kubeflow.org" for framework in BUILT_IN_FRAMEWORKS]
    kubectl("wait", "--for=condition=Established", *names, "--timeout=20s")


def job(kubectl: Kubectl, name: str) -> str:
    return (ROOT / "examples" / "operator" / name).read_text()


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize(
    "path",
    [example for example in EXAMPLES if example.parent.name not in OTHERS],
    ids=lambda path: str(path.relative_to(ROOT / "examples")),
)
def test_every_example_is_accepted(kubectl: Kubectl, path: Path) -> None:
    output = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(path))
    assert "created (server dry run)" in output


@pytest.mark.usefixtures("installation")
def test_the_decorator_s_deployment_is_accepted(kubectl: Kubectl) -> None:
    path = ROOT / "examples" / "decorator" / "decorator.yaml"
    output = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(path))
    assert output.count("created (server dry run)") == 2


@pytest.mark.usefixtures("installation")
def test_applied_again_nothing_changes(kubectl: Kubectl) -> None:
    before = kubectl("get", "deploy,sa,cm,svc,role", "-n", "danlu-system", "-o", "json")
    kubectl(
        "apply", "--server-side", "-f", "-", input=render_install_manifests(reports_address=":8443")
    )
    after = kubectl("get", "deploy,sa,cm,svc,role", "-n", "danlu-system", "-o", "json")
    assert versions(after) == versions(before)


def versions(listed: str) -> dict[str, str]:
    document = msgspec.json.decode(listed)["items"]
    return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in document}


@pytest.mark.usefixtures("installation")
def test_jobs_are_shown_scaled_and_explained(kubectl: Kubectl) -> None:
    path = str(ROOT / "examples" / "operator" / "pytorchjob-elastic.yaml")
    kubectl("apply", "-f", path)
    kubectl("scale", "pytorchjob/pytorch-elastic", "--replicas=3")
    where = "jsonpath={.spec.pytorchReplicaSpecs.Worker.replicas}"
    assert kubectl("get", "pytorchjob", "pytorch-elastic", "-o", where) == "3"
    condition = '{"type": "Created", "status": "True"}'
    patch = f'{{"status": {{"conditions": [{condition}]}}}}'
    kubectl(
        "patch", "pytorchjob/pytorch-elastic", "--subresource=status", "--type=merge", "-p", patch
    )
    heads, line = kubectl("get", "pytorchjobs").splitlines()
    assert heads.split() == ["NAME", "STATE", "AGE"]
    assert line.split()[:2] == ["pytorch-elastic", "Created"]
    assert "backoffLimit" in kubectl("explain", "pytorchjob.spec.runPolicy")
    kubectl("delete", "pytorchjob", "pytorch-elastic")


@pytest.mark.usefixtures("installation")
def test_a_mistake_is_refused_with_its_field(kubectl: Kubectl) -> None:
    text = job(kubectl, "pytorchjob.yaml").replace("name: pytorch\n", "name: torch\n")
    output = kubectl("apply", "-f", "-", input=text, fails=True)
    assert "needs a container named 'pytorch'" in output
    text = job(kubectl, "pytorchjob.yaml").replace("cleanPodPolicy: Running", "cleanPodPolicy: run")
    assert "spec.runPolicy.cleanPodPolicy" in kubectl("apply", "-f", "-", input=text, fails=True)


@pytest.mark.usefixtures("installation")
def test_an_upgrade_keeps_the_jobs(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", input=job(kubectl, "tfjob.yaml"))
    uid = kubectl("get", "tfjob", "tensorflow-digits", "-o", "jsonpath={.metadata.uid}")
    later = render_install_manifests("registry.example/danlu:2", reports_address=":8443", threads=4)
    kubectl("apply", "--server-side", "-f", "-", input=later)
    where = "jsonpath={.spec.template.spec.containers[0].image}"
    assert kubectl("get", "deploy", "danlu-operator", "-n", "danlu-system", "-o", where).endswith(
        "danlu:2"
    )
    assert uid == kubectl("get", "tfjob", "tensorflow-digits", "-o", "jsonpath={.metadata.uid}")
    kubectl(
        "apply", "--server-side", "-f", "-", input=render_install_manifests(reports_address=":8443")
    )


@pytest.mark.usefixtures("installation")
def test_definitions_of_kubeflow_s_own_operator_are_replaced(kubectl: Kubectl) -> None:
    plain = render_documents(list_crds(OperatorSettings(kinds=("JAXJob",))), form="yaml")
    other = plain.replace("maxLength: 63", "maxLength: 253")
    kubectl(
        "apply",
        "--server-side",
        "--field-manager=kubeflow",
        "--force-conflicts",
        "-f",
        "-",
        input=other,
    )
    assert "conflict" in kubectl("apply", "--server-side", "-f", "-", input=plain, fails=True)
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=plain)


def test_the_definitions_are_small_enough_for_plain_apply(kubectl: Kubectl) -> None:
    text = render_documents(list_crds(OperatorSettings()), form="yaml")
    assert kubectl("apply", "--dry-run=server", "-f", "-", input=text).count("dry run") == 10


@pytest.mark.usefixtures("installation")
def test_uninstall_leaves_nothing(kubectl: Kubectl) -> None:
    """Must be the last test: it uninstalls what the others use."""
    kubectl(
        "delete", "--wait=false", "-f", "-", input=render_install_manifests(reports_address=":8443")
    )
    kubectl(
        "wait",
        "--for=delete",
        *[f"crd/{framework.plural}.kubeflow.org" for framework in BUILT_IN_FRAMEWORKS],
    )
    label = "app.kubernetes.io/name=danlu-operator"
    kinds = "crd,clusterrole,clusterrolebinding"
    assert kubectl("get", kinds, "-l", label, "-o", "name") == ""
    result = kubectl("get", "crd", "-o", "name")
    assert "kubeflow.org" not in result
