"""What ``danlu operator manifests`` and ``crds`` print, and what the flags mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from danlu.cli.operator import flag_options
from danlu.errors import UsageError
from danlu.operator.flags import FLAGS, format_arguments, parse_settings
from danlu.operator.manifests import InstallOptions, install_manifests
from danlu.operator.rbac import operator_rules
from danlu.operator.types import DecoratorSpec, OperatorSettings
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from danlu.training.yaml_with_lines import read_yaml
from tests.cli.conftest import Cli, cli, home

__all__ = ["cli", "home"]

Json = dict[str, Any]
ALL: Json = {
    "kinds": ("PyTorchJob", "TFJob"),
    "namespace": "team",
    "threads": 3,
    "rate": 12.5,
    "burst": 20,
    "metrics_address": "",
    "health_address": ":9",
    "reports_address": ":8443",
    "reports_url": "https://here:1",
    "leader_elect": True,
    "lease_name": "one",
    "lease_namespace": "there",
    "gang_scheduler": "volcano",
    "cluster_domain": "a.b",
    "images": {"kubeflow/kubectl-delivery:latest": "mirror/kubectl:1", "a": "b=c"},
    "wait_for_master": "alpine",
    "decorators": (DecoratorSpec("http://a/?b=c"), DecoratorSpec("http://b/")),
    "decorator_config": "/etc/x",
}


def parsed(settings: OperatorSettings) -> OperatorSettings:
    """What the command line makes of the arguments that settings are written as."""

    @click.command()
    @flag_options(environ=True)
    def command(**flags: Any) -> OperatorSettings:
        return parse_settings(flags)

    found = command.main(list(format_arguments(settings)), standalone_mode=False)
    assert isinstance(found, OperatorSettings)
    return found


@pytest.mark.parametrize("field", ALL)
def test_arguments_give_the_settings_they_were_made_of(field: str) -> None:
    settings = OperatorSettings(**{field: ALL[field]})
    assert format_arguments(settings) != ()
    assert parsed(settings) == settings


def test_all_flags_at_once() -> None:
    settings = OperatorSettings(**ALL)
    assert parsed(settings) == settings
    assert {flag.field for flag in FLAGS} == set(ALL)


def test_no_flags_are_the_defaults() -> None:
    assert format_arguments(OperatorSettings()) == ()
    assert parsed(OperatorSettings()) == OperatorSettings()


def test_variables_of_kubeflow_s_operator_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEFLOW_NAMESPACE", "team")
    monkeypatch.setenv("CUSTOM_CLUSTER_DOMAIN", "example.org")
    found = parsed(OperatorSettings())
    assert (found.namespace, found.cluster_domain) == ("team", "example.org")
    assert parsed(OperatorSettings(namespace="mine")).namespace == "mine"


def test_go_s_way_to_write_a_switch_is_understood() -> None:
    @click.command()
    @flag_options()
    def command(**flags: Any) -> OperatorSettings:
        return parse_settings(flags)

    for text, wanted in (("", True), ("=true", True), ("=false", False)):
        found = command.main([f"--leader-elect{text}", "--namespace", "a"], standalone_mode=False)
        assert (found.leader_elect, found.namespace) == (wanted, "a")


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        (["PyTorchJob", "tfjob"], ("PyTorchJob", "TFJob")),
        (["pytorchjob,TFJOB , mpijob"], ("PyTorchJob", "TFJob", "MPIJob")),
        (["JAXJob", "jaxjob"], ("JAXJob",)),
    ],
)
def test_schemes_are_chosen_as_kubeflow_s_are(given: list[str], kinds: tuple[str, ...]) -> None:
    assert parse_settings({"enable_scheme": tuple(given)}).kinds == kinds


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("enable_scheme", ("PyTorhcJob",)),
        ("replace_image", ("a",)),
        ("controller_threads", 0),
        ("kube_api_qps", -1.0),
        ("namespace", "Team_A"),
        ("decorator", ("decorator.platform.svc",)),
        ("metrics_bind_address", "8080"),
        ("metrics_bind_address", ":http"),
        ("reports_bind_address", ":65536"),
        ("reports_bind_address", ":0"),
    ],
)
def test_a_flag_without_sense_is_refused(flag: str, value: object) -> None:
    with pytest.raises(UsageError):
        parse_settings({flag: value})


def test_an_address_of_0_is_none_as_in_kubeflow_s() -> None:
    found = parse_settings({"metrics_bind_address": "0", "health_probe_bind_address": "[::]:8081"})
    assert (found.metrics_address, found.health_address) == ("", "[::]:8081")


@pytest.mark.parametrize(
    "wanted", [("",), ("team/Danlu:1",), ("r/danlu:1", "--install-namespace", "danlu_system")]
)
def test_manifests_that_no_cluster_takes_are_not_written(
    cli: Cli, home: Path, wanted: tuple[str, ...]
) -> None:
    image, *flags = wanted
    result = cli("operator", "manifests", "--image", image, *flags)
    assert (result.code, result.out) == (2, "")


def objects(**options: Any) -> dict[str, Json]:
    settings = OperatorSettings(**options.pop("settings", {}))
    found = install_manifests(
        BUILT_IN_FRAMEWORKS, InstallOptions(image="r/danlu:1", settings=settings, **options)
    )
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj for obj in found}


def test_the_manifests_are_complete_and_in_order() -> None:
    found = install_manifests(
        BUILT_IN_FRAMEWORKS, InstallOptions(image="r/danlu:1", settings=OperatorSettings())
    )
    kinds = [obj["kind"] for obj in found]
    assert kinds.count("CustomResourceDefinition") == 7
    assert kinds.index("Namespace") < kinds.index("ServiceAccount") < kinds.index("Deployment")
    assert len(found) == len(objects())


def test_the_deployment_passes_the_flags() -> None:
    found = objects(settings={"kinds": ("TFJob",), "reports_address": ":8443"}, replicas=2)
    spec = found["Deployment/danlu-operator"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert spec["replicas"] == 2
    assert "--enable-scheme=TFJob" in container["args"]
    url = "https://danlu-operator-reports.danlu-system.svc:8443"
    assert f"--reports-url={url}" in container["args"]
    assert found["Service/danlu-operator-reports"]["spec"]["ports"][0]["port"] == 8443
    assert [name for name in found if name.startswith("CustomRes")] == [
        "CustomResourceDefinition/tfjobs.kubeflow.org"
    ]


def test_the_operator_pod_is_unprivileged_and_survives_a_slow_probe() -> None:
    pod = objects()["Deployment/danlu-operator"]["spec"]["template"]["spec"]
    who = pod["securityContext"]
    assert (who["runAsUser"], who["runAsGroup"]) == (65532, 65532)
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    probes = container["livenessProbe"], container["readinessProbe"]
    assert [probe["timeoutSeconds"] for probe in probes] == [5, 5]


def test_an_operator_of_one_namespace_has_no_rights_elsewhere() -> None:
    found = objects(settings={"namespace": "team"})
    assert found["Role/danlu-operator"]["metadata"]["namespace"] == "team"
    assert "ClusterRole/danlu-operator" not in found
    assert "ClusterRoleBinding/danlu-operator" not in found


def test_priority_classes_are_of_no_namespace_and_need_a_cluster_role() -> None:
    for namespace in ("", "team"):
        found = objects(settings={"gang_scheduler": "volcano", "namespace": namespace})
        (rule,) = found["ClusterRole/danlu-operator-cluster"]["rules"]
        assert (rule["resources"], rule["verbs"]) == (["priorityclasses"], ["get"])
        binding = found["ClusterRoleBinding/danlu-operator-cluster"]
        assert binding["roleRef"]["name"] == "danlu-operator-cluster"
    assert "ClusterRole/danlu-operator-cluster" not in objects()


def test_decorators_travel_in_a_config_map() -> None:
    found = objects(decorators="- url: http://a/\n")
    deployment = found["Deployment/danlu-operator"]["spec"]["template"]
    assert found["ConfigMap/danlu-operator-decorators"]["data"]["decorators.yaml"]
    args = deployment["spec"]["containers"][0]["args"]
    assert "--decorator-config=/etc/danlu/decorators.yaml" in args
    again = objects(decorators="- url: http://b/\n")["Deployment/danlu-operator"]
    assert again["spec"]["template"]["metadata"] != deployment["metadata"]


def allowed(**settings: Any) -> set[tuple[str, str]]:
    found = operator_rules(BUILT_IN_FRAMEWORKS, OperatorSettings(**settings))
    return {
        (resource, verb)
        for rule in found.jobs
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_no_right_is_asked_for_that_nothing_needs() -> None:
    plain = allowed(kinds=("TFJob",))
    for resource in ("secrets", "configmaps", "roles", "pods/exec", "podgroups"):
        assert not [obj for obj in plain if obj[0] == resource]
    assert ("pods/exec", "create") in allowed(kinds=("MPIJob",))
    assert ("podgroups", "watch") in allowed(kinds=("TFJob",), gang_scheduler="volcano")
    assert ("secrets", "create") in allowed(kinds=("TFJob",), reports_address=":1")


def test_secrets_of_others_are_never_read() -> None:
    every = allowed(reports_address=":1", gang_scheduler="volcano")
    assert not {("secrets", verb) for verb in ("get", "list", "watch")} & every
    assert "*" not in {part for obj in every for part in obj}


def test_the_definitions_are_written_as_yaml(cli: Cli) -> None:
    found = cli("operator", "crds", "--enable-scheme", "jaxjob,tfjob")
    assert found.code == 0
    names = [obj["metadata"]["name"] for obj, _ in read_yaml(found.out, "crds") if obj]
    assert names == ["jaxjobs.kubeflow.org", "tfjobs.kubeflow.org"]


def test_the_manifests_are_written_as_json(cli: Cli) -> None:
    found = cli("operator", "manifests", "--image", "r/danlu:1", "--format", "json")
    items = msgspec.json.decode(found.out)["items"]
    assert items[-1]["spec"]["template"]["spec"]["containers"][0]["image"] == "r/danlu:1"
    assert "--leader-elect" in items[-1]["spec"]["template"]["spec"]["containers"][0]["args"]


def test_ignored_flags_of_kubeflows_operator_cause_a_warning(cli: Cli) -> None:
    found = cli("operator", "manifests", "--image", "x", "--webhook-server-port=9443")
    assert found.code == 0
    assert "--webhook-server-port has no effect" in found.err


def test_an_unknown_kind_is_wrong_usage(cli: Cli) -> None:
    found = cli("operator", "crds", "--enable-scheme", "PyTorhcJob")
    assert found.code == 2
    assert "PyTorchJob" in found.err


def test_an_invalid_decorator_file_is_an_error_before_the_operator_starts(
    cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "decorators.yaml"
    file.write_text("- uri: http://a/\n")
    found = cli("operator", "manifests", "--image", "x", "--decorator-config", str(file))
    assert found.code == 2
    assert "invalid list of decorators" in found.err
