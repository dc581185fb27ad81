"""What is deployed without a container engine at hand: the files are read, linted, and held
against the program's own settings."""

import configparser
import fnmatch
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedclust_service.exit_codes import Exit, SettingsError
from fedclust_service.settings import CLIENT_VARIABLES, Settings, load_settings
from fedclust_service.store.backup import restore
from support.processes import run
from support.server import service as run_service

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    not (ROOT / "Dockerfile").exists(), reason="not the repository's tree"
)


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(name, rest) for name, rest in found]


def final_stage() -> dict[str, str]:
    stages: list[dict[str, str]] = []
    for name, rest in instructions():
        if name == "FROM":
            stages.append({})
        stages[-1][name] = rest
    assert len(stages) == 2
    return stages[-1]


def test_the_dockerfile_passes_its_linter() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("the linter has no build for this platform")
    done = run([linter, str(ROOT / "Dockerfile")])
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_image_copies_is_there_and_gets_past_dockerignore() -> None:
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    kept = {line[1:] for line in ignore if line.startswith("!")}
    assert "*" in ignore
    copied = set()
    for name, rest in instructions():
        if name == "COPY" and "--from" not in rest:
            *sources, _ = shlex.split(rest)
            copied |= set(sources)
    assert copied == kept
    for source in copied:
        assert (ROOT / source).exists(), source
    for secret in (".git", ".env", ".venv", "fedclust-data", "deploy/secrets", "tests"):
        assert not any(fnmatch.fnmatch(secret, pattern) for pattern in kept)


def test_everything_that_the_build_needs_is_copied() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    copied = " ".join(rest for name, rest in instructions() if name == "COPY")
    for needed in ("README.md", "LICENSE", "client_sdk", "service"):
        assert needed in text
        assert needed in copied


@pytest.mark.long
def test_what_the_image_is_built_from_makes_a_coordinator_that_is_well() -> None:
    """Its COPY, pip and health check, in folders: no engine is needed."""
    with socket.socket() as tried:
        if tried.connect_ex(("127.0.0.1", 8400)) == 0:
            pytest.skip("something listens on port 8400, which is the image's own")
    # Bytecode of all that is installed takes longer than what the coordinator imports of it.
    # pip reads this one the other way round: a false value switches compiling off.
    env = {**os.environ, "PIP_NO_COMPILE": "0"}
    steps = run([sys.executable, str(ROOT / "benchmarks" / "dist.py"), "--image"], env=env)
    assert steps.returncode == 0, steps.stderr
    assert "healthy" in steps.stdout


def test_the_image_runs_as_nobody_in_particular_and_knows_its_health() -> None:
    last = final_stage()
    uid, gid = last["USER"].split(":")
    assert int(uid) >= 1000
    assert int(gid) >= 1000
    assert json.loads(last["ENTRYPOINT"]) == ["fedclust-service"]
    # No shell between engine and process: SIGTERM arrives.
    command = json.loads(last["CMD"])
    assert command[0] == "serve"
    check = json.loads(last["HEALTHCHECK"].partition("CMD ")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "healthcheck", "exec")
    assert "ARG" not in {name for name, _ in instructions()}
    stages = [rest for name, rest in instructions() if name == "FROM"]
    assert all(re.match(r"python:3\.\d+-slim-\w+", stage) for stage in stages)
    # Beyond loopback without TLS or a proxy it does not start.
    settings = load_settings(dict(zip(("host", "port"), command[2::2], strict=True)), None)
    with pytest.raises(SettingsError, match="TLS"):
        settings.check_listening()


# --- compose.yaml ---------------------------------------------------------------------------------


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
    return document


def test_compose_is_whole() -> None:
    """Every name that one part uses is defined by another."""
    document = compose()
    assert set(document) == {"name", "services", "networks", "volumes", "secrets"}
    services = document["services"]
    used: dict[str, set[str]] = {"networks": set(), "volumes": set(), "secrets": set()}
    for name, service in services.items():
        assert set(service) <= {
            *("image", "build", "environment", "secrets", "volumes", "networks", "ports"),
            *("depends_on", "healthcheck", "restart", "stop_grace_period", "read_only"),
            *("tmpfs", "cap_drop", "cap_add", "security_opt", "ulimits"),
        }, name
        assert service["restart"] == "unless-stopped"
        assert "no-new-privileges:true" in service["security_opt"]
        tag = service["image"].partition(":")[2]
        assert tag not in {"", "latest"}
        used["networks"] |= set(service["networks"])
        used["secrets"] |= set(service.get("secrets", ()))
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists()
            else:
                used["volumes"].add(source)
        for other, wish in service.get("depends_on", {}).items():
            assert wish == {"condition": "service_healthy"}
            # The coordinator's check is the image's.
            assert "healthcheck" in services[other] or "build" in services[other]
    for kind, names in used.items():
        assert names == set(document[kind]), kind
    # As many connections as in the systemd unit.
    unit = (ROOT / "deploy" / "fedclust.service").read_text("utf-8")
    limit = services["coordinator"]["ulimits"]["nofile"]
    assert f"LimitNOFILE={limit}\n" in unit
    assert "HEALTHCHECK" in final_stage()


def test_only_the_proxy_can_be_reached() -> None:
    document = compose()
    services = document["services"]
    assert [name for name in services if "ports" in services[name]] == ["proxy"]
    assert services["database"]["networks"] == ["inner"]
    assert document["networks"]["inner"] == {"internal": True}
    shared = set(services["proxy"]["networks"]) & set(services["coordinator"]["networks"])
    assert shared == {"outer"}
    # Forwarded headers are believed from the network that the proxy is on, and from no other.
    (subnet,) = document["networks"]["outer"]["ipam"]["config"]
    trusted = services["coordinator"]["environment"]["FEDCLUST_BEHIND_PROXY"]
    assert ip_network(trusted) == ip_network(subnet["subnet"])


def test_secrets_are_files_and_the_settings_read_them(tmp_path: Path) -> None:
    document = compose()
    coordinator = document["services"]["coordinator"]
    environment = {key.lower(): value for key, value in coordinator["environment"].items()}
    flags = {key.removeprefix("fedclust_"): value for key, value in environment.items()}
    assert flags.pop("secrets_dir") == "/run/secrets"
    assert set(flags) <= set(Settings.model_fields)
    url = "postgresql+psycopg://fedclust:word@database/fedclust"
    (tmp_path / "fedclust_database_url").write_text(url)
    (tmp_path / "fedclust_secret_key").write_text("k" * 48)
    assert {path.name for path in tmp_path.iterdir()} == set(coordinator["secrets"])
    flags |= {"secrets_dir": str(tmp_path), "host": "0.0.0.0"}  # noqa: S104
    settings = load_settings(flags, None)
    assert settings.store_url == url
    assert len(settings.secret_key) == 1
    settings.check_listening()
    text = (ROOT / "compose.yaml").read_text("utf-8")
    assert not re.search(r"(PASSWORD|SECRET_KEY|TOKEN): \S*[^/\w]\w{8,}", text)
    for secret in document["secrets"].values():
        assert secret["file"].startswith("./deploy/secrets/")
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert "deploy/secrets/" in ignored
    # A stop takes at most 5 s: the engine does not kill it before.
    assert int(coordinator["stop_grace_period"].removesuffix("s")) > 5


def test_the_proxys_limits_leave_the_coordinator_its_own() -> None:
    text = (ROOT / "deploy" / "Caddyfile").read_text("utf-8")
    (port,) = set(re.findall(r"reverse_proxy coordinator:(\d+)", text))
    assert port in final_stage()["EXPOSE"]
    (size,) = re.findall(r"max_size (\d+)MB", text)
    assert int(size) * 10**6 > Settings.model_fields["body_limit"].default
    (seconds,) = re.findall(r"response_header_timeout (\d+)s", text)
    assert int(seconds) > Settings.model_fields["long_poll_max"].default
    assert text.count("{") == text.count("}")


def unit_of(name: str) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy" / name, "utf-8")
    return unit["Service"]


@pytest.mark.skipif(sys.platform == "win32", reason="systemd")
def test_the_timers_unit_copies_the_database_and_deletes_old_copies(tmp_path: Path) -> None:
    unit, data = unit_of("fedclust-backup.service"), tmp_path / "data"
    server_unit = unit_of("fedclust.service")
    for name in ("User", "Group", "EnvironmentFile", "StateDirectory", "UMask"):
        assert unit[name] == server_unit[name]
    assert run_service("init", "--data-dir", str(data)).returncode == 0
    (data / "backups").mkdir()
    for name, days in (("fedclust-old.db", 7.1), ("fedclust-new.db", 6.9), ("other.db", 9)):
        path = data / "backups" / name
        path.write_text("", "utf-8")
        os.utime(path, times=(time.time() - days * 86_400,) * 2)
    programs = f"{Path(sys.executable).parent}/"
    for name in ("ExecStartPre", "ExecStart", "ExecStartPost"):
        line = unit[name].replace("/opt/fedclust/bin/", programs)
        line = line.replace("/var/lib/fedclust", str(data)).replace("$$", "$").replace("%%", "%")
        kept = {"FEDCLUST_DATA_DIR": str(data), "FEDCLUST_RETENTION_DAYS": "7"}
        subprocess.run(shlex.split(line), env={**os.environ, **kept}, check=True)
    kept_copies = {path.name for path in (data / "backups").iterdir()}
    (copy,) = kept_copies - {"fedclust-new.db", "other.db"}
    assert re.fullmatch(r"fedclust-\d{4}-\d\d-\d\dT\d{6}Z\.db", copy)
    url = f"sqlite:///{tmp_path / 'restored.db'}"
    assert restore(data / "backups" / copy, url).size > 0


def test_the_unit_stops_where_restarting_does_not_help() -> None:
    unit = unit_of("fedclust.service")
    codes = set(map(int, unit["RestartPreventExitStatus"].split()))
    assert codes == {Exit.USAGE, Exit.SETTINGS, Exit.DATABASE, Exit.SCHEMA, Exit.LOCKED}
    # PostgreSQL may start later than the coordinator: the guide says what to change then.
    guide = (ROOT / "docs" / "operations" / "service.md").read_text("utf-8")
    assert f"remove {Exit.DATABASE:d} from `RestartPreventExitStatus`" in guide
    names = re.findall(r"(FEDCLUST_\w+)=", unit["Environment"])
    assert {name.removeprefix("FEDCLUST_").lower() for name in names} <= set(Settings.model_fields)
    assert not set(names) & CLIENT_VARIABLES
    assert "-HUP" in unit["ExecReload"]
