"""The Phasewise operator: turns InferenceService objects into prefill pools, decode pools and routers."""

__version__ = "0.1.0"
