"""Command lines, files and certificates of the cluster's parts: each is what its users expect."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import re
from pathlib import Path

import pytest
import tomllib
from cryptography import x509
from e2e.cluster import configuration, dns
from e2e.cluster.binaries import PROGRAMS, SOURCE, linker_flags, modules, versions
from e2e.cluster.components import COMPONENTS, command_lines
from e2e.cluster.node import cgroup_parents
from e2e.cluster.pki import CLUSTER_CA, FRONT_PROXY_CA, LEAVES, SERVICE_ACCOUNTS, Leaf, ensure_certificates
from e2e.cluster.settings import API_SERVICE_IP, NODE_IP, settings_from

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
SETTINGS = settings_from({"PHASEWISE_CACHE": "/c", "PHASEWISE_STATE": "/s"}, Path("/home/ada"))
MODULES = modules(versions((SOURCE / "go.mod").read_text()))
COMMANDS = command_lines(SETTINGS, {name: Path("/bin") / name for name in PROGRAMS}, "/usr/bin/containerd")


def test_every_part_has_a_command_line_of_its_own_program() -> None:
    assert set(COMMANDS) == set(COMPONENTS)
    assert {Path(command[0]).name for command in COMMANDS.values()} == set(COMPONENTS)


def test_every_certificate_that_is_named_is_made() -> None:
    made = {f"{name}.{kind}" for name in (CLUSTER_CA, FRONT_PROXY_CA) for kind in ("crt", "key")}
    made |= {f"{leaf.name}.{kind}" for leaf in LEAVES for kind in ("crt", "key")}
    made |= {f"{SERVICE_ACCOUNTS}.pub", f"{SERVICE_ACCOUNTS}.key"}
    text = " ".join(flag for command in COMMANDS.values() for flag in command) + configuration.kubelet(SETTINGS)
    named = re.findall(rf"{SETTINGS.pki}/([\w.-]+)", text)
    assert len(named) > 10
    assert set(named) <= made


def test_the_aggregation_layer_has_an_authority_and_a_client_of_its_own() -> None:
    flags = dict(flag.split("=", 1) for flag in COMMANDS["kube-apiserver"][1:])
    assert flags["--requestheader-client-ca-file"] != flags["--client-ca-file"]
    client = Path(flags["--proxy-client-cert-file"]).stem
    leaf = next(leaf for leaf in LEAVES if leaf.name == client)
    assert leaf.authority == Path(flags["--requestheader-client-ca-file"]).stem
    assert leaf.common_name == flags["--requestheader-allowed-names"]


def test_the_api_server_records_writes_and_nothing_else() -> None:
    policy = json.loads(configuration.audit_policy())
    assert policy["rules"][0] == {"level": "Metadata", "verbs": list(configuration.WRITING_VERBS)}
    assert policy["rules"][-1] == {"level": "None"}
    assert f"--audit-log-path={SETTINGS.audit_log}" in COMMANDS["kube-apiserver"]


def test_a_kubeconfig_carries_what_it_needs() -> None:
    config = json.loads(configuration.kubeconfig("https://127.0.0.1:1", b"authority", b"certificate", b"key"))
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert base64.b64decode(config["users"][0]["user"]["client-key-data"]) == b"key"
    assert config["contexts"][0]["name"] == config["current-context"]


def test_containerds_configuration_is_toml_and_keeps_its_root_in_the_cache() -> None:
    text = configuration.containerd(SETTINGS.images_root, Path("/run/c"), Path("/s/c.sock"), Path("/s/cni"))
    config = tomllib.loads(text)
    assert config["root"] == "/c/containerd"
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == configuration.PAUSE_IMAGE
    assert cri["cni"]["conf_dir"] == "/s/cni"


def test_dns_is_found_where_the_kubelet_says_it_is() -> None:
    items = json.loads(dns.manifests("image"))["items"]
    service = next(item for item in items if item["kind"] == "Service")
    assert json.loads(configuration.kubelet(SETTINGS))["clusterDNS"] == [service["spec"]["clusterIP"]]


def test_programs_report_the_versions_that_the_module_file_names() -> None:
    required = versions((SOURCE / "go.mod").read_text())
    flags = linker_flags(required)
    assert f"k8s.io/component-base/version.gitVersion={required.kubernetes}" in flags
    assert f"version.version={required.helm}" in flags
    replaced = re.findall(r"=> k8s\.io/\S+ (v0\S+)", (SOURCE / "go.mod").read_text())
    assert set(replaced) == {required.kubernetes.replace("v1.", "v0.")}


def test_kube_router_is_a_firewall_only_and_is_built_apart() -> None:
    assert {"--run-firewall=true", "--run-router=false", "--run-service-proxy=false"} <= set(COMMANDS["kube-router"])
    kubernetes, firewall = MODULES
    assert kubernetes.folder(SETTINGS) != firewall.folder(SETTINGS)
    required = re.search(r"cloudnativelabs/kube-router/v2 (v\S+)", (firewall.source / "go.mod").read_text())
    assert required is not None
    assert firewall.linker_flags.endswith(f".Version={required[1]}")
    assert required[1] in (firewall.source / "go.sum").read_text(), "no checksum is asked for elsewhere"


V1 = """30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
40 30 0:36 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
41 30 0:36 / /somewhere/else rw - cgroup2 cgroup2 rw"""
V2 = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate"


@pytest.mark.parametrize(
    ("mountinfo", "parents"),
    [
        (V1, {"/sys/fs/cgroup/cpu": False, "/sys/fs/cgroup/unified": False}),
        (V2, {"/sys/fs/cgroup": True}),
        ("30 24 0:26 / / rw - ext4 /dev/vda rw", {}),
    ],
)
def test_control_groups_are_found_in_either_version(mountinfo: str, parents: dict[str, bool]) -> None:
    assert {str(path): unified for path, unified in cgroup_parents(mountinfo).items()} == parents


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state") / "pki"
    ensure_certificates(folder, NOW)
    return folder


def certificate(pki: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((pki / f"{name}.crt").read_bytes())


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name)
def test_each_leaf_is_signed_by_its_authority(pki: Path, leaf: Leaf) -> None:
    certificate(pki, leaf.name).verify_directly_issued_by(certificate(pki, leaf.authority))


def test_the_api_servers_certificate_has_all_its_names(pki: Path) -> None:
    names = certificate(pki, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    assert {"127.0.0.1", NODE_IP, API_SERVICE_IP} <= set(map(str, addresses))
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    assert all(isinstance(address, ipaddress.IPv4Address) for address in addresses)


def test_keys_are_readable_by_their_owner_only(pki: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in pki.glob("*.key")} == {0o600}


def test_certificates_that_are_there_stay(pki: Path) -> None:
    before = (pki / "ca.crt").read_bytes()
    ensure_certificates(pki, NOW)
    assert (pki / "ca.crt").read_bytes() == before


def test_half_a_set_left_by_an_interruption_is_made_anew(tmp_path: Path) -> None:
    left = tmp_path / "pki.making"
    left.mkdir()
    (left / "ca.key").touch()
    ensure_certificates(tmp_path / "pki", NOW)
    assert (tmp_path / "pki" / "admin.crt").exists()
    assert not left.exists()
