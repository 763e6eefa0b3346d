"""What `make fuzz` plays: mutated services, and edits of their children, pods, annotations and statuses. Pure.

Hypothesis generates; a case is a value that e2e/fuzz/play.py plays against a real API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import hypothesis
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from e2e.fuzz.specs import INTEGERS, JUNK, LONG, STRINGS, Json, specs
from phasewise_operator.kinds import CHILD_KINDS
from phasewise_runtime import contract

Target: TypeAlias = Literal["service", "child", "pod", "annotations", "status"]


@dataclass(frozen=True)
class Case:
    """One object or one edit. `body`: a spec, a merge patch, or a pod."""

    target: Target
    body: Json
    kind: str = ""
    """Of the child that is edited."""
    subject: int = 0
    """Which of the subjects, and which of their children: modulo their number."""


def cases(count: int, seed: int) -> list[Case]:
    """The same for the same seed and version of hypothesis."""
    found: list[Case] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.large_base_example],
    )
    @hypothesis.given(CASES)
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found[:count]


_NUMBERS = st.sampled_from(["x", "", "-1", "0", "1", "7", "1.5", "\u0663", LONG[:60], None])
_WORDS = st.sampled_from(["x", "", "a" * 63, "prefill", "decode", "router", None])
_LABELS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys((contract.LABEL_ROLE, contract.LABEL_REVISION, contract.LABEL_FINGERPRINT), _WORDS),
        **dict.fromkeys((contract.LABEL_SERVICE, contract.LABEL_MANAGED_BY, contract.LABEL_COMPONENT), _WORDS),
        contract.LABEL_GPUS: _NUMBERS,
        "other": _WORDS,
    },
)
_ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        contract.ANNOTATION_DESIRED: _NUMBERS | st.just(LONG),
        contract.ANNOTATION_INTENT: _WORDS,
        contract.ANNOTATION_TEMPLATE: _WORDS | st.just(LONG),
        **dict.fromkeys((contract.ANNOTATION_DEFAULT_IMAGE, contract.ANNOTATION_REFRESH), _WORDS),
        contract.ANNOTATION_DELETION_COST: _NUMBERS,
        "other": _WORDS,
    },
)
_OWNERS = st.sampled_from(
    [None, [], [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u", "controller": True}]]
)
_EDITED_METADATA = st.fixed_dictionaries(
    {},
    optional={
        "labels": _LABELS | st.none(),
        "annotations": _ANNOTATIONS | st.none(),
        "ownerReferences": _OWNERS,
        "managedFields": st.just([{}]),
        "finalizers": st.sampled_from([None, []]),
    },
)
_EDITED_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.sampled_from([0, 1, 7, -1, None]),
        "paused": st.booleans(),
        "maxUnavailable": st.sampled_from([0, "50%", None]),
        "strategy": st.sampled_from([{"type": "Recreate", "rollingUpdate": None}, None]),
        "ports": st.sampled_from([None, [], [{"name": "http", "port": 81}]]),
        "template": st.sampled_from([{"metadata": {"labels": {"a": "b"}}}, {"spec": {"priority": 1}}]),
    },
)
_EDITS = st.fixed_dictionaries({}, optional={"metadata": _EDITED_METADATA, "spec": _EDITED_SPECS})

_TIMES = st.sampled_from(["2026-01-01T00:00:00Z", None])
_CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["Ready", "PodScheduled", "Progressing", "ReplicaFailure", "Stalled", "Foreign", ""])},
        optional={
            "status": st.sampled_from(["True", "False", "Unknown", "x", "", None]),
            "reason": st.sampled_from(["Unschedulable", "NewReplicaSetAvailable", "", "a b", None]),
            "message": st.sampled_from(["m", "", "x" * 2000, None]),
            "lastTransitionTime": _TIMES,
            "observedGeneration": st.sampled_from([0, 1, -1, None]),
        },
    ),
    max_size=3,
)
_STATES = st.sampled_from(
    [
        *(None, {}, {"waiting": {}}, {"waiting": {"reason": "CrashLoopBackOff"}}, {"running": {"startedAt": None}}),
        *({"terminated": {"exitCode": 1}}, {"terminated": {"exitCode": 0}}, {"waiting": {"reason": "x" * 500}}),
        {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "\u0000 m"}},
    ]
)
_CONTAINER_STATUSES = st.none() | st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["engine", "launcher", "x"])},
        optional={"state": _STATES, "lastState": _STATES, "restartCount": st.sampled_from([0, 5, -1, None])},
    ),
    max_size=2,
)
_POD_STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running", "Failed", "Unknown", None]),
        "conditions": _CONDITIONS | st.none(),
        "containerStatuses": _CONTAINER_STATUSES,
        "initContainerStatuses": _CONTAINER_STATUSES,
        "podIP": st.sampled_from(["127.0.0.1", "::1", None]),
    },
)
_COUNTS = st.fixed_dictionaries(
    {},
    optional={
        "conditions": _CONDITIONS | st.none(),
        **{name: st.sampled_from([0, 1, 5, None]) for name in ("replicas", "readyReplicas", "updatedReplicas")},
        "observedGeneration": st.sampled_from([0, 99, None]),
    },
)
_PODS = st.fixed_dictionaries(
    {"status": _POD_STATUSES},
    optional={"labels": _LABELS, "annotations": _ANNOTATIONS},
)
_DECISIONS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "time": _TIMES,
            "role": _WORDS,
            "from": st.sampled_from(INTEGERS),
            "to": st.sampled_from(INTEGERS),
            "reason": _WORDS,
            "message": _WORDS,
            "fresh": st.just({"a": 1}),
        },
    )
    | JUNK,
    max_size=3,
)
_POOL_STATUSES = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.sampled_from(INTEGERS) for name in ("desired", "ready", "pending")},
        **dict.fromkeys(("revision", "observedRevision", "summary", "reason", "fresh"), _WORDS),
    },
)
_MEASURES = st.fixed_dictionaries(
    {},
    optional={name: st.sampled_from(STRINGS) for name in ("target", "measured", "summary", "lastSampleTime")},
)
_NEARLY = st.fixed_dictionaries(
    {"target": st.just("500ms"), "summary": st.sampled_from(["400ms/500ms", "-/500ms"])},
    optional={
        name: st.sampled_from((*STRINGS, "2026-01-01T00:00:00", "0s")) for name in ("measured", "lastSampleTime")
    },
)
"""A measure that lacks nothing: what lacks a field is left out before its values are looked at."""
_STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "conditions": _CONDITIONS | JUNK,
        "observedGeneration": st.sampled_from([0, 1, None, 10**9]),
        **dict.fromkeys(contract.ENGINE_ROLES, _POOL_STATUSES | JUNK),
        "slo": st.fixed_dictionaries({"ttft": _NEARLY, "itl": _NEARLY})
        | st.fixed_dictionaries({}, optional={"ttft": _MEASURES | JUNK, "itl": _MEASURES})
        | JUNK,
        "scaling": st.fixed_dictionaries({}, optional={"decisions": _DECISIONS | JUNK, "fresh": JUNK}) | JUNK,
        "router": JUNK,
        "model": JUNK,
        "fresh": JUNK,
    },
)
_SUBJECTS = st.integers(0, 1000)
_KINDS = st.sampled_from([kind.name for kind in CHILD_KINDS] + ["Deployment"] * 6)
CASES: SearchStrategy[Case] = st.one_of(
    st.builds(Case, st.just("service"), specs()),
    st.builds(Case, st.just("service"), specs()),
    st.builds(Case, st.just("child"), _EDITS, _KINDS, _SUBJECTS),
    st.builds(Case, st.just("child"), st.fixed_dictionaries({"status": _COUNTS}), st.just("Deployment"), _SUBJECTS),
    st.builds(Case, st.just("pod"), _PODS, st.just(""), _SUBJECTS),
    st.builds(Case, st.just("annotations"), _ANNOTATIONS, st.just(""), _SUBJECTS),
    st.builds(Case, st.just("status"), _STATUSES | st.none(), st.just(""), _SUBJECTS),
)
