"""What goes wrong between the operator and the API server, as types.

`str(error)` names the request and the code, and is fit for a log; `error.message` quotes the server, may hold a user's
values, and is for that user's job alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class KubeError(Exception):
    """A request that didn't do what it should."""

    def __init__(
        self,
        request: str,
        *,
        code: int = 0,
        reason: str = "",
        message: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.request, self.code, self.reason, self.message = request, code, reason, message
        self.details: Mapping[str, Any] = details or {}
        super().__init__(f"{request}: {code or 'no answer'} {reason}".strip())

    @property
    def namespace_is_going(self) -> bool:
        """Whether the namespace is gone, or being deleted."""
        causes = self.details.get("causes") or ()
        return any(cause.get("reason") == "NamespaceTerminating" for cause in causes if isinstance(cause, Mapping)) or (
            self.code == 404 and self.details.get("kind") == "namespaces"
        )


class NetworkError(KubeError):
    """No answer came. Whether the request was carried out isn't known."""


class ServerError(KubeError):
    """5xx: the server could not do it."""

    @property
    def is_webhook(self) -> bool:
        """Whether the server is well, and a webhook that it has to ask first isn't."""
        return "failed calling webhook" in self.message


class NotLeading(KubeError):
    """Another operator may act by now: nothing was sent."""


class TooManyRequests(KubeError):
    """429: the server did nothing, and asks for a pause."""

    retry_after_s: float = 1.0


class Unauthorized(KubeError):
    """401."""


class Forbidden(KubeError):
    """403: a quota, a policy, or missing rights."""

    @property
    def is_quota(self) -> bool:
        """Whether a ResourceQuota is used up."""
        return "exceeded quota" in self.message


class NotFound(KubeError):
    """404."""


class AlreadyExists(KubeError):
    """409 of a creation: an object has this name."""


class Conflict(KubeError):
    """409 of a guarded write: the object isn't any more what it was based on."""


class Expired(KubeError):
    """410: a resourceVersion or a page of a list is too old."""


class Invalid(KubeError):
    """400, 413 or 422: the object itself is wrong."""


_BY_CODE: dict[int, type[KubeError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    413: Invalid,
    422: Invalid,
    429: TooManyRequests,
}


def error_of(request: str, code: int, body: bytes, retry_after: str | None = None) -> KubeError:
    """Return the error that an answer with ``code`` stands for.

    Args:
        request: verb and resource, such as ``create pods``.
        body: a `Status` as JSON, or whatever a proxy said.
        retry_after: the header, in seconds.
    """
    try:
        status = json.loads(body)
    except ValueError:
        status = {}
    if not isinstance(status, dict):
        status = {}
    reason, details = str(status.get("reason") or ""), status.get("details")
    kind = _BY_CODE.get(code, ServerError if code >= 500 else KubeError)
    if reason == "AlreadyExists":
        kind = AlreadyExists
    elif code == 500 and isinstance(details, dict) and details.get("retryAfterSeconds"):
        kind = TooManyRequests
    error = kind(
        request,
        code=code,
        reason=reason,
        message=str(status.get("message") or ""),
        details=details if isinstance(details, dict) else None,
    )
    if isinstance(error, TooManyRequests):
        error.retry_after_s = _seconds(retry_after or error.details.get("retryAfterSeconds"))
    return error


def _seconds(value: Any) -> float:
    try:
        return min(60.0, max(0.1, float(value)))
    except (TypeError, ValueError):
        return 1.0
