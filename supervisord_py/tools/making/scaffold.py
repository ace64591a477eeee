"""`pxctl tools new NAME`: a working tool to start from, with its test request. Never overwrites anything."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import BadRequestError, ConflictError
from supervisord_py.tools.declaring.declaration import name_trouble
from supervisord_py.tools.making.add import placed

if TYPE_CHECKING:
    from pathlib import Path

STDLIB_MAIN = '''"""A tool in nothing but the standard library.

    python main.py --port 8000
"""

import argparse
import json
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOOL = json.loads(Path(__file__).with_name("tool.json").read_text(encoding="utf-8"))


def run(text, times=2):
    """The work itself: input members come as arguments, the answer is any JSON value."""
    result = text * times
    return {"result": result, "length": len(result)}


class Tool(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/healthz":
            self.answer(200, {"ok": True})
        elif self.path == "/schema":
            self.answer(200, TOOL)
        else:
            self.answer(404, {"detail": "not found"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/run":
            self.answer(404, {"detail": "not found"})
            return
        try:
            value = run(**json.loads(body))
        except (TypeError, ValueError) as error:
            self.answer(422, {"detail": str(error)})
            return
        self.answer(200, value)

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = ThreadingHTTPServer(("127.0.0.1", port), Tool)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
'''

FASTAPI_MAIN = '''"""A tool with FastAPI. `pxctl tools sync` installs what requirements.txt names.

    python main.py --port 8000
"""

import argparse
import json
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

TOOL = json.loads(Path(__file__).with_name("tool.json").read_text(encoding="utf-8"))
app = FastAPI(title=TOOL["name"])


class Input(BaseModel):
    text: str
    times: int = 2


@app.get("/healthz")
def healthz():
    return {"ok": True}


@app.get("/schema")
def schema():
    return TOOL


@app.post("/run")
def run(request: Input):
    result = request.text * request.times
    return {"result": result, "length": len(result)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port)
'''

NODE_MAIN = """// A tool for Node.js, without packages.
//
//     node main.js --port 8000

'use strict';

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');

const TOOL = JSON.parse(fs.readFileSync(path.join(__dirname, 'tool.json'), 'utf8'));
const MAX_BODY = 1024 * 1024;

// The work itself: the input as an object, the answer as any JSON value.
function run({ text, times = 2 }) {
  const result = text.repeat(times);
  return { result, length: result.length };
}

function answer(response, status, value) {
  response.writeHead(status, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify(value));
}

function receive(request, response) {
  const chunks = [];
  let size = 0;
  request.on('data', (chunk) => {
    size += chunk.length;
    if (size <= MAX_BODY) chunks.push(chunk);
  });
  request.on('end', () => {
    if (size > MAX_BODY) return answer(response, 413, { detail: 'body too large' });
    try {
      answer(response, 200, run(JSON.parse(Buffer.concat(chunks))));
    } catch (error) {
      answer(response, 422, { detail: String(error) });
    }
  });
}

const server = http.createServer((request, response) => {
  if (request.method === 'GET' && request.url === '/healthz') return answer(response, 200, { ok: true });
  if (request.method === 'GET' && request.url === '/schema') return answer(response, 200, TOOL);
  if (request.method === 'POST' && request.url === '/run') return receive(request, response);
  answer(response, 404, { detail: 'not found' });
});

const port = Number(process.argv[process.argv.indexOf('--port') + 1]);
process.on('SIGTERM', () => process.exit(0));
server.listen(port, '127.0.0.1');
"""

REQUEST = {"text": "hello", "times": 3}


class Template(StrEnum):
    """What the new tool is written with."""

    STDLIB = "stdlib"
    FASTAPI = "fastapi"
    NODE = "node"


def new_tool(tools_dir: Path, name: str, template: Template = Template.STDLIB) -> Path:
    """Write a new tool and return its folder; it appears whole or not at all.

    Raises:
        BadRequestError: The name cannot be a tool's.
        ConflictError: There is something of that name already.
    """
    trouble = name_trouble(name)
    if trouble:
        raise BadRequestError(f"{name[:80]!r} {trouble}", hint="pxctl tools new my-tool")
    folder = tools_dir / name
    if os.path.lexists(folder):
        raise ConflictError(f"{folder} is there already", hint="choose another name", unit=f"tool:{name}")
    with placed(folder) as draft:
        os.mkdir(draft, 0o700)
        for file, content in files_of(name, template).items():
            (draft / file).write_text(content, encoding="utf-8")
    return folder


def files_of(name: str, template: Template) -> dict[str, str]:
    """Return the files of a new tool by name."""
    files = {
        "tool.json": json.dumps(_manifest(name, template), indent=2) + "\n",
        "test-request.json": json.dumps(REQUEST) + "\n",
        "README.md": f"# {name}\n\nRepeats a text. Try it: `pxctl run {name} text=hello times=3`\n",
    }
    match template:
        case Template.STDLIB:
            return files | {"main.py": STDLIB_MAIN}
        case Template.FASTAPI:
            return files | {"main.py": FASTAPI_MAIN, "requirements.txt": "fastapi>=0.115\nuvicorn>=0.32\n"}
        case Template.NODE:
            return files | {"main.js": NODE_MAIN}


def _manifest(name: str, template: Template) -> dict[str, Any]:
    command = {"command": ["node", "main.js", "--port", "{port}"]} if template is Template.NODE else {}
    return {
        "name": name,
        "version": "0.1.0",
        "description": "Repeats a text",
        **command,
        "input": {
            "type": "object",
            "properties": {
                "text": {"description": "What to repeat", "type": "string", "maxLength": 10000},
                "times": {"description": "How often", "type": "integer", "minimum": 1, "maximum": 100, "default": 2},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        "output": {
            "type": "object",
            "properties": {"result": {"type": "string"}, "length": {"type": "integer"}},
            "required": ["result", "length"],
        },
    }
