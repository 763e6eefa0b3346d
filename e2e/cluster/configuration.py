"""The files that the cluster's parts read (kubeconfigs, kubelet, proxy, containerd, CNI, audit), as values. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.settings import API_SERVER_PORT, DNS_SERVICE_IP, NODE_IP, PODS_CIDR, NodeIdentity, Settings

PAUSE_IMAGE = "docker.io/phasewise/pause:dev"
CNI_PLUGINS = "/usr/lib/cni"
WRITING_VERBS = ("create", "update", "patch", "delete", "deletecollection")
CLUSTER_ENTRY = "phasewise-local"


def kubeconfig(server: str, authority: bytes, certificate: bytes, key: bytes) -> str:
    """A kubeconfig that carries its certificates, so that it works wherever it is copied to."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    user = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    cluster = {"server": server, "certificate-authority-data": encoded(authority)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CLUSTER_ENTRY,
        "clusters": [{"name": CLUSTER_ENTRY, "cluster": cluster}],
        "users": [{"name": CLUSTER_ENTRY, "user": user}],
        "contexts": [{"name": CLUSTER_ENTRY, "context": {"cluster": CLUSTER_ENTRY, "user": CLUSTER_ENTRY}}],
    }
    return json.dumps(content, indent=1)


def api_server_inside() -> str:
    return f"https://{NODE_IP}:{API_SERVER_PORT}"


def audit_policy() -> str:
    """Writes only, who and what without bodies: enough to count what a client changed."""
    return json.dumps(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "verbs": list(WRITING_VERBS)}, {"level": "None"}],
        }
    )


def kubelet(settings: Settings) -> str:
    nothing_evicts = (
        "memory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
        "pid.available",
    )
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(settings.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(settings.pki / "kubelet-serving.crt"),
            "tlsPrivateKeyFile": str(settings.pki / "kubelet-serving.key"),
            "containerRuntimeEndpoint": f"unix://{settings.containerd_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{settings.name}",
            "failSwapOn": False,
            "failCgroupV1": False,
            "featureGates": {"KubeletInUserNamespace": True},
            "clusterDNS": [DNS_SERVICE_IP],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "podLogsDir": str(settings.state / "pod-logs"),
            "volumePluginDir": str(settings.state / "volume-plugins"),
            "evictionHard": dict.fromkeys(nothing_evicts, "0%"),
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
        }
    )


def kube_proxy(settings: Settings) -> str:
    """Conntrack values of 0 leave the kernel's own: they are the machine's, not the node's."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(settings.state / "kube-proxy.kubeconfig")},
            "clusterCIDR": PODS_CIDR,
            "hostnameOverride": settings.node.name,
            "oomScoreAdj": 0,
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
    )


def cni(node: NodeIdentity) -> str:
    bridge: Mapping[str, Any] = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "isDefaultGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": node.pod_cidr}]], "dataDir": "/run/cni-addresses"},
    }
    port_map = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, port_map]})


def containerd(root: Path, run: Path, socket: Path, cni_folder: Path) -> str:
    """TOML by hand: the standard library only reads it, and every value here is a path or a constant."""
    disabled = ("snapshotter.v1.btrfs", "snapshotter.v1.zfs", "snapshotter.v1.aufs", "snapshotter.v1.devmapper")
    disabled_plugins = json.dumps([f"io.containerd.{name}" for name in (*disabled, "internal.v1.opt")])
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = {json.dumps(str(root))}
state = {json.dumps(str(run))}
disabled_plugins = {disabled_plugins}
[grpc]
  address = {json.dumps(str(socket))}
[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  [{cri}.cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = {json.dumps(str(cni_folder))}
  [{cri}.containerd]
    snapshotter = "overlayfs"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        SystemdCgroup = false
"""
