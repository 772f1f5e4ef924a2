// The React hook of a client, rendered as an app would: a prompt, an approval, a follow-up.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import { checkLog, ofType, optionLike, POSITIVE, received, theAction } from "./log.mjs";

const RENDER_LIMIT_MS = 120_000; // what is not there by then never comes

const textOf = (message) =>
  message.parts
    .filter((part) => part.type === "text")
    .map((part) => part.text)
    .join("");

/** Renders the hook of `app.react`; `latest()` is what the component last saw. */
function mount({ React, TestRenderer, useEveAgent }, options) {
  let agent;
  const App = () => {
    agent = useEveAgent(options);
    return null;
  };
  let root;
  TestRenderer.act(() => {
    root = TestRenderer.create(React.createElement(App));
  });
  return {
    latest: () => agent,
    async until(what, holds) {
      const deadline = Date.now() + RENDER_LIMIT_MS;
      while (!holds(agent)) {
        assert.ok(Date.now() < deadline, `never happened: ${what}; status ${agent.status}`);
        await TestRenderer.act(() => sleep(20));
      }
    },
    act: (action) => TestRenderer.act(action),
    unmount: () => TestRenderer.act(() => root.unmount()),
  };
}

export async function hook(app) {
  globalThis.IS_REACT_ACT_ENVIRONMENT = true;
  const { say, respond } = app.react;
  const view = mount(app.react, { host: app.host, headers: app.headers });
  const settled = (turns) => (agent) =>
    agent.status === "ready" &&
    agent.events.at(-1)?.type === "session.waiting" &&
    received(agent.events).length === turns;
  // A server that holds the turn open during a request leaves the status at "streaming".
  const paused = (agent) => agent.events.at(-1)?.type === "turn.waiting" || settled(2)(agent);
  const messages = (role) => view.latest().data.messages.filter((m) => m.role === role);
  const answers = (from) =>
    ofType(view.latest().events.slice(from), "message.completed")
      .map((event) => event.data.message)
      .join("");
  const toolParts = () =>
    messages("assistant").flatMap((m) => m.parts.filter((part) => part.type === "dynamic-tool"));

  try {
    const first = app.script("text");
    await view.act(() => say(view.latest(), first));
    await view.until("the first answer", settled(1));
    assert.deepEqual(messages("user").map(textOf), [first]);
    assert.equal(messages("assistant").length, 1);
    assert.equal(textOf(messages("assistant")[0]), answers(0));

    const second = app.script("approve");
    await view.act(() => say(view.latest(), second));
    const requests = () =>
      ofType(view.latest().events, "input.requested").flatMap((e) => e.data.requests);
    await view.until("the approval", (agent) => requests().length === 1 && paused(agent));
    const [request] = requests();
    const { callId } = request.action;
    assert.deepEqual(
      toolParts().map((part) => [part.toolCallId, part.state]),
      [[callId, "approval-requested"]],
    );
    assert.equal(toolParts()[0].toolMetadata.eve.inputRequest.requestId, request.requestId);

    const response = { requestId: request.requestId, optionId: optionLike(request, POSITIVE) };
    await view.act(() => respond(view.latest(), [response]));
    await view.until(
      "the result of the approved call",
      (agent) => ofType(agent.events, "action.result").length === 1 && settled(2)(agent),
    );
    assert.deepEqual(
      toolParts().map((part) => [part.toolCallId, part.state]),
      [[callId, "output-available"]],
    );
    assert.deepEqual(
      theAction(view.latest().events, callId).results.map((r) => r.status),
      ["completed"],
    );

    const before = view.latest().events.length;
    await view.act(() => say(view.latest(), first));
    await view.until("the follow-up", settled(3));
    assert.deepEqual(messages("user").map(textOf), [first, second, first]);
    assert.equal(
      textOf(messages("assistant").at(-1)),
      answers(before),
      "the follow-up is answered",
    );
    assert.equal(view.latest().error, undefined);
    checkLog(view.latest().events, app);
  } finally {
    view.unmount();
  }
}

/** The backend refuses the first answer: the call shows that it waits again, and takes another. */
export async function hookAgain(app) {
  globalThis.IS_REACT_ACT_ENVIRONMENT = true;
  const { say, respond } = app.react;
  const view = mount(app.react, { host: app.host, headers: app.headers });
  const parts = () =>
    view
      .latest()
      .data.messages.flatMap((m) => m.parts.filter((part) => part.type === "dynamic-tool"));
  const states = () => parts().map((part) => part.state);
  const rests = (agent) => agent.events.at(-1)?.type === "session.waiting";
  const asked = (times) => (agent) =>
    ofType(agent.events, "input.requested").length === times && rests(agent);
  try {
    await view.act(() => say(view.latest(), app.script("approve", "refused")));
    for (const times of [1, 2]) {
      await view.until(`the request, ${times} x`, asked(times));
      assert.deepEqual(states(), ["approval-requested"]);
      const request = parts()[0].toolMetadata.eve.inputRequest;
      const response = {
        requestId: request.requestId,
        optionId: optionLike(request, POSITIVE),
      };
      await view.act(() => respond(view.latest(), [response]));
    }
    await view.until(
      "the result",
      (agent) => ofType(agent.events, "action.result").length === 1 && rests(agent),
    );
    assert.deepEqual(states(), ["output-available"]);
    assert.equal(view.latest().error, undefined);
    checkLog(view.latest().events, app);
  } finally {
    view.unmount();
  }
}

/** Two approvals are answered by one call, as an app with a button for all of them does. */
export async function hookBoth(app) {
  globalThis.IS_REACT_ACT_ENVIRONMENT = true;
  const { say, respond } = app.react;
  const view = mount(app.react, { host: app.host, headers: app.headers });
  const requests = () =>
    ofType(view.latest().events, "input.requested").flatMap((e) => e.data.requests);
  const parts = () =>
    view
      .latest()
      .data.messages.flatMap((m) => m.parts.filter((part) => part.type === "dynamic-tool"))
      .map((part) => part.state);
  const rests = (agent) => ["session.waiting", "turn.waiting"].includes(agent.events.at(-1)?.type);
  try {
    await view.act(() => say(view.latest(), app.script("approve2")));
    await view.until("two approvals", (agent) => requests().length === 2 && rests(agent));
    assert.deepEqual(parts(), ["approval-requested", "approval-requested"]);
    const responses = requests().map((request) => ({
      requestId: request.requestId,
      optionId: optionLike(request, POSITIVE),
    }));
    await view.act(() => respond(view.latest(), responses));
    await view.until(
      "the results of both calls",
      (agent) => ofType(agent.events, "action.result").length === 2 && rests(agent),
    );
    assert.deepEqual(parts(), ["output-available", "output-available"]);
    const said = ofType(view.latest().events, "message.completed").at(-1).data.message;
    assert.ok(view.latest().data.messages.some((m) => textOf(m).includes(said)), said);
    assert.equal(view.latest().error, undefined);
    checkLog(view.latest().events, app);
  } finally {
    view.unmount();
  }
}

/** An approval is answered and something is said by one call: both show, each once, in order. */
export async function hookTogether(app) {
  globalThis.IS_REACT_ACT_ENVIRONMENT = true;
  const { say, respondAndSay } = app.react;
  const view = mount(app.react, { host: app.host, headers: app.headers });
  const requests = () =>
    ofType(view.latest().events, "input.requested").flatMap((e) => e.data.requests);
  const messages = (role) => view.latest().data.messages.filter((m) => m.role === role);
  const rests = (agent) =>
    agent.status === "ready" && agent.events.at(-1)?.type === "session.waiting";
  try {
    const [first, second] = [app.script("approve"), app.script("text")];
    await view.act(() => say(view.latest(), first));
    await view.until("the approval", (agent) => requests().length === 1 && rests(agent));
    const [request] = requests();
    const response = { requestId: request.requestId, optionId: optionLike(request, POSITIVE) };
    const before = view.latest().events.length;
    await view.act(() => respondAndSay(view.latest(), [response], second));
    await view.until(
      "the answer",
      (agent) => ofType(agent.events, "action.result").length === 1 && rests(agent),
    );
    assert.deepEqual(received(view.latest().events), [first, second]);
    assert.deepEqual(messages("user").map(textOf), [first, second]);
    const said = ofType(view.latest().events.slice(before), "message.completed");
    assert.equal(
      textOf(messages("assistant").at(-1)),
      said.map((event) => event.data.message).join(""),
      "the results and the answer are in the last message",
    );
    assert.deepEqual(
      messages("assistant").flatMap((m) =>
        m.parts.filter((part) => part.type === "dynamic-tool").map((part) => part.state),
      ),
      ["output-available"],
    );
    assert.equal(view.latest().error, undefined);
    checkLog(view.latest().events, app);
  } finally {
    view.unmount();
  }
}
