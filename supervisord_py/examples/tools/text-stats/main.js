// text-stats: a tool in another language than Python, with nothing but what Node.js brings along.
//
//     node main.js --port 8000
//     curl --json '{"text": "The sea was calm."}' http://127.0.0.1:8000/run
//
// tool.json names it with "command": ["node", "main.js", "--port", "{port}"]. From there on it is a tool like any other:
// GET /healthz and /schema, POST /run and /stream, exit code 0 on SIGTERM. The daemon has checked an input by tool.json
// before it gets here.

"use strict";

const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");
const { parseArgs } = require("node:util");

const TOOL = JSON.parse(fs.readFileSync(path.join(__dirname, "tool.json"), "utf8"));

// --- the counting ---------------------------------------------------------------------------------------------------

// Intl.Segmenter knows what readers of any script call a word; a regular expression knows English at best.
const segmenter = (granularity) => new Intl.Segmenter("en", { granularity });
const CHARACTERS = segmenter("grapheme");
const WORDS = segmenter("word");
const SENTENCES = segmenter("sentence");

const paragraphsOf = (text) => text.split(/\n\s*\n/).filter((paragraph) => paragraph.trim() !== "");

const lengthOf = (iterable) => {
  let length = 0;
  for (const _ of iterable) length += 1;
  return length;
};

function wordsOf(text) {
  const words = [];
  for (const { segment, isWordLike } of WORDS.segment(text)) if (isWordLike) words.push(segment);
  return words;
}

function countsOf(text, { top, shortest_word, words_per_minute }) {
  const words = wordsOf(text);
  const lengths = words.map((word) => lengthOf(CHARACTERS.segment(word)));
  const letters = lengths.reduce((sum, length) => sum + length, 0);
  const counts = new Map();
  for (const word of words) counts.set(word.toLowerCase(), (counts.get(word.toLowerCase()) ?? 0) + 1);
  const sentences = [...SENTENCES.segment(text)].filter(({ segment }) => wordsOf(segment).length > 0);
  const frequent = [...counts]
    .filter(([word]) => lengthOf(CHARACTERS.segment(word)) >= shortest_word)
    .sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1))
    .slice(0, top)
    .map(([word, count]) => ({ word, count }));
  return {
    characters: lengthOf(CHARACTERS.segment(text)),
    words: words.length,
    unique_words: counts.size,
    sentences: sentences.length,
    paragraphs: paragraphsOf(text).length,
    average_word_length: words.length === 0 ? 0 : Number((letters / words.length).toFixed(2)),
    reading_seconds: Number(((60 * words.length) / words_per_minute).toFixed(1)),
    frequent,
  };
}

// --- the input ------------------------------------------------------------------------------------------------------

function withDefaults(value) {
  const defaults = {};
  for (const [name, rule] of Object.entries(TOOL.input.properties)) {
    if (Object.hasOwn(rule, "default")) defaults[name] = rule.default;
  }
  return { ...defaults, ...value };
}

async function readInput(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return withDefaults(JSON.parse(Buffer.concat(chunks).toString("utf8")));
}

// --- the server -----------------------------------------------------------------------------------------------------

function reply(response, status, body) {
  const content = Buffer.from(`${JSON.stringify(body)}\n`);
  response.writeHead(status, { "Content-Type": "application/json", "Content-Length": content.length });
  response.end(content);
}

// One line of JSON for each paragraph, then one for the whole text.
function stream(response, input) {
  response.writeHead(200, { "Content-Type": "application/x-ndjson" });
  const paragraphs = paragraphsOf(input.text);
  paragraphs.forEach((paragraph, index) => {
    const line = { paragraph: index + 1, of: paragraphs.length, ...countsOf(paragraph, input) };
    response.write(`${JSON.stringify(line)}\n`);
  });
  response.end(`${JSON.stringify({ done: true, ...countsOf(input.text, input) })}\n`);
}

async function answer(request, response) {
  const route = `${request.method} ${request.url.split("?")[0]}`;
  switch (route) {
    case "GET /healthz":
      return reply(response, 200, { ok: true });
    case "GET /schema":
      return reply(response, 200, TOOL);
    case "POST /run": {
      const input = await readInput(request);
      return reply(response, 200, countsOf(input.text, input));
    }
    case "POST /stream":
      return stream(response, await readInput(request));
    default:
      return reply(response, 404, { detail: `there is no ${route}` });
  }
}

function main() {
  const { values } = parseArgs({ options: { port: { type: "string" } } });
  const port = Number(values.port);
  if (!Number.isInteger(port) || port < 1 || port > 65535) {
    console.error("usage: node main.js --port N");
    process.exit(2);
  }
  const server = http.createServer((request, response) => {
    answer(request, response).catch((error) => {
      if (response.headersSent) return response.destroy(error);
      if (error instanceof SyntaxError) return reply(response, 400, { detail: `no JSON: ${error.message}` });
      console.error(error);
      return reply(response, 500, { detail: error.message });
    });
  });
  process.on("SIGTERM", () => {
    server.close(() => process.exit(0)); // lets the requests under way finish,
    setInterval(() => server.closeIdleConnections(), 50); // and no kept-alive connection hold up the end
  });
  server.listen(port, "127.0.0.1");
}

main();
