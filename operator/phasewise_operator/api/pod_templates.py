"""What a user's pod template may set where the chart's `podTemplates` is `Safe`: one allow-list for its two readers.

The operator asks it why a template is refused (`refusal`), the API server by the same list as CEL expressions
(`policy`), which `make crds` writes into the chart's ValidatingAdmissionPolicy. Pure.

Safe means: anyone who may write InferenceServices, and nothing else, gets no more rights by a template. So no other
containers, no ServiceAccount, no Secret, nothing of the node, no weaker isolation. A router's container gets resources
only: its pod holds a token that reads the pods of the namespace, so its code stays ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from phasewise_runtime import contract

ADVICE: Final = (
    "unknown, or not allowed in a pod template while podTemplates is Safe: check its spelling, or leave it out; or "
    "install the chart with podTemplates Full, which trusts anyone who may write InferenceServices with any pod and "
    "any ServiceAccount of the namespace"
)


MAX_ENTRIES: Final = 256
"""In a map or list. The API server's CEL takes time that grows with the square of it: 1 s at 3,000."""
TOO_MANY: Final = f" with more than {MAX_ENTRIES} entries"


class Rule(Protocol):
    """What a value may be. `where`: its path, for messages; in `cel` both are CEL expressions."""

    def forbidden(self, value: Any, where: str) -> list[str]:
        """Paths of what is not allowed. A value of another type than the rule's is left to the API server."""
        ...

    def cel(self, value: str, where: str, depth: int) -> str:
        """The same as an expression for a list of strings; `depth` makes names of variables distinct."""
        ...


@dataclass(frozen=True)
class Anything:
    def forbidden(self, value: Any, where: str) -> list[str]:  # noqa: ARG002
        return []

    def cel(self, value: str, where: str, depth: int) -> str:  # noqa: ARG002
        return "[]"


@dataclass(frozen=True)
class TextWithout:
    """A text that does not begin with any of these."""

    prefixes: tuple[str, ...]

    def forbidden(self, value: Any, where: str) -> list[str]:
        return [where] if isinstance(value, str) and value.startswith(self.prefixes) else []

    def cel(self, value: str, where: str, depth: int) -> str:
        begins = f"{list(self.prefixes)}.exists(k{depth}, {value}.startsWith(k{depth}))"
        return f"(type({value}) == string && {begins} ? [{where}] : [])"


@dataclass(frozen=True)
class KeysWithout:
    """A map of which no key begins with any of these."""

    prefixes: tuple[str, ...]

    def forbidden(self, value: Any, where: str) -> list[str]:
        if not isinstance(value, Mapping):
            return []
        keys = cast("Mapping[str, Any]", value)
        if len(keys) > MAX_ENTRIES:
            return [f"{where}{TOO_MANY}"]
        return [f"{where}.{key}" for key in keys if key.startswith(self.prefixes)]

    def cel(self, value: str, where: str, depth: int) -> str:
        key = f"k{depth}"
        begins = f"{list(self.prefixes)}.exists(p, {key}.startsWith(p))"
        found = f"{value}.filter({key}, {begins}).map({key}, {_joined(where, '.')} + {key})"
        return _cel_if("map", value, where, found)


@dataclass(frozen=True)
class Fields:
    """A map with these keys and no others."""

    rules: Mapping[str, Rule]

    def forbidden(self, value: Any, where: str) -> list[str]:
        if not isinstance(value, Mapping):
            return []
        fields, found = cast("Mapping[str, Any]", value), list[str]()
        if len(fields) > MAX_ENTRIES:
            return [f"{where}{TOO_MANY}"]
        for key, below in fields.items():
            rule = self.rules.get(key)
            found += rule.forbidden(below, f"{where}.{key}") if rule else [f"{where}.{key}"]
        return found

    def cel(self, value: str, where: str, depth: int) -> str:
        key = f"k{depth}"
        parts = [f"{value}.filter({key}, !({key} in {list(self.rules)})).map({key}, {_joined(where, '.')} + {key})"]
        for name, rule in self.rules.items():
            below = rule.cel(f"{value}.{name}", _joined(where, f".{name}"), depth + 1)
            if below != "[]":
                parts.append(f"(has({value}.{name}) ? {below} : [])")
        return _cel_if("map", value, where, " + ".join(parts))


@dataclass(frozen=True)
class Items:
    """A list of maps with these keys. `only`: the one entry that is allowed, by name."""

    fields: Fields
    only: str | None = None

    def forbidden(self, value: Any, where: str) -> list[str]:
        items, found = cast("list[Any]", value) if isinstance(value, list) else [], list[str]()
        if len(items) > MAX_ENTRIES:
            return [f"{where}{TOO_MANY}"]
        for item in items:
            if isinstance(item, Mapping):
                entry = cast("Mapping[str, Any]", item)
                at = f"{where}[{_name(entry)}]"
                found += self.fields.forbidden(entry, at) if self.only in (None, _name(entry)) else [at]
        return found

    def cel(self, value: str, where: str, depth: int) -> str:
        item = f"i{depth}"
        name = f"(has({item}.name) && type({item}.name) == string ? {item}.name : '?')"
        at = f"{_joined(where, '[')} + {name} + ']'"
        below = self.fields.cel(item, at, depth + 1)
        if self.only:
            below = f"({name} == '{self.only}' ? {below} : [{at}])"
        # CEL has no flatten before Kubernetes 1.33: the paths of an item become one text.
        paths = (
            f"{value}.filter({item}, type({item}) == map).map({item}, {below}.join(', ')).filter({item}, {item} != '')"
        )
        return _cel_if("list", value, where, paths)


def _cel_if(kind: str, value: str, where: str, found: str) -> str:
    """`found` where the value is of this kind and not too large; a value of another kind is left to the API server."""
    return f"(type({value}) != {kind} ? [] : size({value}) > {MAX_ENTRIES} ? [{_joined(where, TOO_MANY)}] : {found})"


def _joined(where: str, text: str) -> str:
    """The CEL expression of a path with a literal text after it."""
    return f"{where[:-1]}{text}'" if where.endswith("'") else f"{where} + '{text}'"


def _name(entry: Mapping[str, Any]) -> str:
    name = entry.get("name")
    return name if isinstance(name, str) else "?"


ANYTHING: Final = Anything()
ISOLATION_ANNOTATIONS: Final = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
    "io.kubernetes.cri-o.",
    "cdi.k8s.io/",
    "sidecar.istio.io/proxyImage",
    "sidecar.istio.io/userVolume",
    "config.linkerd.io/proxy-image",
    "config.linkerd.io/init-image",
    "config.linkerd.io/debug-image",
    "dapr.io/sidecar-image",
    "vault.hashicorp.com/agent-image",
    "vault.hashicorp.com/agent-inject-command",
    "vault.hashicorp.com/agent-extra-secret",
)
"""By these a pod gets weaker isolation, devices that it did not request, or an injected sidecar's volumes, image and
commands. Annotations are whatever a cluster's admission webhooks read, so this is no allow-list: docs/security.md."""
SOURCES: Final = Fields(dict.fromkeys(("fieldRef", "resourceFieldRef", "configMapKeyRef"), ANYTHING))
"""Of environment variables. Secrets are mounted by model.secretRef and router.apiKeys, never put in the environment."""
ENGINE_CONTAINER: Final = Fields(
    {
        "name": ANYTHING,
        "env": Items(Fields({"name": ANYTHING, "value": ANYTHING, "valueFrom": SOURCES})),
        "envFrom": Items(Fields({"prefix": ANYTHING, "configMapRef": ANYTHING})),
        "resources": ANYTHING,
        "volumeMounts": ANYTHING,
    }
)
VOLUME: Final = Fields(
    dict.fromkeys(("name", "configMap", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"), ANYTHING)
)
POD: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"), ANYTHING),
    **dict.fromkeys(("schedulerName", "runtimeClassName", "imagePullSecrets", "dnsPolicy", "dnsConfig"), ANYTHING),
    "priorityClassName": TextWithout(("system-",)),
}
METADATA: Final = Fields({"labels": ANYTHING, "annotations": KeysWithout(ISOLATION_ANNOTATIONS)})


def _template(spec: Mapping[str, Rule]) -> Fields:
    return Fields({"metadata": METADATA, "spec": Fields({**POD, **spec})})


ENGINE: Final = _template({"containers": Items(ENGINE_CONTAINER, only="engine"), "volumes": Items(VOLUME)})
ROUTER: Final = _template(
    {"containers": Items(Fields({"name": ANYTHING, "resources": ANYTHING}), only="router")},
)
BY_ROLE: Final = {contract.PREFILL: ENGINE, contract.DECODE: ENGINE, contract.ROUTER: ROUTER}


def refusal(role: str, template: Any) -> str | None:
    """Why the template of a role is refused; None where it is Safe."""
    found = BY_ROLE[role].forbidden(template, f"spec.{role}.template")
    return f"{', '.join(found)}: {ADVICE}" if found else None


def policy() -> dict[str, Any]:
    """Variables and validations of the ValidatingAdmissionPolicy.

    A template that an object already has is not looked at again, so that an object that was stored before the policy
    can be edited in everything else.
    """
    variables = [{"name": role, "expression": _forbidden_cel(role)} for role in BY_ROLE]
    found = " + ".join(f"variables.{role}" for role in BY_ROLE)
    validation = {
        "expression": f"size({found}) == 0",
        "messageExpression": f"({found}).join(', ') + ': {ADVICE}'",
        "reason": "Forbidden",
    }
    return {"variables": variables, "validations": [validation]}


def _forbidden_cel(role: str) -> str:
    new, old = (f"{source}.spec.{role}.template" for source in ("object", "oldObject"))
    present = f"has(object.spec.{role}) && has({new})"
    stored = f"oldObject != null && has(oldObject.spec.{role}) && has({old}) && {old} == {new}"
    forbidden = BY_ROLE[role].cel(new, f"'spec.{role}.template'", 0)
    return f"{present} && !({stored}) ? {forbidden} : []"
