"""The second node: what it shares with the first, and what it must not share."""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import json
import re
from pathlib import Path

import pytest
from cryptography import x509
from e2e.cluster import configuration
from e2e.cluster.__main__ import main, parser
from e2e.cluster.binaries import PROGRAMS
from e2e.cluster.components import NODE_AGENTS, command_lines
from e2e.cluster.pki import ensure_certificates, make_node_certificates
from e2e.cluster.second_node import BLOBS, DATABASES, SNAPSHOTS, clone, upper_folders
from e2e.cluster.settings import FIRST_NODE, NODE_NETWORK, PODS_CIDR, SECOND_NODE, ClusterError, Settings, settings_from

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
FIRST = settings_from({"PHASEWISE_CACHE": "/c", "PHASEWISE_STATE": "/s"}, Path("/home/ada"))
SECOND = FIRST.second
PROGRAM_PATHS = {name: Path("/bin") / name for name in PROGRAMS}


def test_the_nodes_share_the_cache_and_no_other_folder_socket_control_group_or_address() -> None:
    for name in ("name", "state", "marker", "pki", "logs", "containerd_socket", "images_root"):
        assert getattr(FIRST, name) != getattr(SECOND, name), name
    assert FIRST.cache == SECOND.cache
    assert all(getattr(FIRST_NODE, f.name) != getattr(SECOND_NODE, f.name) for f in dataclasses.fields(FIRST_NODE))


def test_no_other_cluster_has_the_second_nodes_name() -> None:
    with pytest.raises(ClusterError, match="letters, digits"):
        settings_from({"PHASEWISE_CLUSTER_NAME": SECOND.name}, Path("/home/ada"))


def test_each_node_has_pod_addresses_of_its_own_among_those_of_all_pods() -> None:
    first, second = (ipaddress.ip_network(node.pod_cidr) for node in (FIRST_NODE, SECOND_NODE))
    assert not first.overlaps(second)
    for node in (FIRST_NODE, SECOND_NODE):
        assert ipaddress.ip_address(node.ip) in ipaddress.ip_network(NODE_NETWORK)
        assert ipaddress.IPv4Network(node.pod_cidr).subnet_of(ipaddress.IPv4Network(PODS_CIDR))
        (bridge, _) = json.loads(configuration.cni(node))["plugins"]
        assert bridge["ipam"]["ranges"] == [[{"subnet": node.pod_cidr}]]
    for settings in (FIRST, SECOND):
        assert json.loads(configuration.kube_proxy(settings))["clusterCIDR"] == PODS_CIDR, "no pod's address is hidden"


@pytest.mark.parametrize("settings", [FIRST, SECOND], ids=["first", "second"])
def test_agents_are_started_as_their_own_node_with_their_own_files(settings: Settings) -> None:
    commands = command_lines(settings, PROGRAM_PATHS, "/usr/bin/containerd")
    name = f"--hostname-override={settings.node.name}"
    assert name in commands["kubelet"]
    assert name in commands["kube-router"]
    assert f"--node-ip={settings.node.ip}" in commands["kubelet"]
    assert json.loads(configuration.kube_proxy(settings))["hostnameOverride"] == settings.node.name
    files = [flag for agent in NODE_AGENTS for flag in commands[agent] if "/s/" in flag]
    assert len(files) >= 5
    assert all(f"={settings.state}/" in flag for flag in files)
    assert json.loads(configuration.kubelet(settings))["cgroupRoot"] == f"/{settings.name}"


def test_the_second_nodes_certificates_are_the_clusters_and_sign_nothing(tmp_path: Path) -> None:
    cluster, folder = tmp_path / "pki", tmp_path / "node-2" / "pki"
    ensure_certificates(cluster, NOW)
    make_node_certificates(folder, SECOND_NODE, cluster, NOW)
    authority = x509.load_pem_x509_certificate((cluster / "ca.crt").read_bytes())
    for name in ("kubelet", "kubelet-serving"):
        certificate = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())
        certificate.verify_directly_issued_by(authority)
        assert f"CN=system:node:{SECOND_NODE.name}" in certificate.subject.rfc4514_string()
    named = re.findall(rf"{SECOND.pki}/([\w.-]+)", configuration.kubelet(SECOND))
    assert len(named) == 3
    assert set(named) <= {path.name for path in folder.iterdir()}
    assert not (folder / "ca.key").exists()


def test_a_cloned_image_store_shares_layers_and_blobs_and_has_databases_of_its_own(tmp_path: Path) -> None:
    source, target = tmp_path / "first", tmp_path / "second"
    layer, running = (f"{SNAPSHOTS}/{number}/fs/file" for number in (1, 2))
    blob = f"{BLOBS}/sha256/abc"
    for name in (layer, running, blob, *DATABASES, "io.containerd.grpc.v1.cri/sandboxes/a/status"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    clone(source, target, {"2"})
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {layer, blob, *DATABASES}, "nothing of the first node's containers"
    assert all((target / name).samefile(source / name) for name in (layer, blob))
    assert all((target / name).read_text() == name for name in DATABASES)
    assert not any((target / name).samefile(source / name) for name in DATABASES)


def test_the_layers_that_running_containers_write_to_are_found() -> None:
    root = "/c/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
    mounted = f"rw,lowerdir={root}/7/fs:{root}/6/fs,upperdir={root}/12/fs,workdir={root}/12/work"
    mountinfo = f"""30 24 0:26 / / rw - ext4 /dev/vda rw
91 30 0:41 / /run/containerd/a/rootfs rw - overlay overlay {mounted}
92 30 0:42 / /var/lib rw - overlay overlay rw,lowerdir=/var/lib,upperdir=/run/shadow/var/lib/upper,workdir=/run/w"""
    assert upper_folders(mountinfo) == {"12"}


def test_nodes_of_a_cluster_of_the_users_own_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTER", "current")
    for action in ("add", "remove"):
        assert main(["node", action]) == 1
        assert capsys.readouterr().err == (
            f"cluster: your own cluster's nodes are not ours to {action}; use the local cluster for this\n"
        )
    with pytest.raises(SystemExit):
        parser().parse_args(["node", "paint"])
