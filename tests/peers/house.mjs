// Dragoman on a journal that outlives it, and scripted backends, each a process of its own.
import { spawn } from "node:child_process";
import fs from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import readline from "node:readline";

// Only a process that hangs is as slow: the machine may have much else to do.
const START_LIMIT_MS = 600_000;
export const STOP_LIMIT_MS = 60_000;
const LISTENING = /^(?:listening on|INFO: +Uvicorn running on) (http:\/\/\S+)/;
export const KEY = "peers-key";

/** Route -> dialect of its backend, options of the scripted one, the rest of its table. */
export const BACKENDS = {
  engine: ["engine", [], 'auth = { header = "X-Engine-Key", env = "PEERS_KEY" }'],
  herm: [
    "herm",
    [],
    `auth = { bearer_env = "PEERS_KEY" }
create = { agent = "agent_1", environment_id = "env_1", user_id = "user_1" }`,
  ],
  "eve-t": ["eve", ["--generation", "T"], 'auth = { bearer_env = "PEERS_KEY" }'],
  "eve-s": ["eve", ["--generation", "S2"], 'auth = { bearer_env = "PEERS_KEY" }'],
};

/** The processes that run. */
export const running = new Set();

/**
 * Starts a program in the folder of the project; waits for its line `listening on http://…`, or that
 * of Uvicorn.
 */
export async function startServer(root, command, args, env = {}) {
  const child = spawn(command, args, {
    cwd: root,
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  running.add(child);
  const tail = [];
  const keep = (line) => {
    tail.push(line);
    if (tail.length > 40) tail.shift();
  };
  const exited = new Promise((resolve) => {
    child.on("error", (error) => {
      keep(String(error));
      resolve();
    });
    child.on("exit", resolve);
  }).then(() => running.delete(child));
  const url = await new Promise((resolve, reject) => {
    const giveUp = (why) =>
      reject(new Error(`${command} ${args.join(" ")}: ${why}\n${tail.join("\n")}`));
    const timer = setTimeout(
      () => giveUp(`not listening after ${START_LIMIT_MS} ms`),
      START_LIMIT_MS,
    );
    exited.then(() => giveUp("ended early")).finally(() => clearTimeout(timer));
    const hear = (line) => {
      keep(line);
      const match = LISTENING.exec(line);
      if (match) {
        clearTimeout(timer);
        resolve(match[1]);
      }
    };
    for (const input of [child.stdout, child.stderr])
      readline.createInterface({ input }).on("line", hear);
  });
  return {
    url,
    tail,
    lives: () => running.has(child),
    /** Gives the exit status, null where it had to be killed. */
    async stop(signal = "SIGTERM") {
      child.kill(signal);
      const late = setTimeout(() => child.kill("SIGKILL"), STOP_LIMIT_MS);
      await exited;
      clearTimeout(late);
      return child.exitCode;
    },
  };
}

/** A port of this machine that was free just now. */
export async function freePort() {
  const server = net.createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/**
 * Starts three processes behind nginx with one journal in PostgreSQL. To `stop` them by a signal ends
 * two of them, those that have the most of the sessions; they are started again.
 */
async function startCluster(root, python, config, env) {
  const cluster = await startServer(root, python, ["-m", "tests.peers.cluster", config], env);
  const [control] = cluster.tail.flatMap((line) => /^control at (\S+)/.exec(line)?.[1] ?? []);
  return {
    ...cluster,
    async stop(signal) {
      if (signal === undefined) return cluster.stop();
      const answer = await fetch(`${control}/${signal}`, { method: "POST" });
      if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
      return 0;
    },
  };
}

/**
 * `dragoman serve` over scripted backends: `start` again on the same port and journal, `stop` all;
 * `root` is the folder of the project. With PEERS_CLUSTER in the environment it is a cluster.
 */
export async function openHouse(root, routes, tables = "") {
  const python = path.join(root, ".venv/bin/python");
  const dragoman = path.join(root, ".venv/bin/dragoman");
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "dragoman-peers-"));
  const backends = await Promise.all(
    routes.map((route) => {
      const [dialect, words] = BACKENDS[route];
      const args = ["-m", "proxy", "scripted", dialect, "--port", "0", "--key", KEY, ...words];
      return startServer(root, python, args);
    }),
  );
  for (const [at, route] of routes.entries()) {
    const [dialect, , rest] = BACKENDS[route];
    tables += `
[[backends]]
name = "${route}"
dialect = "${dialect}"
url = "${backends[at].url}"
${rest}
`;
  }
  const config = path.join(folder, "dragoman.toml");
  fs.writeFileSync(
    config,
    `[server]
listen = "127.0.0.1:${await freePort()}"

[journal]
url = "sqlite:///${folder}/dragoman.db"
${tables}`,
  );
  const env = { PEERS_KEY: KEY };
  let cluster;
  return {
    start() {
      if (!process.env.PEERS_CLUSTER)
        return startServer(root, dragoman, ["serve", "--config", config], env);
      cluster ??= startCluster(root, python, config, env);
      return cluster;
    },
    async stop(server) {
      await server.stop();
      await Promise.all(backends.map((backend) => backend.stop()));
      fs.rmSync(folder, { recursive: true });
    },
  };
}
