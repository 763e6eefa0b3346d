"""What `make fuzz` throws at the operator: mutated services, edits of their children, pods and statuses. Pure.

Hypothesis generates; a case is a value that e2e/fuzz.py plays against a real API server. The values are a mix of what
nearly fits and of what cannot fit: what is refused at once tests only the API server.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import hypothesis
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from phasewise_operator.api.schema import structural_schema
from phasewise_operator.api.spec import InferenceServiceSpec
from phasewise_operator.kinds import CHILD_KINDS
from phasewise_runtime import contract

Json: TypeAlias = Any
Target: TypeAlias = Literal["service", "child", "pod", "annotations", "status"]
NOWHERE = {"phasewise.dev/fuzz": "no-node"}
"""No node has this label: pods of the fuzz need no image and no memory."""
LONG = "9" * 5000
"""More digits than int() takes."""


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
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(CASES)
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found[:count]


# --- specs -------------------------------------------------------------------------------------------------
_PLACED: Json = {"spec": {"nodeSelector": NOWHERE}}
_BASE: Json = {
    "model": {"uri": "file:///models/m"},
    "slo": {"ttft": "500ms", "itl": "40ms"},
    "decode": {"replicas": {"min": 0, "max": 2}, "template": _PLACED},
    "router": {"replicas": 1, "template": _PLACED},
}
_POOL: Json = {"replicas": {"min": 1, "max": 3}, "template": _PLACED}
_GPU: Json = {**_POOL, "accelerator": {"resource": "nvidia.com/gpu"}, "parallelism": {"tensor": 2}}
BASES: Sequence[Json] = (
    _BASE,
    {**_BASE, "prefill": _POOL, "decode": _POOL},
    {**_BASE, "prefill": _POOL, "decode": _POOL, "scaling": {"mode": "External"}},
    {**_BASE, "prefill": _GPU, "decode": _GPU, "scaling": {"mode": "Auto", "gpuBudget": 8}},
    {**_BASE, "decode": _POOL, "scaling": {"mode": "Manual"}},
)

_INTEGERS: Sequence[Json] = (-1, 0, 1, 2, 3, 8, 64, 10000, 2**31, 2**63 - 1, 1.5, "3", "x", True, None)
_STRINGS: Sequence[Json] = (
    *("", " ", "a", "A_b", "$(HOME)", "$$x", "ä" * 40, "a" * 70, "x" * 600, "\n", "-", "0", "1e3", "500ms", "1h", "0s"),
    *("hf://a/b", "pvc://claim/..", "file:///m", "s3://x", "nvidia.com/gpu", "memory", "Auto", "External", "Never"),
    *(LONG, 1, 2.5, True, None),
)
_QUANTITIES: Sequence[Json] = (0, 1, -1, 4, "500m", "1Gi", "-1", "1e3", "", "x", LONG, 1.5, None, "100", "1Ei")
_RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "example.com/x", "ephemeral-storage", "a b", "hugepages-2Mi", "")
_ARGS = ("max-model-len", "max-num-seqs", "cudagraph-capture-sizes", "a", "--a", "a_b", "model", "x" * 300, "a=b", "")
_ARG_VALUES: Sequence[Json] = (
    *(1, 2.5, True, False, "x", "", "$(POD_IP)", "$$", [1, 2], ["a", "b"], [[1]], ["-x"], {}, {"a": {"b": [1]}}),
    *([], "x" * 140_000, -1, 2**70, None, "ä\u0000b", LONG),
)


def _of_schema(schema: Mapping[str, Any]) -> SearchStrategy[Json]:
    """A value for a field: mostly of its type, and now and then not."""
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from(_QUANTITIES)
    if "enum" in schema:
        return st.sampled_from([*schema["enum"], "Other", 1])
    if kind == "integer":
        return st.sampled_from(_INTEGERS)
    if kind == "string":
        return st.sampled_from(_STRINGS)
    if kind == "boolean":
        return st.sampled_from([True, False, None, "x"])
    if kind == "array":
        return st.lists(_of_schema(schema["items"]), max_size=3) | st.sampled_from([None, {}, [None]])
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return st.dictionaries(st.sampled_from(_ARGS), st.sampled_from(_ARG_VALUES), max_size=3)
    if "additionalProperties" in schema:
        return st.dictionaries(st.sampled_from(_RESOURCES), _of_schema(schema["additionalProperties"]), max_size=3)
    return st.fixed_dictionaries({}, optional={k: _of_schema(v) for k, v in schema.get("properties", {}).items()})


def _paths(schema: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every field of the schema with its path, objects before what is in them."""
    found: list[tuple[tuple[str, ...], Mapping[str, Any]]] = []
    for name, below in schema.get("properties", {}).items():
        if name != "template" and above != ("engine", "args"):
            found += [((*above, name), below), *_paths(below, (*above, name))]
    return found


_FIELDS = _paths(structural_schema(InferenceServiceSpec))


@st.composite
def _field_changes(draw: st.DrawFn) -> tuple[tuple[str, ...], Json]:
    path, schema = draw(st.sampled_from(_FIELDS))
    return path, draw(_of_schema(schema))


_JUNK = st.sampled_from([None, 0, -1, "x", "", [], {}, [None], [1], [{}], {"a": "b"}, True, LONG])
_ENTRIES: Sequence[Json] = (
    *({"name": "A", "value": 1}, {"name": "A", "value": "$(B)"}, {"name": "HOME", "valueFrom": {"fieldRef": {}}}),
    *({"name": "POD_NAME", "value": "x"}, {"name": contract.ENV_ENGINE_CONFIG, "value": "{}"}, {"value": "x"}, None),
    *({"name": 1}, {"name": "tmp", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "x" * 300}, "x"),
    *({"name": "scratch", "hostPath": {"path": "/"}}, {"name": "models", "emptyDir": {}, "nfs": {}}, {"name": "b"}),
    *({"mountPath": "/tmp", "name": "gone"}, {"mountPath": 1, "name": "tmp"}, {"containerPort": "x"}),
    *({"containerPort": 8000, "name": "http", "protocol": "UDP"}, {"topologyKey": "z"}, {"name": "s", "image": "i"}),
)
_LISTS = st.lists(st.sampled_from(_ENTRIES), max_size=3) | _JUNK
_PROBE = st.sampled_from([None, {"exec": {"command": ["true"]}}, {"tcpSocket": {"port": "x"}}, {"periodSeconds": 0}])
_CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["engine", "router", "launcher", "side", "Bad Name", 1, None])},
    optional={
        **dict.fromkeys(("env", "volumeMounts", "ports", "envFrom"), _LISTS),
        **dict.fromkeys(("command", "args", "securityContext", "resources", "lifecycle", "imagee"), _JUNK),
        "image": st.sampled_from(_STRINGS),
        "livenessProbe": _PROBE,
        "readinessProbe": _PROBE,
    },
)
_CONTAINERS = st.lists(_CONTAINER, max_size=2) | _JUNK
_POD_SPECS = st.fixed_dictionaries(
    {"nodeSelector": st.just(NOWHERE)},
    optional={
        **dict.fromkeys(("containers", "initContainers"), _CONTAINERS),
        **dict.fromkeys(("volumes", "imagePullSecrets", "topologySpreadConstraints", "tolerations"), _LISTS),
        **dict.fromkeys(("affinity", "securityContext", "tolerationz", "hostAliases", "dnsConfig"), _JUNK),
        **dict.fromkeys(("serviceAccountName", "terminationGracePeriodSeconds", "hostNetwork", "nodeName"), _JUNK),
    },
)
_METADATA = st.fixed_dictionaries(
    {},
    optional={
        name: st.dictionaries(
            st.sampled_from(["a", "a b", "", contract.LABEL_ROLE, contract.LABEL_GPUS, contract.LABEL_MANAGED_BY]),
            st.sampled_from(["x", "", "a b", "x" * 70, None, 1]),
            max_size=2,
        )
        for name in ("labels", "annotations")
    },
)
_TEMPLATES = st.fixed_dictionaries({"spec": _POD_SPECS}, optional={"metadata": _METADATA | _JUNK})


@st.composite
def _specs(draw: st.DrawFn) -> Json:
    spec = copy.deepcopy(draw(st.sampled_from(BASES)))
    for path, value in draw(st.lists(_field_changes(), max_size=2)):
        _put(spec, path, value)
    if draw(st.booleans()):
        _put(spec, (draw(st.sampled_from([*contract.ENGINE_ROLES, contract.ROUTER])), "template"), draw(_TEMPLATES))
    if draw(st.booleans()):
        args = st.dictionaries(st.sampled_from(_ARGS), st.sampled_from(_ARG_VALUES), max_size=2)
        _put(spec, ("engine", "args"), draw(args))
    return spec


def _put(body: dict[str, Json], path: Sequence[str], value: Json) -> None:
    """Set a field; what lies on its path and is no mapping is replaced."""
    at = body
    for name in path[:-1]:
        if not isinstance(at.get(name), dict):
            at[name] = {}
        at = cast("dict[str, Json]", at[name])
    at[path[-1]] = value


# --- edits -------------------------------------------------------------------------------------------------
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
            "from": st.sampled_from(_INTEGERS),
            "to": st.sampled_from(_INTEGERS),
            "reason": _WORDS,
            "message": _WORDS,
            "fresh": st.just({"a": 1}),
        },
    )
    | _JUNK,
    max_size=3,
)
_POOL_STATUSES = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.sampled_from(_INTEGERS) for name in ("desired", "ready", "pending")},
        **dict.fromkeys(("revision", "observedRevision", "summary", "reason", "fresh"), _WORDS),
    },
)
_MEASURES = st.fixed_dictionaries(
    {},
    optional={name: st.sampled_from(_STRINGS) for name in ("target", "measured", "summary", "lastSampleTime")},
)
_STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "conditions": _CONDITIONS | _JUNK,
        "observedGeneration": st.sampled_from([0, 1, None, 10**9]),
        **dict.fromkeys(contract.ENGINE_ROLES, _POOL_STATUSES | _JUNK),
        "slo": st.fixed_dictionaries({}, optional={"ttft": _MEASURES | _JUNK, "itl": _MEASURES}) | _JUNK,
        "scaling": st.fixed_dictionaries({}, optional={"decisions": _DECISIONS | _JUNK, "fresh": _JUNK}) | _JUNK,
        "router": _JUNK,
        "model": _JUNK,
        "fresh": _JUNK,
    },
)
_SUBJECTS = st.integers(0, 1000)
_KINDS = st.sampled_from([kind.name for kind in CHILD_KINDS] + ["Deployment"] * 6)
CASES: SearchStrategy[Case] = st.one_of(
    st.builds(Case, st.just("service"), _specs()),
    st.builds(Case, st.just("service"), _specs()),
    st.builds(Case, st.just("child"), _EDITS, _KINDS, _SUBJECTS),
    st.builds(Case, st.just("child"), st.fixed_dictionaries({"status": _POD_STATUSES}), st.just("Deployment")),
    st.builds(Case, st.just("pod"), _PODS, st.just(""), _SUBJECTS),
    st.builds(Case, st.just("annotations"), _ANNOTATIONS, st.just(""), _SUBJECTS),
    st.builds(Case, st.just("status"), _STATUSES | st.none(), st.just(""), _SUBJECTS),
)
