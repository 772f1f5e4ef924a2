// eve/client and useEveAgent 0.80.1 (session-id generation), used as an app uses them.
import { Client } from "eve/client";
import { useEveAgent } from "eve/react";
import React from "react";
import TestRenderer from "react-test-renderer";

import { drive } from "../driver.mjs";

await drive({
  family: "S",
  cumulative: false,
  client(options) {
    const client = new Client(options);
    return {
      health: () => client.health(),
      begin: (message) => client.sessions.create({ message }),
      prewarm: () => client.sessions.create(),
      resume: ({ sessionId, streamIndex }) => client.sessions.attach(sessionId, { streamIndex }),
    };
  },
  say: (session, message) => session.send(message),
  parts: (message) => message,
  answer: (session, inputResponses) => session.respond(inputResponses),
  react: {
    React,
    TestRenderer,
    useEveAgent,
    say: (agent, message) => agent.send(message),
    respond: (agent, inputResponses) => agent.respond(inputResponses),
  },
});
