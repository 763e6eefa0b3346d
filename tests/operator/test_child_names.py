"""Names of children: DNS labels, as readable as 63 characters allow, and never the same for two services."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.conftest import MakeContext, minimal_spec

from phasewise_operator.api.spec import InferenceServiceSpec
from phasewise_operator.kinds import Manifest
from phasewise_operator.render.children import constant_children, pool_scaler
from phasewise_operator.render.context import Context, Images
from phasewise_operator.render.engine import engine_deployment, engine_template
from phasewise_runtime import contract

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
SPEC = InferenceServiceSpec.model_validate(minimal_spec())
LONG = "team-search-production-llama-3-1-70b-instruct-long-context-v0001"[:63]
REVISION = "0123456789"
PARTS = [
    (contract.ROUTER,),
    ("engine",),
    *((role,) for role in contract.ENGINE_ROLES),
    *((role, revision) for role in contract.ENGINE_ROLES for revision in (REVISION, "abcdef0123")),
]

service_names = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
names_that_begin_alike = st.from_regex(r"[-a-z0-9]{0,9}[a-z0-9]", fullmatch=True).map(lambda end: LONG[:53] + end)


def context(name: str) -> Context:
    return Context("default", name, f"uid-{name}", SPEC, Images("runtime", "engine", "Always"))


def child_names(name: str) -> list[str]:
    return [context(name).child_name(*parts) for parts in PARTS]


@given(service_names)
def test_each_child_of_a_service_has_its_own_name_which_is_a_dns_label(name: str) -> None:
    names = child_names(name)
    assert len(set(names)) == len(PARTS)
    assert [name for name in names if not DNS_LABEL.fullmatch(name)] == []


@given(st.lists(names_that_begin_alike, min_size=2, max_size=5, unique=True))
def test_services_whose_names_begin_alike_share_no_child(services: list[str]) -> None:
    names = [child for name in services for child in child_names(name)]
    assert len(set(names)) == len(names)


@given(service_names.filter(lambda name: len(name) <= 44))
def test_a_name_that_fits_is_kept(name: str) -> None:
    assert context(name).child_name("prefill", REVISION) == f"{name}-prefill-{REVISION}"


@pytest.mark.parametrize(
    ("name", "child"),
    [
        (LONG[:44], "team-search-production-llama-3-1-70b-instruc-prefill-0123456789"),
        (LONG[:45], "team-search-production-llama-3-1-70-HASH-prefill-0123456789"),
        (LONG, "team-search-production-llama-3-1-70-HASH-prefill-0123456789"),
    ],
    ids=["just fits", "one too long", "as long as can be"],
)
def test_a_name_that_does_not_fit_keeps_its_parts_and_a_hash_of_the_service(name: str, child: str) -> None:
    got = context(name).child_name("prefill", REVISION)
    assert re.fullmatch(child.replace("HASH", "[0-9a-f]{8}"), got)


def test_no_two_hyphens_stand_where_the_cut_is_at_one() -> None:
    name = "a" * 34 + "-" + "b" * 28
    assert re.fullmatch("a{34}-[0-9a-f]{8}-prefill-0123456789", context(name).child_name("prefill", REVISION))


def names_that_children_refer_to(children: list[Manifest]) -> set[tuple[str, str]]:
    """Kind and name of every child that another child names: accounts of pods, subjects of bindings."""
    found: set[tuple[str, str]] = set()
    for child in children:
        pod: dict[str, Any] = child.get("spec", {}).get("template", {}).get("spec", {})
        found |= {("ServiceAccount", pod["serviceAccountName"])} if pod else set()
        found |= {(subject["kind"], subject["name"]) for subject in child.get("subjects", [])}
    return found


def test_children_of_a_service_with_the_longest_name_find_one_another(make_context: MakeContext) -> None:
    ctx = make_context(LONG)
    engines = [engine_deployment(ctx, engine_template(ctx, role), 1, 1) for role in ctx.pools]
    children = [*constant_children(ctx), *engines, *(pool_scaler(ctx, role) for role in ctx.pools)]
    named = {(child["kind"], child["metadata"]["name"]) for child in children}
    assert len(named) == len(children)
    assert names_that_children_refer_to(children) - named == set()
    assert [name for _, name in named if not DNS_LABEL.fullmatch(name)] == []
    assert all(len(value) <= 63 for child in children for value in child["metadata"]["labels"].values())
