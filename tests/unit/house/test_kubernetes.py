"""deploy/kubernetes holds together: no cluster is needed to see that.

A small reading of kustomize: resources, generators with their suffixes, JSON patches. What it finds is checked as the
API server would, as far as names go: everything that is referred to exists. Where there is a kubectl, its kustomize
must find the same.
"""

from __future__ import annotations

import asyncio
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
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.settings import Settings
from tests.other_container import ALONE

ROOT = Path(__file__).resolve().parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
VARIANTS = ("base", "overlays/gpu")
SUFFIX = "-hash"
"""In place of the ten characters that kustomize adds to the names of generated ConfigMaps and Secrets."""
KNOWN_REFERENCES = {
    "StatefulSet": (
        ("Secret", "spec/template/spec/volumes/secret/secretName"),
        ("ConfigMap", "spec/template/spec/containers/envFrom/configMapRef/name"),
    )
}
"""Fields that kustomize rewrites by itself: those of kinds that are built into Kubernetes."""


def places_at(one: Any, path: list[str]) -> Iterator[dict[str, Any]]:
    """What holds the last step of a path; lists are gone through."""
    if isinstance(one, list):
        for element in one:
            yield from places_at(element, path)
    elif isinstance(one, dict) and path[0] in one:
        if len(path) == 1:
            yield one
        else:
            yield from places_at(one[path[0]], path[1:])


class Build:
    """What `kubectl apply -k` would send."""

    def __init__(self, folder: Path) -> None:
        self.objects: list[dict[str, Any]] = []
        self.config_maps: dict[str, dict[str, str]] = {}
        self.secrets: dict[str, set[str]] = {}
        self.namespace = ""
        self._references = [(kind, *field) for kind, fields in KNOWN_REFERENCES.items() for field in fields]
        self._read(folder)
        self._add_suffixes()

    def _read(self, folder: Path) -> None:
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        known = {"apiVersion", "kind", "namespace", "resources", "configurations", "patches"}
        known |= {"configMapGenerator", "secretGenerator"}
        assert set(kustomization) <= known, "this test does not know more of kustomize"
        for name in kustomization.get("configurations", []):
            configuration = yaml.safe_load((folder / name).read_text())
            assert set(configuration) == {"nameReference"}, "this test does not know more of kustomize"
            for target in configuration["nameReference"]:
                for field in target["fieldSpecs"]:
                    self._references.append((field["kind"], target["kind"], field["path"]))
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

    def _add_suffixes(self) -> None:
        self.config_maps = {name + SUFFIX: values for name, values in self.config_maps.items()}
        self.secrets = {name + SUFFIX: files for name, files in self.secrets.items()}
        generated: dict[str, Any] = {"ConfigMap": self.config_maps, "Secret": self.secrets}
        for kind, target, path in self._references:
            for one in self.of_kind(kind).values():
                for place in places_at(one, path.split("/")):
                    key = path.rpartition("/")[2]
                    if place[key] + SUFFIX in generated[target]:
                        place[key] += SUFFIX

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


def built_by_kubectl(folder: Path) -> list[dict[str, Any]]:
    """What the real kustomize makes of a folder; skips where there is none."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl here")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The manifests with secrets, which the repository does not hold."""
    folder = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, folder, ignore=shutil.ignore_patterns("secrets"))
    subprocess.run([ROOT / "deploy" / "make-secrets", folder / "base" / "secrets"], check=True, capture_output=True)
    return folder


@pytest.fixture(params=VARIANTS)
def build(request: pytest.FixtureRequest) -> Build:
    return Build(KUBERNETES / request.param)


def test_every_manifest_is_used() -> None:
    used = {"base/kustomization.yaml", "overlays/gpu/kustomization.yaml", "overlays/gpu/gpu-workers.yaml"}
    base = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())
    used |= {f"base/{name}" for name in base["resources"] + base["configurations"]}
    assert {str(path.relative_to(KUBERNETES)) for path in KUBERNETES.rglob("*.yaml")} == used


def specs_of(objects: list[dict[str, Any]], namespace: str) -> dict[tuple[str, str], Any]:
    """By kind and name; of the namespaces that kustomize adds, those in the objects' own metadata are checked here."""
    for one in objects:
        if one["kind"] != "Namespace":
            assert one["metadata"].get("namespace", namespace) == namespace
    return {(one["kind"], one["metadata"]["name"]): one.get("spec") for one in objects}


@pytest.mark.parametrize("variant", VARIANTS)
def test_kustomize_builds_what_is_checked_here(copied: Path, variant: str) -> None:
    build = Build(KUBERNETES / variant)
    real = built_by_kubectl(copied / variant)
    generated = {one["metadata"]["name"]: one for one in real if one["kind"] in ("ConfigMap", "Secret")}
    as_here = {name: re.sub(r"-[a-z0-9]{10}$", SUFFIX, name) for name in generated}
    assert set(as_here.values()) == set(build.config_maps) | set(build.secrets)
    for name, one in generated.items():
        if one["kind"] == "ConfigMap":
            assert one["data"] == build.config_maps[as_here[name]]
        else:
            assert set(one["data"]) == build.secrets[as_here[name]]
    text = json.dumps([one for one in real if one["metadata"]["name"] not in generated])
    for name, here in as_here.items():
        text = text.replace(f'"{name}"', f'"{here}"')
    assert specs_of(json.loads(text), build.namespace) == specs_of(build.objects, build.namespace)


def overlay_of_the_manual() -> str:
    text = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    (found,) = re.findall(r"```yaml\n(apiVersion: kustomize.*?)```", text, flags=re.DOTALL)
    return str(found)


def test_the_overlay_of_the_manual_names_registry_and_host(copied: Path) -> None:
    folder = copied / "overlays" / "yours"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(overlay_of_the_manual())
    real = built_by_kubectl(folder)
    images = set(re.findall(r'"image": "([^"]+)"', json.dumps(real)))
    assert {image for image in images if "rubato" in image} == {
        f"REGISTRY/{image}" for image in (one["image"] for one in COMPOSE["services"].values()) if "rubato" in image
    }
    (settings,) = (one["data"] for one in real if one["metadata"]["name"].startswith("rubato-service-"))
    base = Build(KUBERNETES / "base").config_maps[f"rubato-service{SUFFIX}"]
    own = [name for name in json.loads(base["RUBATO_ALLOWED_HOSTS"]) if name.startswith("service")]
    assert json.loads(settings["RUBATO_ALLOWED_HOSTS"]) == [*own, "rubato.your.domain"]
    assert settings["FORWARDED_ALLOW_IPS"] == base["FORWARDED_ALLOW_IPS"]


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
    values = build.config_maps[f"rubato-service{SUFFIX}"]
    unknown = {key for key in values if key.removeprefix("RUBATO_").lower() not in Settings.model_fields}
    assert unknown == {"FORWARDED_ALLOW_IPS"}, "which uvicorn reads"
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
    url = re.fullmatch(r"http://([a-z-]+):(\d+)", build.config_maps[f"rubato-agent{SUFFIX}"]["RUBATO_URL"])
    assert url is not None
    assert url[1] in settings.allowed_hosts
    assert url[1] in build.of_kind("Service")
    assert int(url[2]) in {port["port"] for port in build.of_kind("Service")[url[1]]["spec"]["ports"]}
    # So it is called from other namespaces, which the network policy lets in.
    elsewhere = f"{url[1]}.{build.namespace}"
    assert {elsewhere, f"{elsewhere}.svc", f"{elsewhere}.svc.cluster.local"} <= set(settings.allowed_hosts)
    database = re.search(r"@([a-z-]+):(\d+)/", settings.database_url)
    assert database is not None
    assert database[1] in build.of_kind("Service")


def test_strangers_behind_the_ingress_have_addresses_of_their_own(build: Build) -> None:
    """Else one of them, with bad tokens, would keep all others from signing in."""
    trusted = build.config_maps[f"rubato-service{SUFFIX}"]["FORWARDED_ALLOW_IPS"]
    seen = {}
    for said in ("203.0.113.7", "198.51.100.9", "203.0.113.7, 198.51.100.9"):
        scope: Any = {
            "type": "http",
            "client": ("10.244.3.17", 40000),
            "headers": [(b"x-forwarded-for", said.encode())],
        }
        asyncio.run(ProxyHeadersMiddleware(no_app, trusted)(scope, no_app, no_app))
        seen[said] = scope["client"][0]
    assert seen == {
        "203.0.113.7": "203.0.113.7",
        "198.51.100.9": "198.51.100.9",
        # What a client says itself stands before what the ingress adds, and does not count.
        "203.0.113.7, 198.51.100.9": "198.51.100.9",
    }
    stranger: Any = {"type": "http", "client": ("203.0.113.7", 1), "headers": [(b"x-forwarded-for", b"192.0.2.1")]}
    asyncio.run(ProxyHeadersMiddleware(no_app, trusted)(stranger, no_app, no_app))
    assert stranger["client"][0] == "203.0.113.7"


async def no_app(*_: Any) -> Any:
    """Of what stands behind the proxy's headers nothing is needed."""


def test_variables_of_the_agent_are_known_to_the_code(build: Build) -> None:
    known = (ROOT / "deploy" / "ray-head").read_text() + "".join(
        path.read_text() for path in (ROOT / "jobs").rglob("*.py")
    )
    assert all(key in known for key in build.config_maps[f"rubato-agent{SUFFIX}"] if key.startswith("RUBATO_"))
    composed = COMPOSE["services"]["ray-head"]["environment"]
    assert {key: composed.get(key) for key in build.config_maps[f"rubato-agent{SUFFIX}"]} == build.config_maps[
        f"rubato-agent{SUFFIX}"
    ]


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


def test_a_worker_is_alive_while_its_raylet_is(tmp_path: Path) -> None:
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode != 0:
        pytest.skip("no processes of its own can be had here")
    shutil.copy(shutil.which("sleep") or "", tmp_path / "raylet")
    script = """
        "$0" && exit 10
        "$1" 60 &
        for _ in {1..100}; do "$0" 2>/dev/null && break; sleep 0.05; done
        "$0" || exit 11
        kill -KILL $!; wait $!
        "$0" && exit 12
        exit 0
    """
    command = ["bash", "-c", script, str(ROOT / "deploy" / "ray-alive"), str(tmp_path / "raylet")]
    done = subprocess.run([*ALONE, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "no raylet runs here" in done.stderr


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
            # KubeRay sets one where it is missing, which asks a dashboard that does not run, and kills the pod by it.
            assert {"livenessProbe", "readinessProbe"} <= set(container), name
            commands = [container[key]["exec"]["command"] for key in container if key.endswith("Probe")]
            asked = [command for command in commands if command != ["deploy/ray-alive"]]
            assert all(command[:2] == ["ray", "health-check"] for command in asked), name
            addresses = {command[-1] for command in asked}
            # KubeRay calls the head's service so.
            assert addresses == {
                "127.0.0.1:6379" if name == "ray-head" else f"{cluster['metadata']['name']}-head-svc:6379"
            }
            if name != "ray-head":
                # Its own raylet: a head that is away for a while must not cost the workers.
                assert container["livenessProbe"]["exec"]["command"] == ["deploy/ray-alive"], name
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
    assert json.loads(build.config_maps[f"rubato-service{SUFFIX}"]["RUBATO_ALLOWED_HOSTS"])
