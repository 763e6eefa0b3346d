"""CEL rules of the custom resources: what a schema alone cannot say, with messages that say what to write instead.

Pure text. The API server evaluates these; names are the JSON names.
A property name that is no CEL identifier is escaped (``a-b`` is ``a__dash__b``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from phasewise_runtime.engine.arguments import OWNED


@dataclass(frozen=True)
class Rule:
    """One entry of ``x-kubernetes-validations``: refused with ``message`` unless ``rule`` holds."""

    rule: str
    message: str
    field_path: str | None = None
    unless_stored: bool = False
    """An object that broke the rule before the edit may break it after. For a rule on the spec that came after the
    first release: the API server lets stored values pass by itself only where nothing changes below the rule."""

    def to_schema(self) -> dict[str, JsonValue]:
        """Return the rule as the CRD carries it."""
        schema: dict[str, JsonValue] = {"rule": self.rule, "message": self.message}
        if self.unless_stored:
            stored = self.rule.replace("self.", "oldSelf.value().")
            schema |= {"rule": f"({self.rule}) || (oldSelf.hasValue() && !({stored}))", "optionalOldSelf": True}
        return schema | {"fieldPath": self.field_path} if self.field_path else schema


def validations(*rules: Rule) -> dict[str, JsonValue]:
    """Return the part of a schema that carries rules."""
    return {"x-kubernetes-validations": [rule.to_schema() for rule in rules]}


# Six digits and this length keep every sum below the 292 years that Go's durations hold: CEL would fail on more.
DURATION_PATTERN: Final = "^(0|(([0-9]{1,6}([.][0-9]{0,9})?|[.][0-9]{1,9})(ns|us|\u00b5s|\u03bcs|ms|s|m|h))+)$"
DURATION_LENGTH: Final = 20


def duration_between(lowest: str | None, highest: str | None, message: str) -> Rule:
    """Return a rule for a text: it is a duration within these bounds, where there are any."""
    checks = [f"self.matches('{DURATION_PATTERN}')"]
    checks += [f"duration(self) >= duration('{lowest}')"] if lowest else []
    checks += [f"duration(self) <= duration('{highest}')"] if highest else []
    return Rule(" && ".join(checks), message)


QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
QUANTITY: Final = Rule(
    f"type(self) == int ? int(self) >= 0 : string(self).matches(r'{QUANTITY_PATTERN}')",
    "write a quantity such as 4, 500m or 32Gi (units k, M, G, T or Ki, Mi, Gi, Ti)",
)

# --- metadata ----------------------------------------------------------------------------------------------
NAME_LENGTH: Final = Rule(
    "self.metadata.name.size() <= 63",
    "metadata.name must have at most 63 characters, because it is the name of a Service and the value of labels",
)
NAME_SHAPE: Final = Rule(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name must be lower case letters, digits and '-', begin with a letter and not end with '-', "
    "because a Service is named after it",
)

# --- renamed fields ----------------------------------------------------------------------------------------
# Always refused, and yet stored objects can be edited: since Kubernetes 1.30 the API server only warns where the value
# of the field is the stored one and the rule does not read oldSelf (validation ratcheting).
MAX_GENERATION_SECONDS: Final = Rule(
    "false", "maxGenerationSeconds was renamed: write maxGeneration with a unit, such as maxGeneration: 600s"
)
HOLD_SECONDS: Final = Rule("false", "holdSeconds was renamed: write hold with a unit, such as hold: 30s")

# --- model -------------------------------------------------------------------------------------------------
MODEL_URI_PATTERN: Final = "^(hf|s3|pvc|oci|file)://.+$"
MODEL_URI: Final = Rule(
    f"self.uri.matches('{MODEL_URI_PATTERN}')",
    "write where the model is: hf://owner/name for the Hugging Face Hub, pvc://claim/path for a PersistentVolumeClaim, "
    "or file:///path for a folder in the engine image",
    ".uri",
)
MODEL_SCHEME_SUPPORTED: Final = Rule(
    "!self.uri.startsWith('s3://') && !self.uri.startsWith('oci://')",
    "s3:// and oci:// are not supported yet: use hf://owner/name for the Hugging Face Hub, pvc://claim/path for a "
    "PersistentVolumeClaim, or file:///path for a folder in the engine image",
    ".uri",
)
MODEL_HF: Final = Rule(
    "!self.uri.startsWith('hf://') || self.uri.matches('^hf://[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?"
    "(@[A-Za-z0-9._/-]+)?$')",
    "an hf:// URI is hf://owner/name or hf://owner/name@revision, such as hf://meta-llama/Llama-3.1-8B-Instruct",
    ".uri",
)
MODEL_PVC: Final = Rule(
    "!self.uri.startsWith('pvc://') || "
    "(self.uri.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/.*)?$') && !self.uri.contains('..'))",
    "a pvc:// URI is pvc://claim or pvc://claim/path/to/model, with the claim in the same namespace and no '..'",
    ".uri",
)
MODEL_FILE: Final = Rule(
    "!self.uri.startsWith('file://') || (self.uri.matches('^file:///.+$') && !self.uri.contains('..'))",
    "a file:// URI is file:///absolute/path of a folder in the engine image (three slashes, no '..')",
    ".uri",
)

# --- engine ------------------------------------------------------------------------------------------------
ENGINE_ARGS: Final = tuple(
    Rule(f"!has(self.{name.replace('-', '__dash__')})", f"engine.args cannot have {name}: {reason}")
    for name, reason in OWNED.items()
)


# --- pools -------------------------------------------------------------------------------------------------
REPLICAS_ORDER: Final = Rule(
    "!has(self.max) || self.min <= self.max", "replicas.min is above replicas.max: lower min or raise max"
)
REQUESTS_WITHIN_LIMITS: Final = Rule(
    "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
    "!isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) || "
    "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
    "requests are above limits: of no resource more may be requested than its limit; lower requests or raise limits",
    ".requests",
)
ONE_POD: Final = Rule(
    "self.tensor * self.pipeline <= 64",
    "a replica is one pod on one node: parallelism.tensor x parallelism.pipeline can be at most 64",
    ".pipeline",
)
EXTENDED_RESOURCE: Final = Rule(
    "self.resource.contains('/') && !self.resource.contains('kubernetes.io/')",
    "accelerator.resource must be the extended resource of a device plugin, such as nvidia.com/gpu: write cpu and "
    "memory in resources",
    ".resource",
)
ACCELERATOR_NOT_IN_RESOURCES: Final = Rule(
    "!has(self.accelerator) || !has(self.resources) || ("
    "(!has(self.resources.requests) || !(self.accelerator.resource in self.resources.requests)) && "
    "(!has(self.resources.limits) || !(self.accelerator.resource in self.resources.limits)))",
    "leave the accelerator out of resources: a replica gets parallelism.tensor x parallelism.pipeline of "
    "accelerator.resource",
    ".resources",
)
GPU_NEEDS_ACCELERATOR: Final = Rule(
    "has(self.accelerator) || !has(self.resources) || ("
    "(!has(self.resources.requests) || !('nvidia.com/gpu' in self.resources.requests)) && "
    "(!has(self.resources.limits) || !('nvidia.com/gpu' in self.resources.limits)))",
    "for a GPU pool write accelerator: {resource: nvidia.com/gpu} and parallelism instead of nvidia.com/gpu in "
    "resources",
    ".resources",
)

# --- the service -------------------------------------------------------------------------------------------
SAME_DEVICE: Final = Rule(
    "!has(self.prefill) || has(self.prefill.accelerator) == has(self.decode.accelerator)",
    "prefill and decode must both have an accelerator or both have none: the KV cache cannot pass between a GPU and a "
    "CPU pool; write accelerator in both, or leave prefill out",
    ".prefill",
)
GPU_ENGINE_NEEDS_ACCELERATOR: Final = Rule(
    "!has(self.engine) || !has(self.engine.device) || self.engine.device != 'gpu' || has(self.decode.accelerator)",
    "engine.device gpu needs an accelerator in each pool: write accelerator: {resource: nvidia.com/gpu} in them, or "
    "leave engine.device out",
    ".engine.device",
)
TENSOR_DIVIDES: Final = Rule(
    "!has(self.prefill) || self.prefill.parallelism.tensor % self.decode.parallelism.tensor == 0 || "
    "self.decode.parallelism.tensor % self.prefill.parallelism.tensor == 0",
    "parallelism.tensor of prefill and decode must divide one another, because the shards of the KV cache are "
    "transferred evenly: write for example 2 and 4, or the same number in both",
    ".prefill.parallelism.tensor",
)
NO_PIPELINE_WITH_PREFILL: Final = tuple(
    Rule(
        f"!has(self.prefill) || self.{pool}.parallelism.pipeline == 1",
        "parallelism.pipeline above 1 cannot be used together with prefill, because the KV transfer (NIXL) does not "
        "support it: write pipeline: 1 and raise parallelism.tensor, or leave prefill out",
        f".{pool}.parallelism.pipeline",
    )
    for pool in ("prefill", "decode")
)
ZERO_TOGETHER: Final = Rule(
    "!has(self.prefill) || (self.prefill.replicas.min == 0) == (self.decode.replicas.min == 0)",
    "replicas.min must be 0 in both pools or in neither; for decode replicas that do both phases leave prefill out",
    ".prefill.replicas.min",
)
ZERO_NEEDS_MAXIMUM: Final = tuple(
    Rule(
        f"{exists}self.scaling.mode != 'Auto' || self.{pool}.replicas.min > 0 || has(self.{pool}.replicas.max)",
        "replicas.min 0 without replicas.max keeps the pool at 0 for ever in scaling.mode Auto: write replicas.max, or "
        "scaling.mode: Manual for a service that is switched off",
        f".{pool}.replicas",
        unless_stored=True,
    )
    for pool, exists in (("prefill", "!has(self.prefill) || "), ("decode", ""))
)


def _least_accelerators(pool: str, replicas: str) -> str:
    """CEL for what a pool takes with so many replicas; `has` must hold for the pool."""
    size = f"self.{pool}.parallelism.tensor * self.{pool}.parallelism.pipeline"
    return f"(has(self.{pool}.accelerator) ? {replicas} * {size} : 0)"


_PREFILL_MINIMUM: Final = f"(has(self.prefill) ? {_least_accelerators('prefill', 'self.prefill.replicas.min')} : 0)"
_DECODE_MINIMUM: Final = _least_accelerators("decode", "self.decode.replicas.min")
_PREFILL_REPLICA: Final = f"(has(self.prefill) ? {_least_accelerators('prefill', '1')} : 0)"
_DECODE_REPLICA: Final = _least_accelerators("decode", "1")
BUDGET_COVERS_A_REPLICA: Final = Rule(
    f"!has(self.scaling.gpuBudget) || {_PREFILL_REPLICA} + {_DECODE_REPLICA} <= self.scaling.gpuBudget",
    "scaling.gpuBudget is smaller than one replica of each pool (parallelism.tensor x parallelism.pipeline of each): "
    "the service could never answer a request: raise gpuBudget",
    ".scaling.gpuBudget",
    unless_stored=True,
)
BUDGET_COVERS_MINIMA: Final = Rule(
    f"!has(self.scaling.gpuBudget) || {_PREFILL_MINIMUM} + {_DECODE_MINIMUM} <= self.scaling.gpuBudget",
    "scaling.gpuBudget does not cover the minima of both pools (replicas.min x parallelism.tensor x "
    "parallelism.pipeline of each): raise gpuBudget or lower replicas.min",
    ".scaling.gpuBudget",
)


def immutable(field: str) -> Rule:
    """Return a transition rule: the field keeps its value once written."""
    return Rule(f"self.{field} == oldSelf.{field}", f"{field} cannot be changed: make a new object", f".{field}")
