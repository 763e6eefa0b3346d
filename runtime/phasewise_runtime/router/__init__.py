"""The router: takes OpenAI requests, runs the prefill leg and the decode leg, relays the tokens.

Flow: app -> admission -> policy -> legs (prefill, decode) -> relay. Discovery feeds the fleet; health and the legs
report to it. Pure rooms (pods, policy, breaker, protocol, sse, assembly, headers, errors) import no I/O.
"""
