"""What goes wrong between the operator and the API server."""

from __future__ import annotations

_NOT_TYPED = "failed to create typed patch object"
_NAMESPACE_ENDS = "because it is being terminated"


class KubeError(Exception):
    """The API server refused or could not be reached; `status` is the HTTP status, 0 where there was no answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status or 'no answer'} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def invalid(self) -> bool:
        """The object itself was refused: trying the same again is of no use.

        A field that server-side apply does not know, or of the wrong type, or an entry that is there twice is answered
        with 500 (https://github.com/kubernetes/kubernetes/issues/139253).
        """
        return self.status in (400, 403, 422) or (self.status == 500 and _NOT_TYPED in self.message)

    @property
    def namespace_ends(self) -> bool:
        """Nothing can be created in a namespace that is being deleted."""
        return self.status == 403 and _NAMESPACE_ENDS in self.message

    @property
    def gone_or_conflict(self) -> bool:
        """The object was deleted, or deleted and made again: a write for the one that was read does not apply."""
        return self.status in (404, 409)


class NotLeadingError(Exception):
    """A write was asked for by an operator that does not lead (any more)."""


class ExpiredError(KubeError):
    """410: the version from which a list or a watch was to go on is forgotten. List again."""


class SilentError(KubeError):
    """A watch said nothing for so long that its connection may be dead. It can go on where it was."""
