// The side of `cells.mjs` in the process of a client: plays its scenarios and tells what was shown.
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";

const PATIENCE_MS = 120_000;

/** Waits until something holds; only what hangs takes as long. */
export async function until(what, holds) {
  const end = Date.now() + PATIENCE_MS;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`it does not come: ${what}`);
    await sleep(20);
  }
}

/** Asks for JSON. */
export async function json(url, init = {}) {
  const headers = { "content-type": "application/json" };
  const response = await fetch(url, { headers, ...init });
  const text = await response.text();
  if (!response.ok) throw new Error(`${init.method ?? "GET"} ${url}: ${response.status} ${text}`);
  return JSON.parse(text);
}

/** What scenarios need of the world in every dialect. */
export class World {
  /** `open(route, thread, how)` begins a conversation; `restart` is the runner's. */
  constructor({ name, route, base, client, open, restart }) {
    Object.assign(this, { name, route, base, client, open, restart });
  }
  /** Says yes over Herm's dialect to what a session asks. */
  async allowInHerm(session) {
    const events = `${this.base}/as/herm/to/${this.route}/v1/sessions/${session}/events`;
    const asked = (await json(`${events}?order=desc&limit=20`)).data.find(
      ({ type, payload }) => type === "session.status_idle" && payload.stop_reason?.event_ids,
    );
    const [use] = asked.payload.stop_reason.event_ids;
    const answer = { type: "user.tool_confirmation", tool_use_id: use, result: "allow" };
    await json(events, { method: "POST", body: JSON.stringify({ events: [answer] }) });
  }
}

/**
 * Plays what the runner wants, each route by itself: reads `PEERS_BASE` (Dragoman), `PEERS_PLAN`
 * (JSON, pairs of scenario and route) and `PEERS_CLIENT`. A `Stage` is a `World` with `talk.shown`.
 */
export async function drive(scenes, Stage, open) {
  // What the clients tell their developers.
  console.warn = console.error = console.info = console.log = console.debug = () => {};
  const waiting = new Map();
  const begun = Promise.withResolvers();
  process.on("message", ({ type }) => {
    if (type === "begin") begun.resolve();
    if (type === "back") for (const resolve of waiting.values()) resolve();
  });
  const { PEERS_BASE: base, PEERS_CLIENT: client, PEERS_PLAN: plan } = process.env;
  const lane = async ([route, cells]) => {
    for (const [name] of cells) {
      const began = Date.now();
      const restart = () =>
        new Promise((resolve) => {
          waiting.set(`${name} ${route}`, resolve);
          process.send({ type: "restart", name, route });
        });
      const stage = new Stage({ name, route, base, client, open, restart });
      const error = await scenes[name].play(stage).then(
        () => undefined,
        (broken) => broken.stack ?? String(broken),
      );
      const shown = stage.talk?.shown ?? [];
      process.send({ type: "result", name, route, ms: Date.now() - began, shown, error });
    }
  };
  // A process takes seconds to load its client: an answer that all must be in waits for the last one.
  process.send({ type: "ready" });
  await begun.promise;
  await Promise.all([...Map.groupBy(JSON.parse(plan), ([, route]) => route)].map(lane));
  process.send({ type: "end" }, () => process.exit(0));
}
