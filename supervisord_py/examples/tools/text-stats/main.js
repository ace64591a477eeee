// text-stats: a tool in another language than Python, with nothing but what Node.js brings along.
//
//     node main.js --port 8000
//     curl --json '{"text": "The sea was calm."}' http://127.0.0.1:8000/run
//
// tool.json names it with "command": ["node", "main.js", "--port", "{port}"]. From there on it is a tool like any other:
// GET /healthz and /schema, POST /run and /stream, exit code 0 on SIGTERM.

"use strict";

const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");
const { parseArgs } = require("node:util");

const TOOL = JSON.parse(fs.readFileSync(path.join(__dirname, "tool.json"), "utf8"));
const MAX_BODY = 16 * 1024 * 1024;

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

class Refusal extends Error {
  constructor(status, body) {
    super(body.detail);
    this.status = status;
    this.body = body;
  }
}

// What is wrong with one value, or null. The daemon has checked the input before it gets here; whoever talks to the
// tool directly is told the same. Only the words of JSON Schema that tool.json uses are known.
function misfit(rule, given) {
  switch (rule.type) {
    case "string":
      if (typeof given !== "string") return "must be a string";
      return given.length > rule.maxLength ? `may have ${rule.maxLength} characters` : null;
    case "integer":
      if (!Number.isInteger(given)) return "must be an integer";
      break;
    default:
      if (typeof given !== "number") return "must be a number";
  }
  return given < rule.minimum || given > rule.maximum ? `must be from ${rule.minimum} to ${rule.maximum}` : null;
}

function problemsOf(value) {
  const { properties, required } = TOOL.input;
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return [{ pointer: "", message: "must be an object" }];
  }
  const found = required
    .filter((name) => !Object.hasOwn(value, name))
    .map((name) => ({ pointer: `/${name}`, message: "is required" }));
  for (const [name, given] of Object.entries(value)) {
    const message = Object.hasOwn(properties, name) ? misfit(properties[name], given) : "is not known";
    const pointer = `/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`;
    if (message !== null) found.push({ pointer, message });
  }
  return found;
}

function withDefaults(value) {
  const defaults = {};
  for (const [name, rule] of Object.entries(TOOL.input.properties)) {
    if (Object.hasOwn(rule, "default")) defaults[name] = rule.default;
  }
  return { ...defaults, ...value };
}

async function readInput(request) {
  const chunks = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > MAX_BODY) throw new Refusal(413, { detail: `the input may have ${MAX_BODY} bytes` });
    chunks.push(chunk);
  }
  let value;
  try {
    value = JSON.parse(Buffer.concat(chunks).toString("utf8"));
  } catch (error) {
    throw new Refusal(400, { detail: `the body is no JSON: ${error.message}` });
  }
  const errors = problemsOf(value);
  if (errors.length > 0) throw new Refusal(422, { detail: "the input does not fit", errors });
  return withDefaults(value);
}

// --- the server -----------------------------------------------------------------------------------------------------

function reply(response, status, body) {
  const content = Buffer.from(`${JSON.stringify(body)}\n`);
  const headers = { "Content-Type": "application/json", "Content-Length": content.length };
  response.writeHead(status, status === 413 ? { ...headers, Connection: "close" } : headers);
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
      if (error instanceof Refusal) return reply(response, error.status, error.body);
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
