"""The folders and names of a cluster, and settings that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.cluster.packages import PACKAGES, missing_packages
from e2e.cluster.progress import wait_for
from e2e.cluster.settings import ClusterError, settings_from

HOME = Path("/home/ada")


def test_everything_lies_below_the_users_home_by_default() -> None:
    settings = settings_from({}, HOME)
    assert settings.cache == HOME / ".cache/phasewise"
    assert settings.state == HOME / ".local/state/phasewise/cluster"
    assert settings.images_root == HOME / ".cache/phasewise/containerd"


@pytest.mark.parametrize(
    ("environ", "cache", "state"),
    [
        ({"XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"}, "/c/phasewise", "/s/phasewise/cluster"),
        ({"PHASEWISE_CACHE": "/c", "PHASEWISE_STATE": "/s", "XDG_CACHE_HOME": "/no"}, "/c", "/s/cluster"),
        ({"PHASEWISE_CACHE": "", "PHASEWISE_STATE": "/s"}, "/home/ada/.cache/phasewise", "/s/cluster"),
    ],
)
def test_the_environment_moves_the_folders(environ: dict[str, str], cache: str, state: str) -> None:
    settings = settings_from(environ, HOME)
    assert (str(settings.cache), str(settings.state)) == (cache, state)


def test_two_clusters_share_no_folder_and_no_marker() -> None:
    first = settings_from({}, HOME)
    second = settings_from({"PHASEWISE_CLUSTER_NAME": "other", "PHASEWISE_STATE": "/s"}, HOME)
    for name in ("state", "images_root", "marker", "lock", "kubeconfig"):
        assert getattr(first, name) != getattr(second, name)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PHASEWISE_API_PORT": "many"}, "give a port number"),
        ({"PHASEWISE_API_PORT": "70000"}, "give a port number"),
        ({"PHASEWISE_CLUSTER_NAME": "../x"}, "letters, digits"),
        ({"PHASEWISE_STATE": "/run/user/0"}, "set PHASEWISE_STATE"),
        ({"PHASEWISE_CACHE": "/proc/x"}, "set PHASEWISE_CACHE"),
        ({"PHASEWISE_STATE": "/" + "long/" * 25}, "shorter"),
    ],
)
def test_a_bad_setting_is_refused_with_what_to_do(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        settings_from(environ, HOME)


def test_only_missing_packages_are_installed() -> None:
    assert missing_packages(lambda _: True) == []
    assert missing_packages(lambda package: package.shown_by != "nft") == ["nftables"]
    assert missing_packages(lambda _: False) == [package.name for package in PACKAGES]


def test_a_timeout_says_what_was_waited_for() -> None:
    with pytest.raises(ClusterError, match=r"waited 0 s for: the node to be ready; see kubelet\.log"):
        wait_for("the node to be ready; see kubelet.log", lambda: False, 0)
