"""The router: takes OpenAI requests, sends each to a prefill and a decode pod, and streams the tokens to the client.

Flow of a request: app -> handler -> intake (body) -> protocol (parse) -> admission -> pd_request -> policy (which pods)
-> engine_client (prefill, then decode) -> stream and sse -> handler (to the client) -> latency and slo -> metrics.
`server` puts the parts together. `discovery` or `static_pods` feeds `pod_registry`, which pd_request reads and, with
`health`, reports to. `pending` and `loads` hold what scaling needs to know; `collectors` and `metrics` export it.
"""
