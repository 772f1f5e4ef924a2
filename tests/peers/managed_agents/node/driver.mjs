// Talks to a managed-agents face with an unmodified @anthropic-ai/sdk of some release, in the way that
// its own documentation tells people to.
//
// Usage: driver.mjs RELEASE URL SCENE...   prints PASS or FAIL and the scene; exits with 1 after a failure.
import assert from "node:assert/strict";

const [release, url, ...scenes] = process.argv.slice(2);
const module = await import(`sdk-${release}`);
const Anthropic = module.default;
const [major, minor] = release.split(".").map(Number);
const since = (a, b) => major > a || (major === a && minor >= b);

const sdk = new Anthropic({ baseURL: url, apiKey: "sk-demo", maxRetries: 0, timeout: 60_000 });
const { agents, environments, sessions } = sdk.beta;
const message = (text) => ({ type: "user.message", content: [{ type: "text", text }] });
const words = (event) => event.content.map((block) => block.text ?? "").join("");
const TEXT = "script: text";

async function start(more = {}, options = {}) {
  const agent = await agents.create({
    name: "Coding Assistant",
    model: "claude-opus-4-7",
    system: "You are a helpful coding assistant.",
    tools: [{ type: "agent_toolset_20260401" }],
  });
  const environment = await environments.create({
    name: "quickstart-env",
    config: { type: "cloud", networking: { type: "unrestricted" } },
  });
  const session = await sessions.create(
    { agent: agent.id, environment_id: environment.id, title: "Quickstart session", ...more },
    options,
  );
  return session.id;
}

async function play(session, ...events) {
  const stream = await sessions.events.stream(session);
  await sessions.events.send(session, { events });
  const found = [];
  for await (const event of stream) {
    found.push(event);
    if (event.type === "session.status_idle") return found;
  }
  throw new Error(`the stream ended: ${found.map((event) => event.type)}`);
}

async function collect(pages) {
  const found = [];
  for await (const one of await pages) found.push(one);
  return found;
}

function checkText(found) {
  assert.ok(found.filter((event) => event.type === "agent.message").map(words).join(""));
  assert.equal(found.at(-1).stop_reason.type, "end_turn");
}

// A refusal of a kind: who expects it, and what must be in its words.
async function refused(doing, kind, pattern = /./) {
  const error = await doing().then(
    () => undefined,
    (error) => error,
  );
  assert.ok(error instanceof kind, `${error}`);
  assert.match(error.message, pattern);
  return error;
}

const SCENES = {
  async smoke() {
    const session = await start();
    checkText(await play(session, message(TEXT)));
    const asked = await play(session, message("script: approve"));
    const reason = asked.at(-1).stop_reason;
    assert.equal(reason.type, "requires_action");
    const answers = reason.event_ids.map((id) => {
      assert.ok(asked.some((event) => event.id === id && event.type.endsWith("tool_use")));
      return { type: "user.tool_confirmation", tool_use_id: id, result: "allow" };
    });
    const done = await play(session, ...answers);
    assert.equal(done.at(-1).stop_reason.type, "end_turn");
    const ids = async (query) =>
      (await collect(sessions.events.list(session, query))).map((event) => event.id);
    const everything = await ids({ limit: 1000 });
    assert.deepEqual(await ids({ limit: Math.floor(everything.length / 2) + 1 }), everything);
    assert.equal(new Set(everything).size, everything.length);
    const archived = await sessions.archive(session);
    assert.equal(archived.status, "terminated");
    const again = () => sessions.events.send(session, { events: [message(TEXT)] });
    await refused(again, Anthropic.BadRequestError, /archived session/);
  },

  async initial() {
    const session = await start({ initial_events: [message(TEXT)] });
    let types = [];
    while (!types.includes("session.status_idle")) {
      await new Promise((done) => setTimeout(done, 50));
      types = (await collect(sessions.events.list(session))).map((event) => event.type);
    }
    assert.ok(types.includes("agent.message"));
    assert.equal(types.filter((type) => type === "user.message").length, 1);
  },

  async routes() {
    const session = await start({ metadata: { team: "docs" } });
    checkText(await play(session, message(TEXT)));
    assert.equal((await sessions.retrieve(session)).status, "idle");
    const updated = await sessions.update(session, {
      title: "Release notes",
      metadata: { team: null, x: "y" },
    });
    assert.deepEqual([updated.title, updated.metadata], ["Release notes", { x: "y" }]);
    const listed = await collect(sessions.list({ limit: 2 }));
    assert.ok(listed.some((one) => one.id === session));
    const ids = async (query) =>
      (await collect(sessions.events.list(session, query))).map((event) => event.id);
    const oldest = await ids({ order: "asc" });
    assert.deepEqual(await ids({ order: "desc", limit: 3 }), oldest.toReversed());
    for (const event of [{ type: "user.nonsense" }, { type: "user.message", content: [] }]) {
      const send = () => sessions.events.send(session, { events: [message("never"), event] });
      const error = await refused(send, Anthropic.BadRequestError);
      assert.equal(error.headers.get("x-should-retry"), "false");
    }
    assert.deepEqual(await ids({}), oldest);
    if (sessions.threads) {
      const [primary] = await collect(sessions.threads.list(session));
      assert.equal(primary.parent_thread_id, null);
      const below = { session_id: session };
      assert.equal((await sessions.threads.retrieve(primary.id, below)).id, primary.id);
      const events = await collect(sessions.threads.events.list(primary.id, below));
      assert.deepEqual(
        events.map((event) => event.id),
        oldest,
      );
    }
    if (since(0, 120)) await previews(session);
    await refused(() => agents.retrieve("agent_elsewhere"), Anthropic.NotFoundError, /no agent/);
    assert.equal((await sessions.delete(session)).type, "session_deleted");
    await refused(() => sessions.retrieve(session), Anthropic.NotFoundError);
  },
};

async function previews(session) {
  const wanted = ["agent.message", "agent.thinking"];
  const stream = await sessions.events.stream(session, { event_deltas: wanted });
  await sessions.events.send(session, { events: [message(TEXT)] });
  const parts = {};
  for await (const event of stream) {
    if (event.type === "event_start") parts[event.event.id] = "";
    else if (event.type === "event_delta") parts[event.event_id] += event.delta.content.text;
    else if (event.type === "agent.message") assert.equal(words(event), parts[event.id]);
    else if (event.type === "session.status_idle") break;
  }
  assert.ok(Object.keys(parts).length);
  const wrong = () => sessions.events.stream(session, { event_deltas: ["agent.tool_use"] });
  await refused(wrong, Anthropic.BadRequestError);
}

let failed = 0;
for (const name of scenes) {
  try {
    await SCENES[name]();
    console.log(`PASS ${name}`);
  } catch (error) {
    failed = 1;
    const place = /driver\.mjs:(\d+)/.exec(error.stack ?? "")?.[1] ?? "?";
    console.log(`FAIL ${name}: line ${place}: ${error.name}: ${error.message.slice(0, 600)}`);
  }
}
process.exit(failed);
