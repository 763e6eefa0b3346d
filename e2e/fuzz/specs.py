"""Mutated specs of InferenceServices: fields by the CRD's own schema, and templates and arguments that it does not see.

Values are a mix of what nearly fits and of what cannot fit: what is refused at once tests only the API server.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from phasewise_operator.api.schema import structural_schema
from phasewise_operator.api.spec import InferenceServiceSpec
from phasewise_runtime import contract

Json: TypeAlias = Any
NOWHERE = {"phasewise.dev/fuzz": "no-node"}
"""No node has this label: pods of the fuzz need no image and no memory."""
LONG = "9" * 5000
"""More digits than int() takes."""

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

INTEGERS: Sequence[Json] = (-1, 0, 1, 2, 3, 8, 64, 10000, 2**31, 2**63 - 1, 1.5, "3", "x", True, None)
STRINGS: Sequence[Json] = (
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
    plain = {"integer": INTEGERS, "string": STRINGS, "boolean": (True, False, None, "x")}
    if schema.get("x-kubernetes-int-or-string"):
        return st.sampled_from(_QUANTITIES)
    if "enum" in schema:
        return st.sampled_from([*schema["enum"], "Other", 1])
    if schema.get("type") in plain:
        return st.sampled_from(plain[schema["type"]])
    return _of_parts(schema)


def _of_parts(schema: Mapping[str, Any]) -> SearchStrategy[Json]:
    if "items" in schema:
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


JUNK = st.sampled_from([None, 0, -1, "x", "", [], {}, [None], [1], [{}], {"a": "b"}, True, LONG])
_ENTRIES: Sequence[Json] = (
    *({"name": "A", "value": 1}, {"name": "A", "value": "$(B)"}, {"name": "HOME", "valueFrom": {"fieldRef": {}}}),
    *({"name": "POD_NAME", "value": "x"}, {"name": contract.ENV_ENGINE_CONFIG, "value": "{}"}, {"value": "x"}, None),
    *({"name": 1}, {"name": "tmp", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "x" * 300}, "x"),
    *({"name": "scratch", "hostPath": {"path": "/"}}, {"name": "models", "emptyDir": {}, "nfs": {}}, {"name": "b"}),
    *({"mountPath": "/tmp", "name": "gone"}, {"mountPath": 1, "name": "tmp"}, {"containerPort": "x"}),
    *({"containerPort": 8000, "name": "http", "protocol": "UDP"}, {"topologyKey": "z"}, {"name": "s", "image": "i"}),
)
_LISTS = st.lists(st.sampled_from(_ENTRIES), max_size=3) | JUNK
_PROBE = st.sampled_from([None, {"exec": {"command": ["true"]}}, {"tcpSocket": {"port": "x"}}, {"periodSeconds": 0}])
_CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["engine", "router", "launcher", "side", "Bad Name", 1, None])},
    optional={
        **dict.fromkeys(("env", "volumeMounts", "ports", "envFrom"), _LISTS),
        **dict.fromkeys(("command", "args", "securityContext", "resources", "lifecycle", "imagee"), JUNK),
        "image": st.sampled_from(STRINGS),
        "livenessProbe": _PROBE,
        "readinessProbe": _PROBE,
    },
)
_CONTAINERS = st.lists(_CONTAINER, max_size=2) | JUNK
_POD_SPECS = st.fixed_dictionaries(
    {"nodeSelector": st.just(NOWHERE)},
    optional={
        **dict.fromkeys(("containers", "initContainers"), _CONTAINERS),
        **dict.fromkeys(("volumes", "imagePullSecrets", "topologySpreadConstraints", "tolerations"), _LISTS),
        **dict.fromkeys(("affinity", "securityContext", "tolerationz", "hostAliases", "dnsConfig"), JUNK),
        **dict.fromkeys(("serviceAccountName", "terminationGracePeriodSeconds", "hostNetwork", "nodeName"), JUNK),
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
_TEMPLATES = st.fixed_dictionaries({"spec": _POD_SPECS}, optional={"metadata": _METADATA | JUNK})


@st.composite
def specs(draw: st.DrawFn) -> Json:
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
