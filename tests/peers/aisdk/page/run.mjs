// Builds and serves docs/examples/usechat in front of `dragoman demo`, and uses it in Chromium.
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

import { running, startServer } from "../../house.mjs";
import { openBrowser } from "./browser.mjs";
import { minimal, ONLY, SCENES, Talk } from "./scenes.mjs";

const ROUTES = ["herm", "eve", "engine"];

const [root, chromium] = process.argv.slice(2, 4);
const example = path.join(import.meta.dirname, "../usechat");
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

/** Builds the page and serves it as its own `npm run preview` does; gives its URL. */
async function servePage() {
  const vite = createRequire(path.join(example, "package.json")).resolve("vite");
  const { build, preview } = await import(pathToFileURL(vite));
  await build({ root: example, logLevel: "error" });
  const server = await preview({
    root: example,
    logLevel: "error",
    preview: { host: "127.0.0.1", port: 0 },
  });
  return { url: server.resolvedUrls.local[0], close: () => server.close() };
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

async function converse(browser, base) {
  const names = chosen("only", [...Object.keys(SCENES), "minimal"]);
  const scenesOf = (route) =>
    names
      .filter((name) => ONLY[name]?.includes(route) ?? true)
      .map((name) => ({
        name: `${route} ${name}`,
        url: name === "minimal" ? `${base}?minimal` : `${base}?api=/as/aisdk/to/${route}`,
        scene: name === "minimal" ? minimal : (page) => SCENES[name](new Talk(page, route)),
      }));
  await Promise.all(chosen("route", ROUTES).map((route) => play(browser, scenesOf(route))));
}

async function takePicture(browser, base) {
  const page = await browser.page();
  await page.load(`${base}?api=/as/aisdk/to/engine`);
  const talk = new Talk(page);
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
  const words = ["demo", "--port", "0"];
  const demo = await startServer(root, path.join(root, ".venv/bin/dragoman"), words);
  process.env.DRAGOMAN_URL = demo.url;
  const [page, browser] = await Promise.all([servePage(), openBrowser(chromium)]);
  if (options.picture) await takePicture(browser, page.url);
  else await converse(browser, page.url);
  await browser.close();
  page.close();
  const status = await demo.stop();
  if (status !== 0) fail(`the demo ended with status ${status}\n${demo.tail.join("\n")}`);
}

if (options.list) {
  console.log(`routes: ${ROUTES.join(", ")}\n${Object.keys(SCENES).join("\n")}\nminimal`);
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
