// Lets clients play scenarios with scripted backends, all at once, and compares what each showed
// with what its table says: `agui/run.mjs` and `aisdk/run.mjs`.
import { fork } from "node:child_process";
import path from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";

import { openHouse, running } from "./house.mjs";
import { planned } from "./plan.mjs";

const ROUTES = ["herm", "eve-s", "engine"];

/**
 * Plays the chosen cells and ends this process. Arguments of the command line: the folder of the
 * project, then `[--only NAME[,NAME]] [--client NAME[,NAME]] [--route NAME[,NAME]] [--list]`.
 *
 * - `folder`: of the drivers, `clients`: name -> its driver and what that is called with,
 * - `scenes`: name -> its scenario: `signal` says how the server is ended in it, `routes` and `plays` (a
 *   function of the client) who can play it, `values` what the plan takes for its name; where it has an
 *   `oracle`, each client plays it there too,
 * - `oracle`: the route of the server that shows what is right,
 * - `expected(scene, client, route, oracle)`: `{page, shows}`, `oracle` being what it showed to that client,
 * - `plain(line)`: a line without what always differs,
 * - `notYet(scene, client, route)`: why a cell is known to be wrong,
 * - `tables(route)`: more of Dragoman's configuration,
 * - `env`: for the drivers, `beside`: functions of Dragoman's server and the routes that start what the
 *   clients need beside it, as `{name, server, env}`.
 */
export async function runCells({ folder, clients, ...how }) {
  const { scenes, oracle, expected, plain, env = {}, beside } = how;
  const { notYet = () => undefined, tables = () => "" } = how;
  const root = process.argv[2];
  const started = Date.now();
  const counts = { passed: 0, failed: 0 };
  const truths = new Map(); // client and scene -> what the oracle has shown
  const waiting = new Map(); // client and scene -> cells that wait for it
  const { values: options } = parseArgs({
    args: process.argv.slice(3),
    options: {
      only: { type: "string", multiple: true },
      client: { type: "string", multiple: true },
      route: { type: "string", multiple: true },
      list: { type: "boolean" },
    },
  });

  function fail(message) {
    counts.failed += 1;
    console.log(`FAIL ${message}`);
  }

  /** The chosen ones of all that there are by an option. */
  function chosen(option, all) {
    const wanted = options[option]?.flatMap((names) => names.split(","));
    for (const name of wanted ?? []) if (!all.includes(name)) fail(`there is no ${name}`);
    return all.filter((name) => wanted?.includes(name) ?? true);
  }

  /** Judges a cell once the oracle has played it too, where there is one. */
  function settle(client, result) {
    const key = `${client} ${result.name}`;
    if (!scenes[result.name].oracle) return judge(client, result);
    if (result.route === oracle) {
      truths.set(key, result.shown.map(plain));
      judge(client, result, truths.get(key));
      for (const one of waiting.get(key) ?? []) judge(client, one, truths.get(key));
    } else if (truths.has(key)) judge(client, result, truths.get(key));
    else waiting.set(key, [...(waiting.get(key) ?? []), result]);
  }

  /** Compares what a cell showed with the table, or with the oracle. */
  function judge(client, { name, route, ms, shown, error }, truth) {
    const { page, shows } = expected(name, client, route, truth);
    const is = shown.map(plain);
    const good = !error && shows.join("\n") === is.join("\n");
    const known = notYet(name, client, route);
    if (known && good) return fail(`${client} ${route} ${name} is right now: ${known}`);
    if (known) return console.log(`KNOWN ${client} ${route} ${name}: ${known}`);
    counts[good ? "passed" : "failed"] += 1;
    console.log(`${good ? "PASS" : "FAIL"} ${client} ${route} ${name} (${ms} ms)`);
    if (good) return;
    if (error) console.log(error.replace(/^/gm, "     "));
    const at = shows.findIndex((line, index) => is[index] !== line);
    for (const line of is) console.log(`     shown  ${line}`);
    for (const [index, line] of shows.entries())
      console.log(`     ${index === at ? "WANTED" : "wanted"} ${line}`);
    console.log(`     (sections ${page})`);
  }

  /**
   * Runs one client's driver. `onReady` is called with its process once that is loaded, and without
   * one when it has ended; it plays when it is told to begin. `onSettled` is called with each cell when
   * it asks for a restart of the server (then with the process to tell about it) or has ended.
   */
  function play(client, cells, more, onReady, onSettled) {
    const [driver, ...args] = clients[client];
    const child = fork(path.join(folder, driver), args, {
      cwd: path.dirname(path.join(folder, driver)),
      env: { ...process.env, ...more, PEERS_CLIENT: client, PEERS_PLAN: JSON.stringify(cells) },
    });
    running.add(child);
    const left = new Set(cells.map(([name, route]) => `${name} ${route}`));
    child.on("message", (message) => {
      if (message.type === "ready") return onReady(client, child);
      const cell = `${message.name} ${message.route}`;
      if (message.type === "restart") onSettled(`${client} ${cell}`, child);
      if (message.type !== "result") return;
      left.delete(cell);
      onSettled(`${client} ${cell}`);
      settle(client, message);
    });
    return new Promise((resolve) => {
      child.on("exit", () => {
        running.delete(child);
        onReady(client);
        for (const cell of left) {
          fail(`${client} ${cell}: the driver ended without a result`);
          onSettled(`${client} ${cell}`);
        }
        resolve();
      });
    });
  }

  /** The cells that are played: all that the options choose, and without options those of the plan. */
  function cells() {
    const all = chosenClients.flatMap((client, turn) =>
      chosenScenes.flatMap((name, at) => {
        if (scenes[name].plays?.(client) === false) return [];
        const routes = chosenRoutes.filter((one) => scenes[name].routes?.includes(one) ?? true);
        // The plan takes the first of equals: so each backend is the first as often.
        return routes.map((_, step) => [client, name, routes[(turn + at + step) % routes.length]]);
      }),
    );
    const values = ([client, name, route]) => [client, route, ...(scenes[name].values ?? [name])];
    const some = options.only || options.client || options.route ? all : planned(root, all, values);
    const compared = some.filter(([, name]) => scenes[name].oracle);
    const truth = new Map(compared.map(([client, name]) => [`${client} ${name}`, [client, name, oracle]]));
    return [...truth.values(), ...some];
  }

  /** Plays all scenarios with this signal, or those without one. */
  async function converse(signal) {
    const plan = Map.groupBy(
      everyCell.filter(([, name]) => scenes[name].signal === signal),
      ([client]) => client,
    );
    if (plan.size === 0) return;
    const house = await openHouse(root, chosenRoutes, chosenRoutes.map(tables).join(""));
    let server = await house.start();
    const others = await Promise.all(beside.map((start) => start(root, server, chosenRoutes)));

    const awaited = new Set([...plan.values()].flat().map((cell) => cell.join(" ")));
    const paused = new Set();
    const endAndStart = async () => {
      const status = await server.stop(signal);
      if (signal === "SIGTERM" && status !== 0) fail(`restart: exit with status ${status}`);
      server = await house.start();
      for (const driver of paused) driver.send({ type: "back" });
    };
    const onSettled = (cell, driver) => {
      if (!awaited.delete(cell)) return;
      if (driver) paused.add(driver);
      if (awaited.size > 0 || paused.size === 0) return;
      endAndStart().catch((error) => fail(`restart: ${error.message}`));
    };
    const loading = new Set(plan.keys());
    const ready = [];
    const onReady = (client, driver) => {
      if (!loading.delete(client)) return;
      if (driver) ready.push(driver);
      if (loading.size === 0) for (const one of ready) if (one.connected) one.send({ type: "begin" });
    };
    const before = counts.failed;
    const more = Object.assign({ ...env, PEERS_BASE: server.url }, ...others.map((one) => one.env));
    await Promise.all(
      [...plan].map(([client, all]) => {
        const own = all.map(([, ...cell]) => cell);
        return play(client, own, more, onReady, onSettled);
      }),
    );
    for (const [key, cells] of waiting)
      if (!truths.has(key)) for (const { route } of cells) fail(`${key} ${route}: the oracle showed nothing`);
    for (const one of others) if (!one.server.lives()) fail(`${one.name} has ended`);
    if (counts.failed > before)
      for (const one of [{ name: "serve", server }, ...others])
        console.log(one.server.tail.join("\n").replace(/^/gm, `${one.name}: `));
    await Promise.all(others.map((one) => one.server.stop()));
    await house.stop(server);
  }

  function finish() {
    for (const child of running) child.kill("SIGKILL");
    console.log(`${((Date.now() - started) / 1000).toFixed(0)} s`);
    console.log(`${counts.passed} passed, ${counts.failed} failed`);
    process.exit(counts.failed === 0 && counts.passed > 0 ? 0 : 1);
  }

  const chosenScenes = chosen("only", Object.keys(scenes));
  const chosenClients = chosen("client", Object.keys(clients));
  const chosenRoutes = chosen("route", ROUTES);
  if (options.list) {
    console.log(`clients: ${chosenClients.join(", ")}\nroutes: ${chosenRoutes.join(", ")}`);
    for (const name of chosenScenes) console.log(`${name} ${scenes[name].signal ?? ""}`.trim());
    process.exit(0);
  }
  for (const signal of ["SIGINT", "SIGTERM"])
    process.on(signal, () => {
      fail(signal);
      finish();
    });
  const everyCell = cells();
  // Those with SIGTERM mostly wait.
  for (const signals of [[undefined, "SIGTERM"], ["SIGKILL"]])
    await Promise.all(
      signals.map((signal) => converse(signal).catch((error) => fail(error.stack))),
    );
  finish();
}
