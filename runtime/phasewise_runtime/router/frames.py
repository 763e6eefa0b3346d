"""Frames for assembled answers, by KV fingerprint and endpoint, which decide their fields. Pure."""

from __future__ import annotations

from phasewise_runtime.router.assembly import frame_of
from phasewise_runtime.router.pods import Pod
from phasewise_runtime.router.protocol import Body, Request


class Frames:
    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Body | None] = {}
        """None: answers cannot be assembled there."""

    def get(self, pod: Pod, request: Request) -> Body | None:
        """The frame for an answer to `request`; None where it is passed through."""
        return self._known.get(_key(pod, request)) if request.assemble else None

    def learn(self, pod: Pod, request: Request, answer: Body) -> None:
        """Take the frame from an answer that the engine gave to a request of this kind."""
        if request.assemble and _key(pod, request) not in self._known:
            self._known[_key(pod, request)] = frame_of(answer)

    def give_up(self, pod: Pod, request: Request) -> None:
        self._known[_key(pod, request)] = None


def _key(pod: Pod, request: Request) -> tuple[str, str]:
    return pod.fingerprint, request.endpoint.label
