"""Whether KV transfer works, as the routers saw it on real requests. I/O: one small page from each router.

Each router keeps, for each prefill pod, how its last hand-over went. Nothing is remembered here: an operator that has
just started knows as much as one that has run for weeks.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final, Protocol

import aiohttp

from phasewise_operator.reconcile.state import KvEvidence
from phasewise_runtime import contract

SECONDS: Final = 3.0
_SAMPLE: Final = re.compile(rf'^{contract.METRIC_KV_HANDOVER}{{pod="([^"]+)"}} ([\d.]+)$', re.MULTILINE)


class EvidenceReader(Protocol):
    async def read(self, addresses: Sequence[str]) -> KvEvidence:
        """What the routers at these pod addresses saw last."""
        ...


class RouterPages:
    """Reads the pages over HTTP; a router that does not answer says nothing, which is not a failure of KV transfer."""

    async def read(self, addresses: Sequence[str]) -> KvEvidence:
        if not addresses:
            return KvEvidence()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS)) as session:
            pages = await asyncio.gather(*(_page(session, address) for address in addresses))
        return parse_pages(pages)


def parse_pages(pages: Sequence[str]) -> KvEvidence:
    """Pods by how their last hand-over went; where routers disagree, a failure counts."""
    found = [(pod, float(value)) for page in pages for pod, value in _SAMPLE.findall(page)]
    failed = {pod for pod, value in found if value == 0}
    return KvEvidence(frozenset(pod for pod, _ in found) - failed, frozenset(failed))


async def _page(session: aiohttp.ClientSession, address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    try:
        async with session.get(f"http://{host}:{contract.ROUTER_ADMIN_PORT}{contract.PATH_METRICS}") as answer:
            return await answer.text() if answer.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError):
        return ""
