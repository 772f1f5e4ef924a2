// Builds and serves the pages of docs/examples in front of `dragoman demo` and of agents of Pydantic
// AI, and uses them in Chromium.
//
// Usage, once run.sh has installed everything:
// run.sh page [--only NAME[,NAME]] [--route NAME[,NAME]] [--picture] [--list]
// `--picture` writes docs/usechat.png in the place of all that.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import process from "node:process";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

import { freePort, running, startServer } from "../house.mjs";
import { openBrowser } from "./browser.mjs";
import * as copilotkit from "./copilotkit.mjs";
import * as pydanticAi from "./pydantic-ai.mjs";
import * as usechat from "./usechat.mjs";

const ROUTES = ["herm", "eve", "engine"];
const DEMO_NAMES = [...Object.keys(usechat.SCENES), "own", "quoted"];
const AGENT_SCENES = { ...pydanticAi.USECHAT, ...pydanticAi.COPILOTKIT };
const NAMES = [...DEMO_NAMES, ...Object.keys(copilotkit.SCENES), ...Object.keys(AGENT_SCENES)];
/** Where Dragoman is, in what the documentation quotes. */
const BASE = "http://127.0.0.1:8787";

const [root, chromium] = process.argv.slice(2, 4);
const started = Date.now();
const counts = { passed: 0, failed: 0 };
const { values: options } = parseArgs({
  args: process.argv.slice(4),
  options: {
    only: { type: "string", multiple: true },
    route: { type: "string", multiple: true },
    picture: { type: "boolean" },
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

/** Brings the files of an example to its packages; gives the folder. */
function unpack(example, names) {
  const to = path.join(import.meta.dirname, example);
  for (const name of names) {
    fs.rmSync(path.join(to, name), { recursive: true, force: true });
    const from = path.join(root, "docs/examples", example, name);
    fs.cpSync(from, path.join(to, name), { recursive: true });
  }
  return to;
}

/** Writes a file once more, with other words in the place of some. */
function rewrite(from, to, words) {
  let text = fs.readFileSync(from, "utf8");
  for (const [old, ours] of Object.entries(words)) {
    if (!text.includes(old)) throw new Error(`${from} has no ${old}`);
    text = text.replaceAll(old, ours);
  }
  fs.writeFileSync(to, text);
}

/** The chosen ones of some scenes. */
const chosenOf = (scenes) => chosen("only", NAMES).filter((name) => scenes.includes(name));

/** Gives Vite as an example has it. */
async function viteOf(folder) {
  const vite = createRequire(path.join(folder, "package.json")).resolve("vite");
  return import(pathToFileURL(vite));
}

/** Serves a page that is built as its own `npm run preview` does, or by another configuration. */
async function servePage(folder, port, configFile) {
  const { preview } = await viteOf(folder);
  return preview({
    root: folder,
    configFile,
    logLevel: "error",
    preview: { host: "127.0.0.1", port, strictPort: true },
  });
}

/** Plays scenes one after the other, each in a chat of its own; a page that failed is replaced. */
async function play(browser, scenes) {
  let page = await browser.page();
  for (const { name, url, scene } of scenes) {
    const began = Date.now();
    try {
      await Promise.race([page.load(url).then(() => scene(page)), page.complained]);
      counts.passed += 1;
      console.log(`PASS page ${name} (${Date.now() - began} ms)`);
    } catch (error) {
      fail(`page ${name} (${Date.now() - began} ms)`);
      const shown = await page.evaluate("document.body.innerText").catch(() => "");
      console.log(`${error.stack}\n${shown}`.replace(/^/gm, "     "));
      await page.close();
      page = await browser.page();
    }
  }
  await page.close();
}

/** Writes the configuration of Vite that the documentation quotes; gives the file. */
function quotedConfig(folder, demo) {
  const page = fs.readFileSync(path.join(root, "docs/dialects/aisdk.md"), "utf8");
  const [, code] = /^```js\n(\/\/ vite\.config\.js\n.*?)^```$/ms.exec(page);
  const file = path.join(folder, "vite.quoted.js");
  fs.writeFileSync(file, code.replaceAll(BASE, demo.url));
  return file;
}

/** Builds the page on useChat for a Dragoman; gives its folder. */
async function buildUseChat(dragoman) {
  const folder = unpack("usechat", ["index.html", "vite.config.js", "src"]);
  const quoted = path.join(folder, "src/OwnPage.jsx");
  rewrite(quoted, quoted, { [BASE]: dragoman.url });
  process.env.DRAGOMAN_URL = dragoman.url;
  await (await viteOf(folder)).build({ root: folder, logLevel: "error" });
  return folder;
}

/** Builds the page of CopilotKit; gives its folder. */
async function buildCopilotKit() {
  const folder = unpack("copilotkit", ["index.html", "vite.config.js", "runtime.mjs", "src"]);
  await (await viteOf(folder)).build({ root: folder, logLevel: "silent" });
  return folder;
}

/** Serves the page of CopilotKit with a runtime of its own for a route of a Dragoman. */
async function serveCopilotKit(folder, dragoman, route) {
  const program = path.join(folder, `runtime-${route}.mjs`);
  rewrite(path.join(folder, "runtime.mjs"), program, {
    [BASE]: dragoman.url,
    "/to/engine": `/to/${route}`,
  });
  const runtime = await startServer(root, process.execPath, [program], { PORT: "0" });
  const port = await freePort();
  process.env.RUNTIME_URL = runtime.url;
  const server = await servePage(folder, port);
  return {
    url: `http://127.0.0.1:${port}/`,
    async close() {
      await server.close();
      await runtime.stop();
    },
  };
}

/**
 * The page on useChat, whose server hands on what it asks: in `quoted` as the documentation says.
 * `own` asks Dragoman itself.
 */
async function talkByUseChat(browser, demo, port) {
  const { SCENES, ONLY, Talk, ownPage } = usechat;
  const names = chosenOf(DEMO_NAMES);
  if (names.length === 0) return;
  const folder = await buildUseChat(demo);
  const server = await servePage(folder, port);
  const base = `http://127.0.0.1:${port}/`;
  const other = await servePage(folder, await freePort(), quotedConfig(folder, demo));
  const kinds = {
    own: { url: () => `http://localhost:${port}/?own`, scene: ownPage },
    quoted: {
      url: (route) => `${other.resolvedUrls.local[0]}?api=/as/aisdk/to/${route}`,
      scene: (page) => SCENES.send(new Talk(page)),
    },
  };
  const scenesOf = (route) =>
    names
      .filter((name) => ONLY[name]?.includes(route) ?? true)
      .map((name) => ({
        name: `${route} ${name}`,
        url: kinds[name]?.url(route) ?? `${base}?api=/as/aisdk/to/${route}`,
        scene: kinds[name]?.scene ?? ((page) => SCENES[name](new Talk(page, route))),
      }));
  if (options.picture) await takePicture(browser, base);
  else await Promise.all(chosen("route", ROUTES).map((route) => play(browser, scenesOf(route))));
  await Promise.all([server.close(), other.close()]);
}

/** The page of CopilotKit, with a runtime for each backend. */
async function talkByCopilotKit(browser, demo) {
  const names = chosenOf(Object.keys(copilotkit.SCENES));
  if (names.length === 0 || options.picture) return;
  const folder = await buildCopilotKit();
  const talks = [];
  for (const route of chosen("route", ROUTES)) {
    const served = await serveCopilotKit(folder, demo, route);
    const scenes = names.map((name) => ({
      name: `${route} ${name}`,
      url: served.url,
      scene: copilotkit.SCENES[name],
    }));
    talks.push(play(browser, scenes).then(served.close));
  }
  await Promise.all(talks);
}

/** Both pages with agents of Pydantic AI behind them. */
async function talkToPydanticAi(browser) {
  const names = chosenOf(Object.keys(AGENT_SCENES));
  if (names.length === 0 || options.picture) return;
  const house = await pydanticAi.openAgents(root);
  const page = await servePage(await buildUseChat(house), await freePort());
  const folder = await buildCopilotKit();
  const urls = {};
  const servers = [page];
  for (const route of new Set(Object.values(pydanticAi.COPILOTKIT).map(({ route }) => route))) {
    const served = await serveCopilotKit(folder, house, route);
    urls[route] = served.url;
    servers.push(served);
  }
  const scenes = names.map((name) => {
    const { route, play: scene } = AGENT_SCENES[name];
    const byUseChat = `${page.resolvedUrls.local[0]}?api=/as/aisdk/to/${route}`;
    const url = name in pydanticAi.USECHAT ? byUseChat : urls[route];
    return { name: `pydantic-ai ${name}`, url, scene: (shown) => scene(shown, house) };
  });
  await play(browser, scenes);
  await Promise.all(servers.map((server) => server.close()));
  await house.close();
}

async function takePicture(browser, base) {
  const page = await browser.page();
  await page.load(`${base}?api=/as/aisdk/to/engine`);
  const talk = new usechat.Talk(page);
  await talk.say("script: tool");
  await talk.answered("`to_cents` truncates");
  await talk.say("script: approve");
  await talk.shows("bash needs your yes");
  await talk.rests();
  fs.writeFileSync(path.join(root, "docs/usechat.png"), await page.picture());
  await page.close();
}

function finish() {
  for (const child of running) child.kill("SIGKILL");
  console.log(`${((Date.now() - started) / 1000).toFixed(0)} s`);
  console.log(`${counts.passed} passed, ${counts.failed} failed`);
  process.exit(counts.failed === 0 && counts.passed > 0 ? 0 : 1);
}

async function main() {
  const port = await freePort();
  const words = ["demo", "--port", "0", "--origin", `http://localhost:${port}`];
  const demo = await startServer(root, path.join(root, ".venv/bin/dragoman"), words);
  const browser = await openBrowser(chromium);
  await talkByUseChat(browser, demo, port);
  await talkByCopilotKit(browser, demo);
  await talkToPydanticAi(browser);
  await browser.close();
  const status = await demo.stop();
  if (status !== 0) fail(`the demo ended with status ${status}\n${demo.tail.join("\n")}`);
}

if (options.list) {
  console.log(`routes: ${ROUTES.join(", ")}\n${NAMES.join("\n")}`);
  process.exit(0);
}
for (const signal of ["SIGINT", "SIGTERM"])
  process.on(signal, () => {
    fail(signal);
    finish();
  });
await main().catch((error) => fail(error.stack));
if (options.picture && counts.failed === 0) process.exit(0);
finish();
