"""API keys from a mounted secret: each file of the folder holds one key. Read again when the folder changes."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from phasewise_runtime.router.errors import ApiError

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0


class ApiKeys:
    """Without a folder every client is served; with an empty folder none is."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._keys: list[bytes] = []
        self._seen: object = None
        self.reload()

    def reload(self) -> None:
        """Read the keys again if a file changed; keeps the last keys where the folder cannot be read."""
        if self._folder is None:
            return
        try:
            # The kubelet swaps a mounted secret in one step; files with dotted names are its versions behind the links.
            files = sorted(f for f in self._folder.iterdir() if f.is_file() and not f.name.startswith("."))
            seen = [(f.name, (s := f.stat()).st_mtime_ns, s.st_size, s.st_ino) for f in files]
            if seen == self._seen:
                return
            self._keys = [key for f in files if (key := f.read_bytes().strip())]
            self._seen = seen
        except OSError as e:
            log.warning("API keys cannot be read; the last ones stay in force", extra={"detail": str(e)})
            return
        log.info("API keys read", extra={"keys": len(self._keys)})

    def check(self, authorization: str | None) -> None:
        """ApiError 401 unless the header holds one of the keys."""
        if self._folder is None:
            return
        scheme, _, given = (authorization or "").partition(" ")
        token = given.strip().encode("utf-8", "surrogateescape")
        # All keys are compared, each in constant time, so that the time taken reveals nothing about them.
        matches = [hmac.compare_digest(token, key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            message = "A valid API key is needed: send the header 'Authorization: Bearer <key>'."
            raise ApiError(401, message, code="invalid_api_key")
