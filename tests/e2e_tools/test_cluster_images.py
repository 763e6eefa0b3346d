"""Images made without a tool, their names, and how a changed one is recognised."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tarfile
from pathlib import Path

import pytest
from e2e.cluster.images import Recipe, archive_identity, busybox, canonical, identity, stale_ids, write_archive
from e2e.cluster.settings import ClusterError


@pytest.mark.parametrize(
    ("name", "found_as"),
    [
        ("phasewise/operator:dev", "docker.io/phasewise/operator:dev"),
        ("localhost/phasewise/operator:dev", "docker.io/phasewise/operator:dev"),
        ("docker.io/phasewise/operator:dev", "docker.io/phasewise/operator:dev"),
        ("localhost/thing", "docker.io/library/thing:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("example.com/a/b:1", "example.com/a/b:1"),
        ("example.com:5000/a/b", "example.com:5000/a/b:latest"),
    ],
)
def test_an_image_gets_the_name_that_the_kubelet_looks_for(name: str, found_as: str) -> None:
    assert canonical(name) == found_as


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    program = tmp_path / "busybox"
    program.write_text("program")
    return busybox(program, ["sh", "busybox", "wget"])


def test_the_digests_of_an_archive_are_those_of_its_content(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "image.tar"
    write_archive(recipe, out)
    config_name, names = archive_identity(out)
    assert names == ["docker.io/phasewise/busybox:dev"]
    with tarfile.open(out) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        contents = {name: file.read() for name, file in files.items() if file}
    config = json.loads(contents[config_name])
    assert hashlib.sha256(contents[config_name]).hexdigest() + ".json" == config_name
    layer = next(content for name, content in contents.items() if name.endswith("layer.tar"))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".layer"] == []


def test_a_layer_has_the_program_its_links_and_its_folders(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "image.tar"
    write_archive(recipe, out)
    with tarfile.open(out) as archive:
        layer = next(member for member in archive if member.name.endswith("layer.tar"))
        with tarfile.open(fileobj=archive.extractfile(layer)) as inner:
            entries = {member.name: member for member in inner}
    assert set(entries) == {"bin", "etc", "tmp", "bin/busybox", "bin/sh", "bin/wget"}
    assert entries["bin/sh"].linkname == "busybox"
    assert entries["bin/busybox"].mode == 0o755


def test_an_image_changes_its_identity_with_its_file_and_its_command(recipe: Recipe, tmp_path: Path) -> None:
    before = identity(recipe)
    assert identity(recipe) == before
    assert identity(dataclasses.replace(recipe, command=["ls"])) != before
    (tmp_path / "busybox").write_text("another program")
    assert identity(recipe) != before


def test_a_file_that_is_no_archive_is_refused_with_its_name(tmp_path: Path) -> None:
    wrong = tmp_path / "notes.txt"
    wrong.write_text("not a tar file, though long enough to look at" * 100)
    with pytest.raises(ClusterError, match=r"notes\.txt is not a docker archive"):
        archive_identity(wrong)


def test_an_image_that_lost_its_name_is_stale_and_one_that_has_it_is_not() -> None:
    listing = """REF TYPE DIGEST SIZE PLATFORMS LABELS
docker.io/phasewise/operator:dev application/x sha256:new 1.0 MiB linux/amd64 -
sha256:idnew application/x sha256:new 1.0 MiB linux/amd64 io.cri-containerd.image=managed
sha256:idold application/x sha256:old 1.0 MiB linux/amd64 io.cri-containerd.image=managed
"""
    assert stale_ids(listing) == ["sha256:idold"]
    assert stale_ids("REF TYPE DIGEST\n") == []
