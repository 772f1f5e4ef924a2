// Chromium without a window, told what to do by the Chrome DevTools Protocol. What is pressed and
// typed into is found by its role and name, as a screen reader has them.
import { spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import process from "node:process";
import readline from "node:readline";

// Only what hangs is as slow: the machine may have much else to do.
const LIMIT_MS = 60_000;
const LOOK_EVERY_MS = 50;
const FLAGS = [
  "--headless=new",
  "--remote-debugging-port=0",
  "--no-first-run",
  "--no-default-browser-check",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-dev-shm-usage",
  "--disable-extensions",
  "--disable-gpu",
  "--disable-sync",
  "--force-color-profile=srgb",
  "--hide-scrollbars",
  "--lang=en",
];

/** Calls `look` until what it gives is not undefined, null or false, and gives that. */
export async function until(look, what) {
  const end = Date.now() + LIMIT_MS;
  for (;;) {
    const found = await look();
    if (found !== undefined && found !== null && found !== false) return found;
    if (Date.now() > end) throw new Error(`after ${LIMIT_MS} ms there is not yet: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
  }
}

/** Starts the browser; `page()` opens one with a storage of its own, `close()` ends all. */
export async function openBrowser(program) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "dragoman-chromium-"));
  // Its sandbox does not work for root.
  const words = process.getuid() === 0 ? ["--no-sandbox"] : [];
  const child = spawn(program, [...FLAGS, ...words, `--user-data-dir=${folder}`, "about:blank"], {
    stdio: ["ignore", "ignore", "pipe"],
  });
  const exited = new Promise((resolve) => {
    child.on("exit", resolve);
    child.on("error", resolve);
  });
  const said = [];
  const url = await new Promise((resolve, reject) => {
    readline.createInterface({ input: child.stderr }).on("line", (line) => {
      said.push(line);
      const match = /^DevTools listening on (\S+)/.exec(line);
      if (match) resolve(match[1]);
    });
    exited.then(() => reject(new Error(`${program} has ended:\n${said.join("\n")}`)));
  });
  const wire = await connect(url);
  return {
    async page() {
      const { browserContextId } = await wire.send("Target.createBrowserContext");
      const target = { url: "about:blank", browserContextId, width: 760, height: 700 };
      const { targetId } = await wire.send("Target.createTarget", target);
      const attach = { targetId, flatten: true };
      const { sessionId } = await wire.send("Target.attachToTarget", attach);
      const page = new Page(wire, sessionId, browserContextId);
      for (const domain of ["Page", "Runtime", "DOM", "Accessibility", "Log"])
        await page.send(`${domain}.enable`);
      return page;
    },
    async close() {
      child.kill();
      await exited;
      fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
    },
  };
}

async function connect(url) {
  const socket = new WebSocket(url);
  await new Promise((resolve, reject) => {
    socket.addEventListener("open", resolve);
    socket.addEventListener("error", () => reject(new Error(`no connection to ${url}`)));
  });
  const waiting = new Map();
  const listeners = new Map();
  let last = 0;
  socket.addEventListener("message", ({ data }) => {
    const { id, result, error, method, params, sessionId } = JSON.parse(data);
    if (id === undefined) return listeners.get(sessionId)?.(method, params);
    const { resolve, reject } = waiting.get(id);
    waiting.delete(id);
    if (error) reject(new Error(error.message));
    else resolve(result);
  });
  socket.addEventListener("close", () => {
    for (const { reject } of waiting.values()) reject(new Error("the browser has ended"));
  });
  return {
    listen: (sessionId, listener) => listeners.set(sessionId, listener),
    send(method, params = {}, sessionId) {
      last += 1;
      socket.send(JSON.stringify({ id: last, method, params, sessionId }));
      return new Promise((resolve, reject) => waiting.set(last, { resolve, reject }));
    },
  };
}

class Page {
  /** Is rejected when the page complains: exceptions, errors on its console, failed requests. */
  complained;
  /** A complaint that is meant. */
  meant = "";
  #complain;
  #wire;
  #sessionId;
  #contextId;
  #loads = 0;

  constructor(wire, sessionId, contextId) {
    this.#wire = wire;
    this.#sessionId = sessionId;
    this.#contextId = contextId;
    const { promise, reject } = Promise.withResolvers();
    promise.catch(() => {});
    this.complained = promise;
    this.#complain = (what) => {
      if (this.meant === "" || !what.includes(this.meant)) reject(new Error(what));
    };
    wire.listen(sessionId, (method, params) => this.#hear(method, params));
  }

  #hear(method, params) {
    if (method === "Page.loadEventFired") this.#loads += 1;
    if (method === "Runtime.exceptionThrown") {
      const { text, exception } = params.exceptionDetails;
      this.#complain(exception?.description ?? text);
    }
    if (method === "Runtime.consoleAPICalled" && ["error", "assert"].includes(params.type))
      this.#complain(params.args.map((arg) => arg.value ?? arg.description).join(" "));
    if (method === "Log.entryAdded" && params.entry.level === "error")
      this.#complain(`${params.entry.text} ${params.entry.url ?? ""}`);
  }

  send(method, params) {
    return this.#wire.send(method, params, this.#sessionId);
  }

  /** Loads a URL, or the same one again. */
  async load(url) {
    const before = this.#loads;
    if (url) await this.send("Page.navigate", { url });
    else await this.send("Page.reload");
    await until(() => this.#loads > before, "the loaded page");
  }

  /** The value of an expression in the page. */
  async evaluate(expression) {
    const words = { expression, returnByValue: true };
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", words);
    if (exceptionDetails) throw new Error(exceptionDetails.exception.description);
    return result.value;
  }

  /** How many elements have this role and accessible name. */
  async count(role, accessibleName) {
    return (await this.#query(role, accessibleName)).length;
  }

  async #query(role, accessibleName) {
    const expression = { expression: "document" };
    const { objectId } = (await this.send("Runtime.evaluate", expression)).result;
    const query = { objectId, role, accessibleName };
    const { nodes } = await this.send("Accessibility.queryAXTree", query);
    return nodes.filter((node) => !node.ignored);
  }

  /** Presses the one button of that name. */
  async press(name) {
    const nodes = await until(async () => {
      const found = await this.#query("button", name);
      return found.length > 0 && found;
    }, `a button ${name}`);
    if (nodes.length > 1) throw new Error(`there are ${nodes.length} buttons ${name}`);
    const { backendDOMNodeId: backendNodeId } = nodes[0];
    const { object } = await this.send("DOM.resolveNode", { backendNodeId });
    const call = { objectId: object.objectId, functionDeclaration: "function () { this.click() }" };
    await this.send("Runtime.callFunctionOn", call);
  }

  /** Types words into the field of that name. */
  async write(name, text) {
    const [{ backendDOMNodeId: backendNodeId }] = await until(async () => {
      const found = await this.#query("textbox", name);
      return found.length > 0 && found;
    }, `a field ${name}`);
    await this.send("DOM.focus", { backendNodeId });
    await this.send("Input.insertText", { text });
  }

  /** Types words into the field of that name, and presses Enter. */
  async type(name, text) {
    await this.write(name, text);
    const enter = { key: "Enter", code: "Enter", windowsVirtualKeyCode: 13, text: "\r" };
    await this.send("Input.dispatchKeyEvent", { type: "keyDown", ...enter });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...enter });
  }

  /** A picture of the whole page, as PNG. */
  async picture() {
    const { cssContentSize: size } = await this.send("Page.getLayoutMetrics");
    const words = { format: "png", captureBeyondViewport: true, clip: { ...size, scale: 1 } };
    const { data } = await this.send("Page.captureScreenshot", words);
    return Buffer.from(data, "base64");
  }

  close() {
    const context = { browserContextId: this.#contextId };
    return this.#wire.send("Target.disposeBrowserContext", context);
  }
}
