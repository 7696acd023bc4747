"""deploy/kubernetes holds together: no cluster and no kustomize is needed to see that.

A small reading of kustomize: resources, generators, JSON patches. What it finds is checked as the API server would, as
far as names go: everything that is referred to exists.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
VARIANTS = ("base", "overlays/gpu")


class Build:
    """What `kubectl apply -k` would send."""

    def __init__(self, folder: Path) -> None:
        self.objects: list[dict[str, Any]] = []
        self.config_maps: dict[str, dict[str, str]] = {}
        self.secrets: dict[str, set[str]] = {}
        self.namespace = ""
        self._read(folder)

    def _read(self, folder: Path) -> None:
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        known = {"apiVersion", "kind", "namespace", "resources", "configMapGenerator", "secretGenerator", "patches"}
        assert set(kustomization) <= known, "this test does not know more of kustomize"
        for name in kustomization.get("resources", []):
            path = folder / name
            if path.is_dir():
                self._read(path.resolve())
            else:
                self.objects += [one for one in yaml.safe_load_all(path.read_text()) if one]
        for generator in kustomization.get("configMapGenerator", []):
            pairs = [literal.split("=", 1) for literal in generator["literals"]]
            assert len({key for key, _ in pairs}) == len(pairs)
            self.config_maps[generator["name"]] = dict(pairs)
        for generator in kustomization.get("secretGenerator", []):
            assert set(generator) == {"name", "files"}, "secrets come from files, never from the repository"
            for file in generator["files"]:
                assert file.startswith("secrets/"), "kustomize reads no file outside its folder"
            self.secrets[generator["name"]] = {Path(file).name for file in generator["files"]}
        for patch in kustomization.get("patches", []):
            self._patch(patch["target"], yaml.safe_load((folder / patch["path"]).read_text()))
        self.namespace = kustomization.get("namespace", self.namespace)

    def _patch(self, target: dict[str, str], operations: list[dict[str, Any]]) -> None:
        found = [
            one for one in self.objects if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])
        ]
        assert len(found) == 1
        assert found[0]["apiVersion"] == f"{target['group']}/{target['version']}"
        for operation in operations:
            assert operation["op"] == "add"
            *steps, last = operation["path"].strip("/").split("/")
            assert last == "-"
            place: Any = found[0]
            for step in steps:
                place = place[step]
            place.append(deepcopy(operation["value"]))

    def of_kind(self, kind: str) -> dict[str, dict[str, Any]]:
        return {one["metadata"]["name"]: one for one in self.objects if one["kind"] == kind}

    def pods(self) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
        """Name, template and volume claims of everything that runs."""
        for name, one in self.of_kind("StatefulSet").items():
            yield name, one["spec"]["template"], one["spec"].get("volumeClaimTemplates", [])
        for one in self.of_kind("RayCluster").values():
            yield "ray-head", one["spec"]["headGroupSpec"]["template"], []
            for group in one["spec"]["workerGroupSpecs"]:
                yield f"ray-worker {group['groupName']}", group["template"], []

    def containers(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        for name, template, _ in self.pods():
            for container in template["spec"]["containers"]:
                yield name, template, container


@pytest.fixture(params=VARIANTS)
def build(request: pytest.FixtureRequest) -> Build:
    return Build(KUBERNETES / request.param)


def test_every_manifest_is_used() -> None:
    used = {"base/kustomization.yaml", "overlays/gpu/kustomization.yaml", "overlays/gpu/gpu-workers.yaml"}
    base = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())
    used |= {f"base/{name}" for name in base["resources"]}
    assert {str(path.relative_to(KUBERNETES)) for path in KUBERNETES.rglob("*.yaml")} == used


def test_every_object_has_a_kind_and_a_name_of_its_own(build: Build) -> None:
    names = [(one["apiVersion"], one["kind"], one["metadata"]["name"]) for one in build.objects]
    assert len(set(names)) == len(names)
    assert build.namespace in build.of_kind("Namespace")
    assert {"StatefulSet", "Service", "RayCluster", "NetworkPolicy", "PodDisruptionBudget"} <= {
        kind for _, kind, _ in names
    }


def test_images_are_those_of_the_composition_and_none_is_the_latest(build: Build) -> None:
    composed = {service["image"] for service in COMPOSE["services"].values()}
    assert {container["image"] for _, _, container in build.containers()} == composed
    for image in composed:
        _, separator, tag = image.partition(":")
        assert separator, image
        assert tag != "latest"
        assert re.search(r"\d+\.\d+", tag), f"{image}: a tag that moves"


def test_what_pods_mount_and_read_exists(build: Build) -> None:
    claims = build.of_kind("PersistentVolumeClaim")
    for name, template, templates in build.pods():
        spec = template["spec"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        own_claims = {claim["metadata"]["name"] for claim in templates}
        for volume in volumes.values():
            if "secret" in volume:
                assert volume["secret"]["secretName"] in build.secrets, name
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims, name
        mounted = [mount for container in spec["containers"] for mount in container.get("volumeMounts", [])]
        assert {mount["name"] for mount in mounted} == set(volumes) | own_claims, name
        for mount in mounted:
            if "subPath" in mount:
                secret = volumes[mount["name"]]["secret"]["secretName"]
                assert mount["subPath"] in build.secrets[secret], name
                assert mount["mountPath"] == f"/run/secrets/{mount['subPath']}"
        for container in spec["containers"]:
            for source in container.get("envFrom", []):
                assert source["configMapRef"]["name"] in build.config_maps, name


def environment_of(build: Build, container: dict[str, Any]) -> dict[str, str]:
    found = {entry["name"]: str(entry["value"]) for entry in container.get("env", [])}
    for source in container.get("envFrom", []):
        found |= build.config_maps[source["configMapRef"]["name"]]
    return found


def test_secret_files_that_are_named_are_mounted_and_no_variable_holds_a_secret(build: Build) -> None:
    for name, _, container in build.containers():
        mounts = {mount["mountPath"] for mount in container.get("volumeMounts", [])}
        for key, value in environment_of(build, container).items():
            if value.startswith("/run/secrets/"):
                assert value in mounts, f"{name}: {key}"
            is_secret = re.search(r"PASSWORD|TOKEN|SECRET|KEY", key) and not key.endswith(("_FILE", "_PATH"))
            assert not is_secret, f"{name}: {key}"
            assert not re.search(r"://[^/@]*:[^/@]*@", value), f"{name}: {key} carries a password"


def test_the_service_takes_its_settings(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    values = build.config_maps["rubato-service"]
    unknown = {key for key in values if key.removeprefix("RUBATO_").lower() not in Settings.model_fields}
    assert unknown == set()
    for key, value in values.items():
        monkeypatch.setenv(key, value)
    settings = Settings()
    assert settings.behind_tls_proxy
    assert not settings.is_sqlite
    container = next(container for name, _, container in build.containers() if name == "service")
    places = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(settings.home), settings.storage_uri.path} <= places
    assert container["ports"] == [{"name": "http", "containerPort": settings.port}]
    # An address within the cluster: its host must be one that the service answers to.
    url = re.fullmatch(r"http://([a-z-]+):(\d+)", build.config_maps["rubato-agent"]["RUBATO_URL"])
    assert url is not None
    assert url[1] in settings.allowed_hosts
    assert url[1] in build.of_kind("Service")
    assert int(url[2]) in {port["port"] for port in build.of_kind("Service")[url[1]]["spec"]["ports"]}
    database = re.search(r"@([a-z-]+):(\d+)/", settings.database_url)
    assert database is not None
    assert database[1] in build.of_kind("Service")


def test_variables_of_the_agent_are_known_to_the_code(build: Build) -> None:
    known = (ROOT / "deploy" / "ray-head").read_text() + "".join(
        path.read_text() for path in (ROOT / "jobs").rglob("*.py")
    )
    assert all(key in known for key in build.config_maps["rubato-agent"] if key.startswith("RUBATO_"))
    composed = COMPOSE["services"]["ray-head"]["environment"]
    assert {key: composed.get(key) for key in build.config_maps["rubato-agent"]} == build.config_maps["rubato-agent"]


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def test_selectors_find_pods_and_ports_have_names(build: Build) -> None:
    pods = [(template["metadata"]["labels"], template["spec"]["containers"]) for _, template, _ in build.pods()]
    for name, service in build.of_kind("Service").items():
        found = [containers for labels, containers in pods if matches(service["spec"]["selector"], labels)]
        assert len(found) == 1, name
        names = {port["name"] for container in found[0] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    for name, one in build.of_kind("StatefulSet").items():
        spec = one["spec"]
        assert matches(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"])
        assert spec["serviceName"] in build.of_kind("Service"), name
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for name, one in build.of_kind(kind).items():
            selector = one["spec"][key].get("matchLabels", {})
            assert any(matches(selector, labels) for labels, _ in pods), f"{kind} {name}"
    for name, policy in build.of_kind("NetworkPolicy").items():
        target = policy["spec"]["podSelector"].get("matchLabels", {})
        ports = {p["name"] for labels, cs in pods if matches(target, labels) for c in cs for p in c.get("ports", [])}
        for rule in policy["spec"].get("ingress", []):
            assert {port["port"] for port in rule.get("ports", [])} <= ports, name
            for peer in rule["from"]:
                if "podSelector" in peer:
                    assert any(matches(peer["podSelector"]["matchLabels"], labels) for labels, _ in pods), name


def test_budgets_are_over_pods_whose_number_somebody_knows(build: Build) -> None:
    """Over those of a RayCluster, which has no scale subresource, one would let no node be emptied."""
    custom = [template["metadata"]["labels"] for name, template, _ in build.pods() if name.startswith("ray-")]
    assert custom
    for name, one in build.of_kind("PodDisruptionBudget").items():
        assert not any(matches(one["spec"]["selector"]["matchLabels"], labels) for labels in custom), name


def test_training_leaves_a_pod_before_it_is_stopped(build: Build) -> None:
    workers = [(template["spec"], one) for _, template, one in build.containers() if one["name"] == "ray-worker"]
    assert workers
    for spec, container in workers:
        (script,) = container["lifecycle"]["preStop"]["exec"]["command"]
        assert (ROOT / script).is_file()
        seconds = environment_of(build, container)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]
        assert int(seconds) < spec["terminationGracePeriodSeconds"]


def test_the_network_is_closed_but_for_what_is_named(build: Build) -> None:
    policies = build.of_kind("NetworkPolicy").values()
    assert any(policy["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]} for policy in policies)
    to_postgres = build.of_kind("NetworkPolicy")["to-postgres"]["spec"]["ingress"]
    assert [peer for rule in to_postgres for peer in rule["from"]] == [
        {"podSelector": {"matchLabels": {"app": "rubato-service"}}}
    ]


def test_nothing_runs_as_root_or_without_bounds(build: Build) -> None:
    for name, template, container in build.containers():
        pod, own = template["spec"]["securityContext"], container["securityContext"]
        assert pod["runAsNonRoot"] is True, name
        assert pod["runAsUser"] > 0, name
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert own["allowPrivilegeEscalation"] is False, name
        assert own["capabilities"] == {"drop": ["ALL"]}, name
        assert template["spec"]["automountServiceAccountToken"] is False, name
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
        assert "memory" in container["resources"]["limits"], name


def test_probes_ask_by_a_name_that_the_service_answers_to(build: Build) -> None:
    for name, _, container in build.containers():
        assert "readinessProbe" in container, name
        for key in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container.get(key, {})
            if "httpGet" in probe:
                assert probe["httpGet"]["httpHeaders"] == [{"name": "Host", "value": "127.0.0.1"}]
                assert probe["httpGet"]["port"] in {port["name"] for port in container["ports"]}
                assert probe["httpGet"]["path"] == ("/readyz" if key == "readinessProbe" else "/healthz")


def test_the_ray_cluster_is_that_of_our_ray_with_token_and_without_dashboard(build: Build) -> None:
    cluster = build.of_kind("RayCluster")["rubato"]
    required = re.search(r'"ray\[train\]>=([\d.]+),', (ROOT / "pyproject.toml").read_text())
    assert required is not None
    assert cluster["spec"]["rayVersion"].startswith(required[1])
    assert "--include-dashboard=false" in (ROOT / "deploy" / "ray-head").read_text()
    head = cluster["spec"]["headGroupSpec"]["template"]
    assert head["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    for name, template, container in build.containers():
        if template["metadata"]["labels"]["app"] == "rubato-ray":
            environment = environment_of(build, container)
            assert environment["RAY_AUTH_MODE"] == "token", name
            assert environment["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_token", name
            commands = [container[key]["exec"]["command"] for key in container if key.endswith("Probe")]
            assert all(command[:2] == ["ray", "health-check"] for command in commands), name
            addresses = {command[-1] for command in commands}
            # KubeRay calls the head's service so.
            assert addresses == {
                "127.0.0.1:6379" if name == "ray-head" else f"{cluster['metadata']['name']}-head-svc:6379"
            }
    for group in cluster["spec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "KubeRay takes texts"
        requested = group["template"]["spec"]["containers"][0]["resources"]["requests"]
        assert group["rayStartParams"]["num-cpus"] == requested["cpu"]
        assert group["rayStartParams"].get("num-gpus", "0") == str(requested.get("nvidia.com/gpu", 0))


def test_the_overlay_adds_workers_with_a_gpu() -> None:
    groups = [
        {
            group["groupName"]
            for group in Build(KUBERNETES / name).of_kind("RayCluster")["rubato"]["spec"]["workerGroupSpecs"]
        }
        for name in VARIANTS
    ]
    assert groups == [{"cpu"}, {"cpu", "gpu"}]


def test_secrets_are_made_where_kustomize_looks_and_never_committed(tmp_path: Path) -> None:
    script = tmp_path / "make-secrets"
    shutil.copy(ROOT / "deploy" / "make-secrets", script)
    subprocess.run([script, tmp_path / "base" / "secrets"], check=True, capture_output=True)
    made = {path.name for path in (tmp_path / "base" / "secrets").iterdir()}
    assert made == set().union(*Build(KUBERNETES / "base").secrets.values())
    assert "deploy/kubernetes/base/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_lists_in_settings_are_json(build: Build) -> None:
    assert json.loads(build.config_maps["rubato-service"]["RUBATO_ALLOWED_HOSTS"])
