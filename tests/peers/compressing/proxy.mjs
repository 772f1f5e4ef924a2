// A proxy that compresses answers, as the one in which Next.js has its pages behind `rewrites`.
//
// Usage: proxy.mjs URL; prints `listening on http://…`.
import http from "node:http";
import process from "node:process";

import compression from "compression";
import httpProxy from "http-proxy";

const compress = compression();
const proxy = httpProxy.createProxyServer({ target: process.argv[2] });
// A client that leaves, or a server that is restarted, is not the end of the proxy.
proxy.on("error", (_, __, response) => response.destroy());

const server = http.createServer((request, response) =>
  compress(request, response, () => proxy.web(request, response)),
);
server.listen(0, "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
process.on("SIGTERM", () => process.exit(0));
