"""The router: takes OpenAI requests, runs the prefill leg and the decode leg, relays the tokens.

Flow: app -> admission -> policy -> legs (prefill, decode) -> relay. Discovery feeds the fleet; health and the legs
report to it. What scaling needs is judged by slo, kept by waiting and loads, and shown by metrics and collectors. Pure
rooms (pods, policy, breaker, protocol, sse, assembly, frames, headers, errors, outcome, slo, waiting, loads): no I/O.
"""
