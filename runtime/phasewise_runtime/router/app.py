"""The HTTP surface for clients: reads requests, answers in the shapes of the OpenAI API.

`handler` serves the completions.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from phasewise_runtime.contract import HEADER_REQUEST_ID
from phasewise_runtime.router.auth import ApiKeys
from phasewise_runtime.router.context import RouterContext
from phasewise_runtime.router.errors import ApiError
from phasewise_runtime.router.handler import CompletionHandler
from phasewise_runtime.router.headers import request_id_of
from phasewise_runtime.router.protocol import Endpoint, check_model

Handler = Callable[[web.Request, str], Awaitable[web.StreamResponse]]
"""Takes a request and its id; may raise ApiError."""

SERVED = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET /v1/models",
    "GET /health",
)
_METHODS = {Endpoint.CHAT.value: "POST", Endpoint.COMPLETIONS.value: "POST", "/v1/models": "GET", "/health": "GET"}


def build_app(
    context: RouterContext, keys: ApiKeys, completions: CompletionHandler, not_ready: Callable[[], str | None]
) -> web.Application:
    """`not_ready` returns why the router is not ready, or None."""

    async def health(_: web.Request) -> web.Response:
        """For load balancers: as the readiness probe, and without a key."""
        reason = not_ready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    app = web.Application(client_max_size=context.settings.max_body_bytes)
    for endpoint in Endpoint:
        app.router.add_post(endpoint.value, _guard(keys, _completion(completions, endpoint)))
    models = _guard(keys, _models(context))
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/v1/models/", models)
    app.router.add_get("/v1/models/{model:.+}", models)
    app.router.add_route("*", "/{path:.*}", _guard(keys, _unknown))
    return app


def error_response(error: ApiError, request_id: str) -> web.Response:
    headers = {HEADER_REQUEST_ID: request_id}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if not error.may_retry:
        headers["x-should-retry"] = "false"
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(status=error.status, body=error.json(), content_type="application/json", headers=headers)


def _guard(keys: ApiKeys, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Give the request its id, check its key, and put errors in the API's shape."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        request_id = request_id_of(request.headers.get(HEADER_REQUEST_ID))
        try:
            keys.check(request.headers.get("Authorization"))
            return await handler(request, request_id)
        except ApiError as e:
            return error_response(e, request_id)
        except web.HTTPException as e:
            return error_response(ApiError(e.status, e.text or e.reason), request_id)

    return guarded


def _completion(completions: CompletionHandler, endpoint: Endpoint) -> Handler:
    async def handle(request: web.Request, request_id: str) -> web.StreamResponse:
        return await completions.serve(request, request_id, endpoint)

    return handle


def _models(context: RouterContext) -> Handler:
    created = int(time.time())

    async def handle(request: web.Request, request_id: str) -> web.StreamResponse:
        asked, names = request.match_info.get("model"), context.models()
        check_model(asked, names)
        cards = [{"id": name, "object": "model", "created": created, "owned_by": "phasewise"} for name in names]
        body = {"object": "list", "data": cards} if asked is None else cards[names.index(asked)]
        return web.json_response(body, headers={HEADER_REQUEST_ID: request_id})

    return handle


async def _unknown(request: web.Request, request_id: str) -> web.StreamResponse:
    method = _METHODS.get(request.path)
    served = ", ".join(SERVED)
    if method is None:
        raise ApiError(
            404, f"There is no {request.method} {request.path} here. Served are: {served}.", code="not_found"
        )
    error = ApiError(405, f"{request.path} takes {method}, not {request.method}.", code="method_not_allowed")
    response = error_response(error, request_id)
    response.headers["Allow"] = method
    return response
