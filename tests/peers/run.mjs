// Starts the servers, lets the clients run their scenarios against them, and counts.
//
// Usage, once run.sh has installed everything: run.sh [--only NAME[,NAME]] [--gen VERSION] [--list]
// With EVE_HOST set, that server is used as it is and the scenarios that restart one are left out.
import { execFile, fork } from "node:child_process";
import { createHash } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import process from "node:process";
import { parseArgs, promisify } from "node:util";

import { SCENARIOS } from "./conversation.mjs";
import { BACKENDS, KEY, openHouse, running, STOP_LIMIT_MS } from "./house.mjs";
import { planned } from "./plan.mjs";

const MAIN_ROUTE = "engine";
const GENERATIONS = { "0.30.8": "T", "0.80.1": "S" };

const cache = import.meta.dirname;
const root = process.argv[2];
const started = Date.now();
const counts = { passed: 0, failed: 0 };

const { values: options } = parseArgs({
  args: process.argv.slice(3),
  options: {
    only: { type: "string", multiple: true },
    gen: { type: "string", multiple: true },
    list: { type: "boolean" },
  },
});
const only = options.only?.flatMap((names) => names.split(","));
const PAGES = "pages";
/** Dialect -> what the JavaScript of its page prints last. */
const LAST_WORDS = { herm: "session.status_idle", eve: "waiting", engine: "completed" };

function note(who, { name, ok, ms, error }) {
  counts[ok ? "passed" : "failed"] += 1;
  console.log(`${ok ? "PASS" : "FAIL"} ${who} ${name} (${ms} ms)`);
  if (error) console.log(error.replace(/^/gm, "     "));
}

function fail(message) {
  counts.failed += 1;
  console.log(`FAIL ${message}`);
}

/**
 * Runs one generation's driver. For each scenario, `onSettled` is called with its name when it asks
 * for a restart of the server (then with the process to tell about it) or has ended.
 */
function runDriver(generation, names, host, { route, onSettled = () => {} } = {}) {
  const who = route === undefined ? generation : `${generation} ${route}`;
  const child = fork(path.join(cache, `eve-${generation}`, "driver.mjs"), {
    cwd: cache,
    env: { ...process.env, EVE_HOST: host, PEERS_ONLY: names.join(",") },
  });
  running.add(child);
  const left = new Set(names);
  child.on("message", (message) => {
    if (message.type === "restart") onSettled(`${generation} ${message.name}`, child);
    if (message.type !== "result") return;
    left.delete(message.name);
    onSettled(`${generation} ${message.name}`);
    note(who, message);
  });
  return new Promise((resolve) => {
    child.on("exit", () => {
      running.delete(child);
      for (const name of left) {
        fail(`${who} ${name}: the driver ended without a result`);
        onSettled(`${generation} ${name}`);
      }
      resolve();
    });
  });
}

/** Whether a backend can play a scenario; of a server that runs already only who names it knows. */
function can(scenario, route) {
  if (process.env.EVE_HOST && only?.includes(scenario.name)) return true;
  return !(scenario.without ?? []).includes(route);
}

/** Whether a client of a generation plays a scenario with a backend. */
function plays(generation, scenario, route) {
  return (
    can(scenario, route) &&
    (route === MAIN_ROUTE || !(scenario.aside || scenario.restart)) &&
    (scenario.only ?? GENERATIONS[generation]) === GENERATIONS[generation] &&
    (only === undefined || only.includes(scenario.name))
  );
}

/** The cells that are played: all that the options choose, and without options those of the plan. */
function cells() {
  const routes = Object.keys(BACKENDS);
  const all = generations.flatMap((generation, turn) =>
    SCENARIOS.flatMap((scenario, at) =>
      routes
        // The plan takes the first of equals: so each backend is the first as often.
        .map((_, step) => routes[(turn + at + step) % routes.length])
        .filter((route) => plays(generation, scenario, route))
        .map((route) => [generation, scenario.name, route]),
    ),
  );
  return only || options.gen || process.env.EVE_HOST ? all : planned(root, all, (cell) => cell);
}

/** The names for each generation on a backend, of the scenarios with this signal or without one. */
function planOf(restart, route) {
  const names = SCENARIOS.filter((s) => s.restart === restart).map((s) => s.name);
  const here = everyCell.filter(([, name, where]) => where === route && names.includes(name));
  const byClient = Map.groupBy(here, ([generation]) => generation);
  return [...byClient].map(([generation, own]) => [generation, own.map(([, name]) => name)]);
}

/** The first backend's scenarios wait for a lease; meanwhile the others take their turns. */
async function converse() {
  if (process.env.EVE_HOST) {
    const plan = planOf(undefined, MAIN_ROUTE);
    await Promise.all(plan.map(([g, names]) => runDriver(g, names, process.env.EVE_HOST)));
    return;
  }
  const plans = Object.keys(BACKENDS).map((route) => [route, planOf(undefined, route)]);
  const wanted = plans.filter(([, plan]) => plan.length > 0);
  if (wanted.length === 0) return;
  const house = await openHouse(root, wanted.map(([route]) => route));
  const server = await house.start();
  const before = counts.failed;
  const play = ([route, plan]) =>
    Promise.all(
      plan.map(([g, names]) =>
        runDriver(g, names, `${server.url}/as/eve/to/${route}`, { route }),
      ),
    );
  const others = async () => {
    for (const one of wanted.slice(1)) await play(one);
  };
  await Promise.all([play(wanted[0]), others()]);
  if (counts.failed > before) console.log(server.tail.join("\n").replace(/^/gm, "serve: "));
  await house.stop(server);
}

/** Ends Dragoman once, when every scenario has come to its point, and starts it again. */
async function converseOverRestart(signal) {
  const plan = planOf(signal, MAIN_ROUTE);
  if (plan.length === 0 || process.env.EVE_HOST) return;
  const house = await openHouse(root, [MAIN_ROUTE]);
  let server = await house.start();

  const awaited = new Set(plan.flatMap(([g, names]) => names.map((name) => `${g} ${name}`)));
  const waiting = new Set();
  const endAndStart = async () => {
    const status = await server.stop(signal);
    if (signal === "SIGTERM" && status !== 0) fail(`restart: exit with status ${status}`);
    for (const driver of waiting) driver.send({ type: "ended" });
    server = await house.start();
    for (const driver of waiting) driver.send({ type: "back" });
  };
  const onSettled = (name, driver) => {
    if (!awaited.delete(name)) return;
    if (driver) waiting.add(driver);
    if (awaited.size > 0 || waiting.size === 0) return;
    endAndStart().catch((error) => fail(`restart: ${error.message}`));
  };
  const before = counts.failed;
  const host = `${server.url}/as/eve/to/engine`;
  await Promise.all(plan.map(([g, names]) => runDriver(g, names, host, { onSettled })));
  if (counts.failed > before) console.log(server.tail.join("\n").replace(/^/gm, "serve: "));
  await house.stop(server);
}

/** Runs the JavaScript of the dialects' pages, beside the newest client, with a key. */
async function followPages() {
  if (process.env.EVE_HOST || (only !== undefined && !only.includes(PAGES))) return;
  const sha256 = createHash("sha256").update(KEY).digest("hex");
  const house = await openHouse(root, [MAIN_ROUTE], `\n[[keys]]\nname = "web"\nsha256 = "${sha256}"\n`);
  const server = await house.start();
  for (const [dialect, words] of Object.entries(LAST_WORDS)) {
    const page = fs.readFileSync(path.join(root, "docs/dialects", `${dialect}.md`), "utf8");
    const blocks = [...page.matchAll(/^```js\n(.*?)^```$/gms)].map((match) => match[1]);
    if (blocks.length === 0) fail(`${PAGES} ${dialect}: the page has no JavaScript`);
    for (const [number, code] of blocks.entries()) {
      const began = Date.now();
      const file = path.join(cache, "eve-0.80.1", `page-${dialect}-${number}.mjs`);
      const ours = code.replaceAll("http://127.0.0.1:8787", server.url).replaceAll("KEY", KEY);
      fs.writeFileSync(file, ours);
      const error = await promisify(execFile)(process.execPath, [file], {
        timeout: STOP_LIMIT_MS,
      }).then(
        ({ stdout }) => (stdout.includes(words) ? undefined : `printed ${stdout}`),
        (broken) => broken.message,
      );
      note(PAGES, { name: `${dialect} ${number + 1}`, ok: !error, ms: Date.now() - began, error });
    }
  }
  await house.stop(server);
}

function finish() {
  for (const child of running) child.kill("SIGKILL");
  console.log(`${((Date.now() - started) / 1000).toFixed(0)} s`);
  console.log(`${counts.passed} passed, ${counts.failed} failed`);
  process.exit(counts.failed === 0 && counts.passed > 0 ? 0 : 1);
}

if (options.list) {
  for (const { name, only, restart } of SCENARIOS) {
    const of = Object.keys(GENERATIONS).filter((g) => (only ?? GENERATIONS[g]) === GENERATIONS[g]);
    console.log(`${name}  ${of.join(" ")}${restart ? `  (restarts the server by ${restart})` : ""}`);
  }
  console.log(`${PAGES}  (the JavaScript of docs/dialects)`);
  process.exit(0);
}

const generations = options.gen ?? Object.keys(GENERATIONS);
const known = [PAGES, ...SCENARIOS.map((s) => s.name)];
for (const name of only ?? []) if (!known.includes(name)) fail(`there is no scenario ${name}`);
const everyCell = cells();

for (const signal of ["SIGINT", "SIGTERM"])
  process.on(signal, () => {
    fail(signal);
    finish();
  });
const overSignals = ["SIGKILL", "SIGTERM"].map((signal) => () => converseOverRestart(signal));
for (const run of [followPages, converse, ...overSignals]) {
  try {
    await run();
  } catch (error) {
    fail(error.message);
  }
}
finish();
