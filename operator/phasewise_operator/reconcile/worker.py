"""Workers: take a service's key from the queue, have it reconciled, and queue it again as the result asks. I/O.

Only a worker speaks to the queue about what becomes of a key that was taken from it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Literal

from phasewise_operator.kube_errors import KubeError, NotLeadingError
from phasewise_operator.metrics import Metrics
from phasewise_operator.queue import WorkQueue
from phasewise_operator.reconcile.reconciler import Reconciler, Result
from phasewise_operator.store import Key

log = logging.getLogger(__name__)
Outcome = Literal["ok", "incomplete", "error"]
"""As in the metric of passes. `incomplete`: a child could not be written."""


@dataclass(frozen=True)
class Worker:
    queue: WorkQueue[Key]
    reconciler: Reconciler
    metrics: Metrics

    async def run(self) -> None:
        """Until it is cancelled; raises NotLeadingError when this operator does not lead any more."""
        while True:
            await self.process_next()
            # A pass that finds nothing to write waits for nothing: a thousand in a row would hold up everything else.
            await asyncio.sleep(0)

    async def process_next(self) -> Outcome:
        """Wait for a key and reconcile it. Any error but NotLeadingError puts the key back after a pause."""
        key = await self.queue.get()
        outcome: Outcome
        try:
            with self.metrics.reconcile_seconds.time():
                result = await self.reconciler.reconcile(key)
        except NotLeadingError:
            self.queue.failed(key)
            raise
        except KubeError as error:
            log.warning("%s/%s: %s; again in %.1f s", *key, error, self.queue.failed(key))
            outcome = "error"
        except Exception:
            log.exception("%s/%s: unexpected; again in %.1f s", *key, self.queue.failed(key))
            await self._report_internal_error(key)
            outcome = "error"
        else:
            self._requeue(key, result)
            outcome = "ok" if result.complete else "incomplete"
        self.metrics.reconciles.labels(outcome).inc()
        return outcome

    async def _report_internal_error(self, key: Key) -> None:
        """A defect that strikes here, too, must not end the worker, and with it the term: other services wait."""
        try:
            await self.reconciler.report_internal_error(key)
        except NotLeadingError:
            raise
        except Exception:
            log.exception("%s/%s: the internal error could not be reported", *key)

    def _requeue(self, key: Key, result: Result) -> None:
        self.queue.done(key)
        if result.requeue_after is not None:
            self.queue.add_after(key, result.requeue_after)
