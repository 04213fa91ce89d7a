"""Output of ``danlu operator manifests`` and ``crds``, and the effect of flags."""

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
from danlu.training.registry import BUILT_IN_FRAMEWORKS, list_kinds
from danlu.util.yaml_with_lines import read_yaml
from tests.cli.conftest import Cli, cli, home

__all__ = ["cli", "home"]

Json = dict[str, Any]
ALL: Json = {
    "kinds": ("PyTorchJob", "TFJob"),
    "versions": {"MPIJob": "v2beta1"},
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
    "decorators": (DecoratorSpec("http://a/?b=c"), DecoratorSpec("http://b/")),
    "decorator_config": "/etc/x",
}


def parse_rendered_arguments(settings: OperatorSettings) -> OperatorSettings:
    """Parse the arguments rendered for settings with the command line."""

    @click.command()
    @flag_options(environ=True)
    def command(**flags: Any) -> OperatorSettings:
        return parse_settings(flags)

    result = command.main(list(format_arguments(settings)), standalone_mode=False)
    assert isinstance(result, OperatorSettings)
    return result


@pytest.mark.parametrize("field", ALL)
def test_settings_rendered_as_arguments_parse_to_the_same_settings(field: str) -> None:
    settings = OperatorSettings(**{field: ALL[field]})
    assert format_arguments(settings) != ()
    assert parse_rendered_arguments(settings) == settings


def test_all_flags_at_once() -> None:
    settings = OperatorSettings(**ALL)
    assert parse_rendered_arguments(settings) == settings
    assert {flag.field for flag in FLAGS} == set(ALL)


def test_no_flags_are_the_defaults() -> None:
    assert format_arguments(OperatorSettings()) == ()
    assert parse_rendered_arguments(OperatorSettings()) == OperatorSettings()


def test_variables_of_kubeflow_s_operator_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEFLOW_NAMESPACE", "team")
    monkeypatch.setenv("CUSTOM_CLUSTER_DOMAIN", "example.org")
    rendered_arguments = parse_rendered_arguments(OperatorSettings())
    assert (rendered_arguments.namespace, rendered_arguments.cluster_domain) == (
        "team",
        "example.org",
    )
    assert parse_rendered_arguments(OperatorSettings(namespace="mine")).namespace == "mine"


def test_go_s_way_to_write_a_switch_is_understood() -> None:
    @click.command()
    @flag_options()
    def command(**flags: Any) -> OperatorSettings:
        return parse_settings(flags)

    for text, expected in (("", True), ("=true", True), ("=false", False)):
        result = command.main([f"--leader-elect{text}", "--namespace", "a"], standalone_mode=False)
        assert (result.leader_elect, result.namespace) == (expected, "a")


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
        ("mpijob_version", "v2"),
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
    settings = parse_settings(
        {"metrics_bind_address": "0", "health_probe_bind_address": "[::]:8081"}
    )
    assert (settings.metrics_address, settings.health_address) == ("", "[::]:8081")


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
    result = install_manifests(
        BUILT_IN_FRAMEWORKS, InstallOptions(image="r/danlu:1", settings=settings, **options)
    )
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj for obj in result}


def test_the_manifests_are_complete_and_in_order() -> None:
    result = install_manifests(
        BUILT_IN_FRAMEWORKS, InstallOptions(image="r/danlu:1", settings=OperatorSettings())
    )
    kinds = [obj["kind"] for obj in result]
    assert kinds.count("CustomResourceDefinition") == 7
    assert kinds.index("Namespace") < kinds.index("ServiceAccount") < kinds.index("Deployment")
    assert len(result) == len(objects())


def test_the_deployment_passes_the_flags() -> None:
    result = objects(settings={"kinds": ("TFJob",), "reports_address": ":8443"}, replicas=2)
    spec = result["Deployment/danlu-operator"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert spec["replicas"] == 2
    assert "--enable-scheme=TFJob" in container["args"]
    url = "https://danlu-operator-reports.danlu-system.svc:8443"
    assert f"--reports-url={url}" in container["args"]
    assert result["Service/danlu-operator-reports"]["spec"]["ports"][0]["port"] == 8443
    assert [name for name in result if name.startswith("CustomRes")] == [
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
    result = objects(settings={"namespace": "team"})
    assert result["Role/danlu-operator"]["metadata"]["namespace"] == "team"
    assert "ClusterRole/danlu-operator" not in result
    assert "ClusterRoleBinding/danlu-operator" not in result


def test_priority_classes_are_of_no_namespace_and_need_a_cluster_role() -> None:
    for namespace in ("", "team"):
        result = objects(settings={"gang_scheduler": "volcano", "namespace": namespace})
        (*_, rule) = result["ClusterRole/danlu-operator-cluster"]["rules"]
        assert (rule["resources"], rule["verbs"]) == (["priorityclasses"], ["get"])
        binding = result["ClusterRoleBinding/danlu-operator-cluster"]
        assert binding["roleRef"]["name"] == "danlu-operator-cluster"
    assert "ClusterRole/danlu-operator-cluster" not in objects(settings={"kinds": ("TFJob",)})


@pytest.mark.parametrize("version", ["v1", "v2beta1"])
def test_one_version_of_a_kind_is_installed(version: str) -> None:
    settings = parse_settings({"mpijob_version": version})
    result = install_manifests(
        list_kinds((), settings.versions), InstallOptions(image="r/danlu:1", settings=settings)
    )
    by_name = {f"{obj['kind']}/{obj['metadata']['name']}": obj for obj in result}
    definition = by_name["CustomResourceDefinition/mpijobs.kubeflow.org"]
    assert [each["name"] for each in definition["spec"]["versions"]] == [version]
    (container,) = by_name["Deployment/danlu-operator"]["spec"]["template"]["spec"]["containers"]
    assert ("--mpijob-version=v2beta1" in container["args"]) == (version == "v2beta1")
    (rule, *_) = by_name["ClusterRole/danlu-operator-cluster"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["clustertrainingruntimes"], ["get"])
    (rule,) = [
        rule
        for rule in by_name["ClusterRole/danlu-operator-cluster"]["rules"]
        if rule["apiGroups"] == ["apiextensions.k8s.io"]
    ]
    assert (rule["verbs"], rule["resourceNames"]) == (["get"], ["mpijobs.kubeflow.org"])


def test_a_launcher_over_ssh_needs_secrets_instead_of_roles() -> None:
    allowed = list_allowed_verbs(kinds=("MPIJob",), versions={"MPIJob": "v2beta1"})
    assert {verb for resource, verb in allowed if resource == "secrets"} == {"create", "patch"}
    assert not {"roles", "pods/exec", "serviceaccounts"} & {resource for resource, _ in allowed}


def test_decorators_travel_in_a_config_map() -> None:
    result = objects(decorators="- url: http://a/\n")
    deployment = result["Deployment/danlu-operator"]["spec"]["template"]
    assert result["ConfigMap/danlu-operator-decorators"]["data"]["decorators.yaml"]
    args = deployment["spec"]["containers"][0]["args"]
    assert "--decorator-config=/etc/danlu/decorators.yaml" in args
    again = objects(decorators="- url: http://b/\n")["Deployment/danlu-operator"]
    assert again["spec"]["template"]["metadata"] != deployment["metadata"]


def list_allowed_verbs(**settings: Any) -> set[tuple[str, str]]:
    options = OperatorSettings(**settings)
    result = operator_rules(list_kinds(options.kinds, options.versions), options)
    return {
        (resource, verb)
        for rule in result.jobs
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_role_contains_no_unused_permission() -> None:
    plain = list_allowed_verbs(kinds=("TFJob",))
    for resource in ("secrets", "configmaps", "roles", "pods/exec", "podgroups"):
        assert not [obj for obj in plain if obj[0] == resource]
    assert ("pods/exec", "create") in list_allowed_verbs(kinds=("MPIJob",))
    assert ("podgroups", "watch") in list_allowed_verbs(kinds=("TFJob",), gang_scheduler="volcano")
    assert ("secrets", "create") in list_allowed_verbs(kinds=("TFJob",), reports_address=":1")


def test_secrets_of_others_are_never_read() -> None:
    every = list_allowed_verbs(
        reports_address=":1", gang_scheduler="volcano", versions={"MPIJob": "v2beta1"}
    )
    assert not {("secrets", verb) for verb in ("get", "list", "watch")} & every
    assert "*" not in {part for obj in every for part in obj}


def test_the_definitions_are_written_as_yaml(cli: Cli) -> None:
    result = cli("operator", "crds", "--enable-scheme", "jaxjob,tfjob")
    assert result.code == 0
    names = [obj["metadata"]["name"] for obj, _ in read_yaml(result.out, "crds") if obj]
    assert names == ["jaxjobs.kubeflow.org", "tfjobs.kubeflow.org"]


def test_the_definition_of_another_version_is_written(cli: Cli) -> None:
    result = cli("operator", "crds", "--enable-scheme", "mpijob", "--mpijob-version", "v2beta1")
    ((definition, _),) = read_yaml(result.out, "crds")
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    options = {name: schema.get("default") for name, schema in spec["properties"].items()}
    assert options == {
        "slotsPerWorker": 1,
        "runLauncherAsWorker": False,
        "sshAuthMountPath": "/root/.ssh",
        "launcherCreationPolicy": "AtStartup",
        "mpiImplementation": "OpenMPI",
        "mpiReplicaSpecs": None,
        "runPolicy": None,
    }


def test_the_manifests_are_written_as_json(cli: Cli) -> None:
    result = cli("operator", "manifests", "--image", "r/danlu:1", "--format", "json")
    items = msgspec.json.decode(result.out)["items"]
    assert items[-1]["spec"]["template"]["spec"]["containers"][0]["image"] == "r/danlu:1"
    assert "--leader-elect" in items[-1]["spec"]["template"]["spec"]["containers"][0]["args"]


def test_ignored_flags_of_kubeflows_operator_cause_a_warning(cli: Cli) -> None:
    result = cli("operator", "manifests", "--image", "x", "--webhook-server-port=9443")
    assert result.code == 0
    assert "--webhook-server-port has no effect" in result.err


def test_an_unknown_kind_is_wrong_usage(cli: Cli) -> None:
    result = cli("operator", "crds", "--enable-scheme", "PyTorhcJob")
    assert result.code == 2
    assert "PyTorchJob" in result.err


def test_an_invalid_decorator_file_is_an_error_before_the_operator_starts(
    cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "decorators.yaml"
    file.write_text("- uri: http://a/\n")
    result = cli("operator", "manifests", "--image", "x", "--decorator-config", str(file))
    assert result.code == 2
    assert "invalid list of decorators" in result.err
