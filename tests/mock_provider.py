"""A model provider for real agents in tests: OpenAI's chat completions on loopback, streamed. It
does as it is told.

What it does with a request is chosen by the model's name:

    ok             a final answer                       echo           the last user message as the answer
    tool           a call of the shell tool, then an answer
    401 404 429 500  that error                         quota          429 insufficient_quota
    hang           the request is taken and never answered
    drop           the connection is cut                garbage        a stream that is no JSON
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

from aiohttp import web

INPUT_TOKENS, OUTPUT_TOKENS = 1000, 50
ANSWER = "Hello from the mock provider."
COMMAND = "echo from-the-tool"
ERRORS = {
    "401": (401, "invalid_api_key", "Incorrect API key provided: mock****."),
    "404": (
        404,
        "model_not_found",
        "The model `404` does not exist or you do not have access to it.",
    ),
    "429": (
        429,
        "rate_limit_exceeded",
        "Rate limit reached for 429 on requests per min (RPM): Limit 3.",
    ),
    "quota": (
        429,
        "insufficient_quota",
        "You exceeded your current quota, please check your plan.",
    ),
    "500": (500, "server_error", "The server had an error while processing your request."),
}


class MockProvider:
    """Listens while it is entered."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []  # bodies of the completions that were asked for
        self.keys: list[str] = []  # their bearer tokens
        self.command = COMMAND  # what the tool call runs
        self._over = asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/api/tags", self._tags)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        self._port = 0

    @property
    def url(self) -> str:
        """Base address, as a preset has it."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._runner.cleanup()

    async def _tags(self, _: web.Request) -> web.Response:
        return web.json_response({"models": [{"name": "ok:latest"}, {"name": "tool:7b"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        model = str(body.get("model"))
        if model in ERRORS:
            status, code, message = ERRORS[model]
            error = {"message": message, "type": code, "code": code, "param": None}
            return web.json_response({"error": error}, status=status)
        match model:
            case "hang":
                await self._over.wait()
                return web.Response()
            case "drop":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case "garbage":
                return await _stream(request, ["this is {no JSON"])
        return await _stream(request, [json.dumps(each) for each in self._chunks(model, body)])

    def _chunks(self, model: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        messages = body.get("messages") or [{}]
        if model == "tool" and messages[-1].get("role") != "tool":
            call = {"name": "bash", "arguments": json.dumps({"command": self.command})}
            calls = [
                {
                    "index": 0,
                    "id": f"call{len(self.requests)}",
                    "type": "function",
                    "function": call,
                }
            ]
            return [
                _chunk({"role": "assistant", "tool_calls": calls}),
                _chunk({}, "tool_calls"),
                _used(),
            ]
        text = _text(messages[-1].get("content")) if model == "echo" else ANSWER
        first, rest = text[: len(text) // 2], text[len(text) // 2 :]
        begun = _chunk({"role": "assistant", "content": first})
        return [begun, _chunk({"content": rest}), _chunk({}, "stop"), _used()]


def _chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {
        "id": "mock",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "mock",
        "choices": [choice],
    }


def _used() -> dict[str, Any]:
    total = INPUT_TOKENS + OUTPUT_TOKENS
    usage = {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": total,
    }
    return {**_chunk({}), "choices": [], "usage": usage}


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content)


async def _stream(request: web.Request, events: list[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in [*events, "[DONE]"]:
        await response.write(f"data: {event}\n\n".encode())
    return response
