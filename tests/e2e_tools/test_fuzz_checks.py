"""What the fuzz takes for a fault: checks that let everything pass would hide one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from e2e.fuzz.play import NAMES_FIELD, Fuzz

from phasewise_operator.kinds import CHILD_KINDS, INFERENCE_SERVICE, Kind, Manifest
from phasewise_operator.kube import Kube, Listing
from phasewise_runtime import contract


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ("spec.decode.replicas.min: Input should be a valid integer", True),
        (
            'Deployment c-1-decode: .spec.decode.template.spec.containers[name="engine"].imagee: field not declared',
            True,
        ),
        ("Deployment c-1-decode: metadata.annotations: Too long", True),
        ("the spec cannot be acted on", False),
        ("Pod was refused: see its metadata.", False),
    ],
)
def test_a_message_names_a_field_where_it_says_which_of_the_spec(message: str, names: bool) -> None:
    assert bool(NAMES_FIELD.search(message)) is names


class FakeKube:
    """One service and its children; what lacks the label of its service is not listed."""

    def __init__(self, stalled: dict[str, str], *children: Manifest) -> None:
        conditions = [{"type": "Stalled", **stalled}]
        self.service: Manifest = {"metadata": {"name": "s", "uid": "u"}, "status": {"conditions": conditions}}
        self.children = children

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        del namespace
        known = (c for c in self.children if (c["kind"], c["metadata"]["name"]) == (kind.name, name))
        return self.service if kind is INFERENCE_SERVICE else next(known, None)

    async def list(self, kind: Kind, namespace: str, **_: Any) -> Listing:
        del namespace
        return Listing([c for c in self.children if c["kind"] == kind.name and "labels" in c["metadata"]], 1)


def child(kind: str, owner: str | None = "u", labelled: bool = True) -> Manifest:
    owners = [{"controller": True, "uid": owner}] if owner else []
    labels = {"labels": {contract.LABEL_SERVICE: "s"}} if labelled else {}
    return {"kind": kind, "metadata": {"name": f"s-{kind}", "ownerReferences": owners, **labels}}


TEXT = "Deployment s-Deployment: it was made by somebody else: delete it"
CONFLICT = {"reason": "NameConflict", "message": TEXT}
CONFLICTS = {"reason": "NameConflict", "message": f"{TEXT}; also Service s-Service (NameConflict)"}
OTHERS = child("Deployment", owner=None, labelled=False)


@pytest.mark.parametrize(
    ("stalled", "children", "faults"),
    [
        ({"reason": "Progressing"}, (child("Deployment"), child("Service")), 0),
        (CONFLICT, (OTHERS, child("Service")), 0),
        (CONFLICTS, (OTHERS, child("Service", owner=None, labelled=False)), 0),
        (CONFLICT, (OTHERS, child("Service", owner=None, labelled=False)), 1),
        (CONFLICT, (OTHERS,), 1),
        (CONFLICT, (child("Deployment", labelled=False), child("Service")), 1),
        (CONFLICT, (child("Deployment"),), 1),
        ({"reason": "Progressing"}, (OTHERS, child("Service")), 1),
    ],
    ids=[
        *("all there", "another's", "two are another's", "one of two is not named", "another's, and one is gone"),
        *("its own, without a label", "another one is gone", "another's and nothing is said"),
    ],
)
async def test_a_missing_child_is_a_fault_unless_it_is_anothers_and_the_status_says_so(
    stalled: dict[str, str], children: tuple[Manifest, ...], faults: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.fuzz.play.SETTLE_SECONDS", 0.0)
    assert {"Deployment", "Service"} <= {kind.name for kind in CHILD_KINDS}
    run = Fuzz(cast("Kube", FakeKube(stalled, *children)), "fuzz")
    run.children = {"s": {("Deployment", "s-Deployment"), ("Service", "s-Service")}}
    await run.check_repaired()
    assert len(run.faults) == faults, run.faults


async def test_a_canary_that_still_waits_when_the_run_ends_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Fuzz(cast("Kube", None), "fuzz")

    async def patch(*_: Any) -> Manifest:
        return {"metadata": {"generation": 2}}

    async def observed(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(run, "patch", patch)
    monkeypatch.setattr(run, "observed", observed)
    canary = asyncio.create_task(run.canary())
    await asyncio.sleep(0.05)
    canary.cancel()
    await asyncio.gather(canary, return_exceptions=True)
    assert len(run.delays) == 1
    assert run.delays[0] >= 0.04
