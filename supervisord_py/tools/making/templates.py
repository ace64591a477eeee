"""The programs that `pxctl tools new` starts a tool from. Each serves /healthz, /schema, /run and ends on SIGTERM."""

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
