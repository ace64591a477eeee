// A tool for Node.js, without packages.
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

// The same in steps, for `pxctl run --stream`: one JSON value a line.
function* stream({ text, times = 2 }) {
  for (let step = 1; step <= times; step += 1) yield { step, ...run({ text, times: step }) };
}

function sendItems(response, items) {
  response.writeHead(200, { 'Content-Type': 'application/x-ndjson' });
  for (const item of items) response.write(`${JSON.stringify(item)}\n`);
  response.end();
}

function answer(response, status, value) {
  response.writeHead(status, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify(value));
}

function receive(request, response, work) {
  const chunks = [];
  let size = 0;
  request.on('data', (chunk) => {
    size += chunk.length;
    if (size <= MAX_BODY) chunks.push(chunk);
  });
  request.on('end', () => {
    if (size > MAX_BODY) return answer(response, 413, { detail: 'body too large' });
    try {
      work(JSON.parse(Buffer.concat(chunks)));
    } catch (error) {
      answer(response, 422, { detail: String(error) });
    }
  });
}

const server = http.createServer((request, response) => {
  if (request.method === 'GET' && request.url === '/healthz') return answer(response, 200, { ok: true });
  if (request.method === 'GET' && request.url === '/schema') return answer(response, 200, TOOL);
  if (request.method === 'POST' && request.url === '/run') {
    return receive(request, response, (input) => answer(response, 200, run(input)));
  }
  if (request.method === 'POST' && request.url === '/stream') {
    return receive(request, response, (input) => sendItems(response, stream(input)));
  }
  answer(response, 404, { detail: 'not found' });
});

const port = Number(process.argv[process.argv.indexOf('--port') + 1]);
process.on('SIGTERM', () => process.exit(0));
server.listen(port, '127.0.0.1');
