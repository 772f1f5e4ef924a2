// eve/client and useEveAgent 0.30.8 (token generation), used as an app uses them.
import { Client } from "eve/client";
import { useEveAgent } from "eve/react";
import React from "react";
import TestRenderer from "react-test-renderer";

import { drive } from "../driver.mjs";

await drive({
  family: "T",
  cumulative: true,
  client(options) {
    const client = new Client(options);
    return {
      health: () => client.health(),
      async begin(message) {
        const session = client.session();
        const response = await session.send(message);
        return { session, response };
      },
      resume: (state) => client.session(state),
    };
  },
  say: (session, message) => session.send(message),
  parts: (message) => ({ message }),
  answer: (session, inputResponses) => session.send({ inputResponses }),
  answerAndSay: (session, inputResponses, message) => session.send({ inputResponses, message }),
  react: {
    React,
    TestRenderer,
    useEveAgent,
    say: (agent, message) => agent.send({ message }),
    respond: (agent, inputResponses) => agent.send({ inputResponses }),
    respondAndSay: (agent, inputResponses, message) => agent.send({ inputResponses, message }),
  },
});
