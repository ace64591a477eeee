// Echoes its input, from another language.
const http = require("http");
http.createServer((request, response) => {
  let body = "";
  request.on("data", (chunk) => { body += chunk; });
  request.on("end", () => {
    response.setHeader("Content-Type", "application/json");
    if (request.url === "/healthz") response.end(JSON.stringify({ ok: true }));
    else if (request.url === "/schema") response.end(require("fs").readFileSync("tool.json"));
    else response.end(JSON.stringify({ echo: JSON.parse(body), pid: process.pid }));
  });
}).listen(Number(process.argv[2]), "127.0.0.1");
