"""The launcher in an engine pod: turns an EngineConfig into a supervised vLLM.

`config` and `command` are pure and shared with the operator; `preflight`, `supervisor` and `__main__` run inside any
engine image (Python 3.10 and later, standard library and prometheus-client only).
"""
