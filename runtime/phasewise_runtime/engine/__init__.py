"""The launcher in an engine pod: turns an EngineConfig into a supervised vLLM.

Flow: __main__ -> environment (container), config -> command and arguments -> preflight and checks -> supervisor ->
process (vLLM) -> drain_state -> termination_message. `telemetry` answers probes and scrapes meanwhile.

`config`, `command` and `arguments` are also imported by the operator. All of it runs inside any engine image: Python
3.10 and later, standard library and prometheus-client only.
"""
