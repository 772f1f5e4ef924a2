// CopilotKit's runtime with an agent for each backend: what a web page of CopilotKit talks to.
//
// Usage: node runtime.mjs DRAGOMAN ROUTE…
import { createServer } from "node:http";
import process from "node:process";

import { HttpAgent } from "@ag-ui/client";
import {
  CopilotRuntime,
  createCopilotRuntimeHandler,
  InMemoryAgentRunner,
} from "@copilotkit/runtime/v2";
import { createCopilotNodeHandler } from "@copilotkit/runtime/v2/node";

const [, , base, ...routes] = process.argv;
const agents = {};
for (const route of routes) {
  const url = `${base}/as/agui/to/${route}`;
  agents[route] = new HttpAgent({ url });
  agents[`${route}-stops`] = new HttpAgent({ url: `${url}?on_leave=stop` });
}
const runtime = new CopilotRuntime({ agents, runner: new InMemoryAgentRunner() });
const handler = createCopilotRuntimeHandler({ runtime, basePath: "/api/copilotkit" });
const server = createServer(createCopilotNodeHandler(handler));
// Node closes a connection that rests for 5 s, while a page on a busy machine may just ask by it.
server.keepAliveTimeout = 600_000;
server.listen(0, "127.0.0.1", () =>
  console.log(`listening on http://127.0.0.1:${server.address().port}`),
);
