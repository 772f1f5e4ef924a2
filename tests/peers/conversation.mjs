// The conversation that every eve client must be able to hold, written once for all generations.
//
// A scenario gets an `app`: the client of one generation behind the few verbs that differ between
// them (`begin`, `say`, `answer`, `attach`; see the drivers). Everything else, retries, cursors,
// reducers and checks of answers, is the unmodified client's own doing.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

import { startCuttingProxy } from "./cutting-proxy.mjs";
import { hook, hookAgain, hookBoth, hookTogether } from "./hook.mjs";
import {
  actions,
  checkLog,
  NEGATIVE,
  ofType,
  optionLike,
  POSITIVE,
  received,
  theAction,
  typesOf,
} from "./log.mjs";

const HEARTBEAT_MS = 10_000; // eve page, section 7.4
const LEASE_MS = 60_000; // eve page, section 7.4
const TIMER_SLACK_MS = 1_000;
const OLDEST_AND_NEWEST_STREAM_VERSION = [21, 26]; // what clients of 0.80.1 accept, section 7.5

/** Sends a message through `speak` and gives what the app sees when the turn is over. */
async function turn(app, speak, message) {
  const result = await (await speak(message)).result();
  assert.equal(result.status, "waiting", `status after ${JSON.stringify(message)}`);
  assert.deepEqual(received(result.events), [message], "the user's message is shown once");
  return result;
}

async function firstTurn(app, client, message) {
  const { session, response } = await client.begin(message);
  const result = await turn(app, () => response, message);
  assert.equal(result.sessionId, session.state.sessionId);
  assert.equal(ofType(result.events, "session.started").length, 1, "session.started is there once");
  return { session, result };
}

/** Checks that a full read gives exactly the events that the app saw, and that they are sound. */
async function checkWhole(app, session, seen) {
  const { events } = await session.snapshot();
  checkLog(events, app);
  assert.deepEqual(events, seen, "a full read differs from what the client saw");
  return events;
}

function onlyRequest(result, kind) {
  assert.equal(result.inputRequests.length, 1, "one open request");
  const [request] = result.inputRequests;
  assert.equal(request.kind, kind);
  assert.ok(request.prompt.length > 0, "the request has a prompt");
  assert.equal(ofType(result.events, "input.requested").length, 1, "input.requested is there once");
  return request;
}

async function health(app) {
  const answer = await app.client().health();
  assert.equal(answer.ok, true);
  assert.equal(answer.status, "ready");
}

async function text(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("text"));
  assert.ok(result.message.length > 0, "there is an answer");
  assert.ok(ofType(result.events, "message.appended").length > 0, "the answer is streamed");
  assert.deepEqual(result.inputRequests, []);
  assert.equal(result.events.at(-1).type, "session.waiting");
  await checkWhole(app, session, result.events);
}

async function anyMessage(app) {
  const message = "How are the tides today? – ¿señal? 潮 🌊";
  const { session, result } = await firstTurn(app, app.client(), message);
  assert.ok(result.message.length > 0, "there is an answer");
  await checkWhole(app, session, result.events);
}

async function reasoning(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("reason"));
  const [thought] = ofType(result.events, "reasoning.completed");
  assert.ok(thought?.data.reasoning.length > 0, "there is reasoning");
  assert.ok(ofType(result.events, "reasoning.appended").length > 0, "reasoning is streamed");
  assert.ok(result.message.length > 0 && result.message !== thought.data.reasoning);
  await checkWhole(app, session, result.events);
}

async function longAnswer(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("long", "400"));
  assert.ok(result.message.length > 400, `only ${result.message.length} characters`);
  await checkWhole(app, session, result.events);
}

async function tool(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("tool"));
  const [action, ...more] = actions(result.events);
  assert.equal(more.length, 0, "one call");
  assert.equal(action.kind, "tool-call");
  assert.ok(action.toolName.length > 0, "the call names its tool");
  assert.equal(typeof action.input, "object");
  assert.deepEqual(
    action.results.map((r) => r.status),
    ["completed"],
  );
  assert.notEqual(action.results[0].result.isError, true);
  assert.ok(result.message.length > 0, "an answer follows");
  await checkWhole(app, session, result.events);
}

async function tools(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("tools"));
  const calls = actions(result.events);
  assert.equal(calls.length, 2, "two calls");
  assert.notEqual(calls[0].callId, calls[1].callId);
  for (const call of calls)
    assert.deepEqual(
      call.results.map((r) => r.status),
      ["completed"],
    );
  await checkWhole(app, session, result.events);
}

async function toolFails(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("toolfail"));
  const [action] = actions(result.events);
  assert.deepEqual(
    action.results.map((r) => r.status),
    ["failed"],
  );
  assert.equal(action.results[0].result.isError, true);
  assert.ok(action.results[0].error?.message.length > 0, "the failure has a text");
  assert.ok(result.message.length > 0, "the turn goes on");
  await checkWhole(app, session, result.events);
}

async function approval(app, pattern, answerText) {
  const { session, result } = await firstTurn(app, app.client(), app.script("approve"));
  const request = onlyRequest(result, "tool-approval");
  const { callId } = request.action;
  assert.deepEqual(theAction(result.events, callId).results, [], "the tool has not run yet");

  const response = { requestId: request.requestId, optionId: optionLike(request, pattern) };
  if (answerText !== undefined) response.text = answerText;
  const after = await (await app.answer(session, [response])).result();
  assert.equal(after.status, "waiting");
  assert.deepEqual(after.inputRequests, [], "nothing is open any more");
  assert.ok(after.message.length > 0, "an answer follows");

  const events = [...result.events, ...after.events];
  await checkWhole(app, session, events);
  const { results } = theAction(events, callId);
  assert.equal(results.length, 1, "the call has one result");
  return { session, after, outcome: results[0].status };
}

async function approvalYes(app) {
  const { session, outcome } = await approval(app, POSITIVE);
  assert.equal(outcome, "completed");
  await turn(app, (m) => app.say(session, m), app.script("text"));
}

async function approvalNo(app) {
  const { session, outcome } = await approval(app, NEGATIVE);
  assert.equal(outcome, "rejected");
  await turn(app, (m) => app.say(session, m), app.script("text"));
}

async function approvalFeedback(app) {
  const { after, outcome } = await approval(app, NEGATIVE, "Too expensive by half.");
  assert.equal(outcome, "rejected");
  assert.match(after.message, /Too expensive by half\./, "the agent read the feedback");
}

/** The backend refuses the first answer after it was accepted here: the person is asked again. */
async function approvalAgain(app) {
  const { session, result } = await firstTurn(
    app,
    app.client(),
    app.script("approve", "refused"),
  );
  const request = onlyRequest(result, "tool-approval");
  const response = ({ requestId, options }) => ({
    requestId,
    optionId: optionLike({ options }, POSITIVE),
  });
  const refused = await (await app.answer(session, [response(request)])).result();
  const again = onlyRequest(refused, "tool-approval");
  assert.equal(again.action.callId, request.action.callId);
  assert.equal(again.prompt, request.prompt);
  const after = await (await app.answer(session, [response(again)])).result();
  assert.deepEqual(after.inputRequests, [], "nothing is open any more");
  assert.ok(after.message?.length > 0, "an answer follows");
  const events = [...result.events, ...refused.events, ...after.events];
  await checkWhole(app, session, events);
  assert.deepEqual(
    theAction(events, request.action.callId).results.map((r) => r.status),
    ["completed"],
  );
}

/** Two approvals that were asked at once are answered at once, the second one first. */
async function approvalBoth(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("approve2"));
  const [yes, no, ...more] = result.inputRequests;
  assert.ok(yes && no && more.length === 0, `two open requests, not ${result.inputRequests.length}`);
  const responses = [
    { requestId: no.requestId, optionId: optionLike(no, NEGATIVE) },
    { requestId: yes.requestId, optionId: optionLike(yes, POSITIVE) },
  ];
  const after = await (await app.answer(session, responses)).result();
  assert.equal(after.status, "waiting");
  assert.deepEqual(after.inputRequests, [], "nothing is open any more");
  assert.ok(after.message?.length > 0, "an answer follows");
  const events = [...result.events, ...after.events];
  await checkWhole(app, session, events);
  const outcomes = [yes, no].map(({ action }) =>
    theAction(events, action.callId).results.map((r) => r.status),
  );
  assert.deepEqual(outcomes, [["completed"], ["rejected"]]);
  await turn(app, (m) => app.say(session, m), app.script("text"));
}

/** An answer and a message in one call are one step: its result is the answer to the message. */
async function answerAndMessage(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("approve"));
  const request = onlyRequest(result, "tool-approval");
  const responses = [
    { requestId: request.requestId, optionId: optionLike(request, POSITIVE) },
  ];
  const speak = (message) => app.answerAndSay(session, responses, message);
  const after = await turn(app, speak, app.script("tools"));
  assert.deepEqual(after.inputRequests, [], "nothing is open any more");
  const events = [...result.events, ...after.events];
  assert.deepEqual(
    theAction(events, request.action.callId).results.map((r) => r.status),
    ["completed"],
  );
  assert.deepEqual(
    actions(after.events).flatMap((action) => action.results.map((r) => r.status)),
    ["completed", "completed"],
  );
  assert.equal(ofType(after.events, "turn.started").length, 1, "one turn");
  const said = ofType(after.events, "message.completed").map((e) => e.data.message);
  assert.ok(said.length > 1, "the results are spoken of before");
  assert.equal(after.message, said.at(-1));
  await checkWhole(app, session, events);
  await turn(app, (m) => app.say(session, m), app.script("text"));
}

async function question(app, script, respond) {
  const { session, result } = await firstTurn(app, app.client(), script);
  const request = onlyRequest(result, "question");
  const after = await (await respond(session, request)).result();
  assert.equal(after.status, "waiting");
  assert.deepEqual(after.inputRequests, [], "nothing is open any more");
  await checkWhole(app, session, [...result.events, ...after.events]);
  await turn(app, (m) => app.say(session, m), app.script("text"));
  return { request, after };
}

/** Whether an answer names an option, by id or label, and not just inside of another word. */
function names(message, { id, label }) {
  const words = (text) =>
    ` ${text
      .toLowerCase()
      .match(/[\p{L}\p{N}]+/gu)
      .join(" ")} `;
  return [id, label].some((word) => words(message).includes(words(word)));
}

async function questionOption(app) {
  const { request, after } = await question(
    app,
    app.script("ask"),
    (session, { requestId, options }) => {
      assert.equal(options.length, 2, "two options");
      return app.answer(session, [{ requestId, optionId: options[1].id }]);
    },
  );
  assert.ok(names(after.message, request.options[1]), after.message);
  assert.ok(!names(after.message, request.options[0]), "the other option was not chosen");
}

async function questionFreeText(app) {
  const { request, after } = await question(app, app.script("askopen"), (session, { requestId }) =>
    app.answer(session, [{ requestId, text: "The one behind the old mill" }]),
  );
  assert.notEqual(request.allowFreeform, false, "a free answer is allowed");
  assert.equal(request.options?.length ?? 0, 0, "no options");
  assert.match(after.message, /The one behind the old mill/);
}

async function questionByMessage(app) {
  const { request, after } = await question(app, app.script("ask"), (session, { options }) =>
    app.say(session, options[0].label),
  );
  assert.ok(names(after.message, request.options[0]), after.message);
}

async function followUp(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("text"));
  const seen = [...result.events];
  for (const script of ["tool", "text", "text"]) {
    const next = await turn(app, (m) => app.say(session, m), app.script(script));
    assert.ok(next.message.length > 0, "every message is answered");
    assert.equal(ofType(next.events, "turn.started").length, 1);
    seen.push(...next.events);
  }
  await checkWhole(app, session, seen);
  const turns = ofType(seen, "turn.started").map((event) => event.data);
  assert.deepEqual(
    turns.map((t) => t.sequence),
    [0, 1, 2, 3],
  );
  assert.deepEqual(
    turns.map((t) => t.turnId),
    ["turn_0", "turn_1", "turn_2", "turn_3"],
  );
  assert.equal(ofType(seen, "session.started").length, 1);
}

async function failing(app, script) {
  const { session, result } = await firstTurn(app, app.client(), app.script(script));
  const [failure, ...more] = ofType(result.events, "turn.failed");
  assert.ok(failure, `turn.failed is missing: ${typesOf(result.events)}`);
  assert.equal(more.length, 0);
  assert.ok(failure.data.code.length > 0 && failure.data.message.length > 0);
  assert.equal(ofType(result.events, "turn.completed").length, 0);
  const next = await turn(app, (m) => app.say(session, m), app.script("text"));
  assert.ok(next.message.length > 0, "the session goes on");
  await checkWhole(app, session, [...result.events, ...next.events]);
  return result;
}

async function turnFails(app) {
  await failing(app, "fail");
}

async function turnFailsMidway(app) {
  const result = await failing(app, "failmid");
  assert.ok(ofType(result.events, "message.appended").length > 0, "the first half was shown");
}

/** Cuts the stream between two events, inside of an event, and inside of the response's headers. */
async function cutConnection(app) {
  const proxy = await startCuttingProxy(app.host, [
    { lines: 5, bytes: 0 },
    { lines: 2, bytes: 60 },
    { lines: 0, bytes: 90 },
  ]);
  try {
    const { session, result } = await firstTurn(
      app,
      app.client(proxy.host),
      app.script("slow", "12"),
    );
    assert.equal(proxy.cutsLeft(), 0, `streams: ${proxy.streams.join(", ")}`);
    assert.equal(proxy.streams.length, 4, "the client came back after every cut");
    const cursor = Number(new URL(proxy.streams[3], proxy.host).searchParams.get("startIndex"));
    assert.ok(cursor > 0 && cursor <= 7, `it came back at its cursor, not at ${cursor}`);
    assert.ok(result.message.length > 0);
    const direct = app.attach(app.client(), { ...session.state, streamIndex: 0 });
    await checkWhole(app, direct, result.events);
  } finally {
    proxy.close();
  }
}

/** The app goes away in the middle of a turn and another process takes its saved cursor up. */
async function savedCursor(app) {
  const { session, response } = await app.client().begin(app.script("slow", "12"));
  const seen = [];
  for await (const event of response) {
    seen.push(event);
    if (ofType(seen, "message.appended").length === 3) break;
  }
  const saved = JSON.parse(JSON.stringify({ ...session.state, streamIndex: seen.length }));
  const again = app.attach(app.client(), saved);
  for await (const event of again.stream()) {
    seen.push(event);
    if (event.type === "session.waiting") break;
  }
  assert.equal(again.state.streamIndex, seen.length, "the cursor counts every event");
  assert.equal(ofType(seen, "message.completed").length, 1);
  await checkWhole(app, again, seen);
  const next = await turn(app, (m) => app.say(again, m), app.script("text"));
  await checkWhole(app, again, [...seen, ...next.events]);
}

/** An idle stream of a client that did not ask for control records stays open and silent. */
async function idleWithoutLease(app) {
  const proxy = await startCuttingProxy(app.host);
  const stop = new AbortController();
  try {
    const { session, result } = await firstTurn(app, app.client(), app.script("text"));
    const watcher = app.attach(app.client(proxy.host), session.state);
    const seen = [];
    const watching = (async () => {
      for await (const event of watcher.stream({ signal: stop.signal })) {
        seen.push(event);
        if (event.type === "session.waiting") return;
      }
    })();
    await sleep(HEARTBEAT_MS + TIMER_SLACK_MS);
    assert.deepEqual(seen, [], "nothing but events may come");
    const next = await turn(app, (m) => app.say(session, m), app.script("text"));
    await watching;
    assert.deepEqual(seen, next.events, "the idle reader saw the next turn");
    assert.equal(proxy.streams.length, 1, "it stayed on one connection");
    await checkWhole(app, session, [...result.events, ...next.events]);
  } finally {
    stop.abort();
    proxy.close();
  }
}

/** Reads a raw stream line by line; yields `{line, at}` with the milliseconds since it was asked for. */
async function* rawLines(url, init) {
  const asked = Date.now();
  const response = await fetch(url, init);
  assert.equal(response.status, 200);
  assert.match(response.headers.get("content-type"), /^application\/x-ndjson/);
  const version = Number(response.headers.get("x-eve-stream-version"));
  const [oldest, newest] = OLDEST_AND_NEWEST_STREAM_VERSION;
  assert.ok(version >= oldest && version <= newest, `stream version ${version}`);
  let rest = "";
  for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + chunk).split("\n");
    rest = lines.pop();
    for (const line of lines) yield { line, at: Date.now() - asked };
  }
  assert.equal(rest, "", "the body ends with a whole line");
}

function idleStreamUrl(app, session) {
  const { sessionId, streamIndex } = session.state;
  const query = `startIndex=${streamIndex}&streamControlVersion=1`;
  return `${app.host}/eve/v1/session/${encodeURIComponent(sessionId)}/stream?${query}`;
}

async function heartbeat(app) {
  const { session } = await firstTurn(app, app.client(), app.script("text"));
  const stop = new AbortController();
  const init = { headers: app.headers, signal: stop.signal };
  const lines = [];
  try {
    // The first blank line opens the body (section 7.3); the second is the heartbeat. That it comes
    // at all is what can be told on any machine: else the scenario does not finish.
    for await (const { line } of rawLines(idleStreamUrl(app, session), init)) {
      lines.push(line);
      if (lines.length === 2) break;
    }
    assert.deepEqual(lines, ["", ""]);
  } finally {
    stop.abort();
  }
}

/** A lease ends after a minute with a control record; the client comes back without a trace. */
async function lease(app) {
  const proxy = await startCuttingProxy(app.host);
  const stop = new AbortController();
  try {
    const { session, result } = await firstTurn(app, app.client(), app.script("text"));
    const watcher = app.attach(app.client(proxy.host), session.state);
    const seen = [];
    const watching = (async () => {
      for await (const event of watcher.stream({ signal: stop.signal })) {
        seen.push(event);
        if (event.type === "session.waiting") return;
      }
    })();
    const lines = [];
    let ended = 0;
    const init = { headers: app.headers, signal: stop.signal };
    for await (const { line, at } of rawLines(idleStreamUrl(app, session), init)) {
      lines.push(line);
      ended = at;
    }
    assert.deepEqual(JSON.parse(lines.pop()), { $eve: "stream.lease-ended", version: 1 });
    assert.ok(
      lines.every((line) => line === ""),
      "an idle stream carries blank lines only",
    );
    // A busy machine makes heartbeats and the end later, never earlier.
    const most = 1 + ended / HEARTBEAT_MS;
    assert.ok(lines.length >= 2 && lines.length <= most, `${lines.length} blank lines`);
    assert.ok(ended >= LEASE_MS - TIMER_SLACK_MS, `the lease took ${ended} ms`);

    while (proxy.streams.length < 2) await sleep(100);
    const next = await turn(app, (m) => app.say(session, m), app.script("text"));
    await watching;
    assert.deepEqual(seen, next.events, "the reader saw the next turn, once");
    assert.equal(proxy.streams.length, 2, "it reconnected only because its lease ended");
    await checkWhole(app, session, [...result.events, ...next.events]);
  } finally {
    stop.abort();
    proxy.close();
  }
}

async function prewarm(app) {
  const { session } = await app.client().prewarm();
  const result = await turn(app, (m) => app.say(session, m), app.script("text"));
  assert.ok(result.message.length > 0);
  const events = await checkWhole(app, session, result.events);
  assert.equal(events[0].type, "session.started", "nothing comes before the first message");
  assert.equal(ofType(events, "turn.started")[0].data.turnId, "turn_0");
}

/** The first message after an approval that was cancelled is answered, by the first boundary. */
async function cancelHeld(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("approve"));
  onlyRequest(result, "tool-approval");
  assert.equal((await session.cancel()).status, "accepted");
  const next = await turn(app, (m) => app.say(session, m), app.script("text"));
  assert.ok(next.message.length > 0, "an answer follows");
  checkLog((await session.snapshot()).events, app);
}

/** A message while an approval is open withdraws it, and is answered. */
async function meanwhile(app) {
  const { session, result } = await firstTurn(app, app.client(), app.script("approve"));
  onlyRequest(result, "tool-approval");
  const next = await turn(app, (m) => app.say(session, m), app.script("text"));
  assert.ok(next.message.length > 0, "an answer follows");
}

/** The server ends in the middle of an answer, killed or told to, and starts on the same journal. */
async function restart(app, name) {
  // The server ends once every client has come to its point: 12 s are long enough for all of them.
  const message = app.script("slow", "120");
  const { session, response } = await app.client().begin(message);
  const seen = [];
  let server;
  let finishedBefore;
  for await (const event of response) {
    seen.push(event);
    if (server === undefined && ofType(seen, "message.appended").length === 3) {
      server = app.restartServer(name);
      server.ended.then(() => {
        finishedBefore = ofType(seen, "message.completed").length;
      });
    }
  }
  assert.equal(finishedBefore, 0, `the end was not in the middle of the turn: ${typesOf(seen)}`);
  assert.deepEqual(received(seen), [message], "the user's message is shown once");
  assert.equal(seen.at(-1).type, "session.waiting");
  assert.equal(ofType(seen, "turn.failed").length, 0, JSON.stringify(seen.at(-2)));
  const [whole, ...more] = ofType(seen, "message.completed");
  assert.equal(more.length, 0, "one answer");
  await checkWhole(app, session, seen);

  const next = await turn(app, (m) => app.say(session, m), message);
  const words = (text) => text.replace(/\(turn \d+\)/, ""); // the scripted backends count turns
  assert.equal(
    words(whole.data.message),
    words(next.message),
    "the answer is as without a restart",
  );
  await checkWhole(app, session, [...seen, ...next.events]);
}

/** A permission that was asked before the end is answered after it, through the same handle. */
async function restartWhilePaused(app, name) {
  const { session, result } = await firstTurn(app, app.client(), app.script("approve"));
  const request = onlyRequest(result, "tool-approval");
  await app.restartServer(name).back;
  const optionId = optionLike(request, POSITIVE);
  const after = await (
    await app.answer(session, [{ requestId: request.requestId, optionId }])
  ).result();
  const events = [...result.events, ...after.events];
  await checkWhole(app, session, events);
  assert.deepEqual(
    theAction(events, request.action.callId).results.map((r) => r.status),
    ["completed"],
  );
  assert.ok(after.message.length > 0, "an answer follows");
}

const PICTURE = {
  type: "file",
  data: "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==",
  mediaType: "image/png",
  filename: "pier.png",
};

/**
 * The session moves from backend to backend and back while this client stays: it sees one
 * conversation. `EVE_MOVES` has the control API (`control`) and the backends (`to`): an eve that
 * says what its model was given, and an Engine that says what it was sent.
 */
async function moves(app) {
  const { control, to } = JSON.parse(process.env.EVE_MOVES);
  const [eve, engine] = to;
  const call = async (path, body) => {
    const answer = await fetch(`${control}${path}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    const found = await answer.json();
    assert.equal(answer.status, 200, JSON.stringify(found));
    return found;
  };

  // An approval that is answered, a file, and a child agent.
  const { session, result } = await firstTurn(app, app.client(), app.script("approve"));
  const seen = [...result.events];
  const id = session.state.sessionId;
  const request = onlyRequest(result, "tool-approval");
  const response = { requestId: request.requestId, optionId: optionLike(request, POSITIVE) };
  const after = await (await app.answer(session, [response])).result();
  assert.deepEqual(after.inputRequests, []);
  seen.push(...after.events);
  const say = async (message, words = message) => {
    const next = await (await app.say(session, message)).result();
    assert.equal(next.status, "waiting");
    if (typeof words === "string") assert.deepEqual(received(next.events), [words]);
    seen.push(...next.events);
    return next;
  };
  await say(app.parts([{ type: "text", text: "scene: plain\nThis is the pier." }, PICTURE]), null);
  let child;
  // A busy 0.30.8 loses the start of a child now and then, and says so.
  for (let tries = 0; tries < 5; tries++) {
    child = await say("scene: delegate");
    if (!JSON.stringify(child.events).includes("SUBAGENT_START_FAILED")) break;
  }
  assert.ok(ofType(child.events, "subagent.called").length > 0, "a child agent has run");

  const moved = await call(`/sessions/${id}/move`, { to: eve });
  assert.equal(moved.moved, true);
  const again = await call(`/sessions/${id}/move`, { to: eve });
  assert.equal(again.moved, false, "a second time there is nothing to do");
  const files = await say("scene: files");
  // An eve gives its model a text for each file: here the history, the file and the message.
  assert.equal(files.message, "Parts seen: text, text, text");
  // Not in its first turn only.
  const heard = await say("scene: heard Payment outcome");
  assert.match(heard.message, /Heard: yes/, "what the agent said is there");
  assert.match((await say("scene: heard This is the pier.")).message, /Heard: yes/);
  assert.match((await say("scene: heard approval")).message, /Heard: yes/, "so is the approval");
  assert.match((await say("scene: heard Delegate came back")).message, /Heard: yes/);
  assert.match((await say("scene: heard what nobody has said")).message, /Heard: no/);

  await call(`/sessions/${id}/move`, { to: engine });
  const echo = await say("And now?");
  for (const words of ["image/png", "Payment outcome", "This is the pier.", "Heard: yes", "And now?"])
    assert.ok(echo.message.includes(words), `the Engine was not given ${words}`);
  assert.ok(!(await say("And then?")).message.includes("Payment outcome"), "it is given once");

  await call(`/sessions/${id}/rollback`, {});
  assert.match((await say("scene: heard And then?")).message, /Heard: yes/);
  assert.match((await say("scene: heard Payment outcome")).message, /Heard: yes/);

  const events = await checkWhole(app, session, seen);
  const turns = ofType(events, "turn.started").map((event) => event.data.sequence);
  assert.deepEqual(turns, [...turns.keys()], "turns are counted on");
  assert.equal(ofType(events, "session.started").length, 1);
}

/**
 * All scenarios by name. `only` names the generation that a scenario is about, `aside` marks those
 * that mostly wait and therefore run beside the others (they are about Dragoman alone, and run with
 * one backend), `restart` the signal that ends those servers which are started again, one for all
 * of its scenarios, `without` the backends that cannot.
 */
export const SCENARIOS = [
  { name: "lease", run: lease, only: "S", aside: true, limitMs: 300_000 },
  { name: "heartbeat", run: heartbeat, only: "S", aside: true },
  { name: "idle", run: idleWithoutLease, only: "T", aside: true },
  { name: "health", run: health },
  { name: "text", run: text },
  { name: "any-message", run: anyMessage },
  { name: "reasoning", run: reasoning },
  { name: "long", run: longAnswer },
  { name: "tool", run: tool },
  { name: "tools", run: tools },
  { name: "tool-fails", run: toolFails },
  { name: "approval-yes", run: approvalYes },
  { name: "approval-no", run: approvalNo },
  // eve 0.30.8 does not tell its model what was written with a refusal, and Herm has no member for it.
  { name: "approval-feedback", run: approvalFeedback, without: ["eve-t", "herm"] },
  { name: "approval-again", run: approvalAgain },
  // An Engine asks for one thing at a time.
  { name: "approval-both", run: approvalBoth, without: ["engine"] },
  // Later clients say one or the other.
  { name: "answer-and-message", run: answerAndMessage, only: "T" },
  { name: "question-option", run: questionOption },
  { name: "question-free-text", run: questionFreeText },
  { name: "question-by-message", run: questionByMessage },
  { name: "follow-up", run: followUp },
  { name: "turn-fails", run: turnFails },
  { name: "turn-fails-midway", run: turnFailsMidway },
  // An Engine stops nothing, and a T says something of the refusal first.
  { name: "cancel-held", run: cancelHeld, without: ["engine", "eve-t"] },
  // Those two withdraw nothing either.
  { name: "meanwhile", run: meanwhile, only: "S", without: ["engine", "eve-t"] },
  { name: "cut-connection", run: cutConnection },
  { name: "saved-cursor", run: savedCursor },
  { name: "prewarm", run: prewarm, only: "S" },
  { name: "hook", run: hook },
  { name: "hook-again", run: hookAgain },
  { name: "hook-both", run: hookBoth, without: ["engine"] },
  { name: "hook-together", run: hookTogether, only: "T" },
  // Only where there is somewhere to move to.
  { name: "moves", run: moves, without: ["engine", "eve-t", "eve-s", "herm"] },
  { name: "restart", run: restart, restart: "SIGKILL", limitMs: 600_000 },
  { name: "restart-while-paused", run: restartWhilePaused, restart: "SIGKILL", limitMs: 600_000 },
  { name: "stop", run: restart, restart: "SIGTERM", limitMs: 600_000 },
  { name: "stop-while-paused", run: restartWhilePaused, restart: "SIGTERM", limitMs: 600_000 },
];

const DEFAULT_LIMIT_MS = 180_000; // only one that hangs takes longer

async function runOne(app, scenario, report) {
  const started = Date.now();
  const limitMs = scenario.limitMs ?? DEFAULT_LIMIT_MS;
  const timer = new AbortController();
  try {
    await Promise.race([
      scenario.run(app, scenario.name),
      sleep(limitMs, undefined, { signal: timer.signal }).then(() => {
        throw new Error(`not finished after ${limitMs} ms`);
      }),
    ]);
    report({ name: scenario.name, ok: true, ms: Date.now() - started });
  } catch (error) {
    report({ name: scenario.name, ok: false, ms: Date.now() - started, error: error.stack });
  } finally {
    timer.abort();
  }
}

/** Runs the wanted scenarios: those of a restart at once, the waiting ones beside the others. */
export async function runScenarios(app, wanted, report) {
  const chosen = SCENARIOS.filter(
    (s) => wanted.includes(s.name) && (s.only === undefined || s.only === app.family),
  );
  const aside = chosen.filter((s) => s.aside || s.restart);
  const waiting = aside.map((scenario) => runOne(app, scenario, report));
  for (const scenario of chosen.filter((s) => !aside.includes(s)))
    await runOne(app, scenario, report);
  await Promise.all(waiting);
}
