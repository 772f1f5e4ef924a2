// Joins one client, the scenarios, and the runner that started this process.
import process from "node:process";

import { playAll } from "./scenes.mjs";

/**
 * Plays what the runner wants: reads `AGUI_BASE` (Dragoman), `AGUI_PLAN` (JSON, pairs of scenario
 * and route) and `AGUI_CLIENT`. `open(route, thread, {stops})` begins a conversation.
 */
export async function drive(open) {
  // What the clients tell their developers.
  console.warn = console.error = console.info = console.log = console.debug = () => {};
  const waiting = new Map();
  process.on("message", ({ type }) => {
    if (type === "back") for (const resolve of waiting.values()) resolve();
  });
  const restart = (name, route) =>
    new Promise((resolve) => {
      waiting.set(`${name} ${route}`, resolve);
      process.send({ type: "restart", name, route });
    });
  const { AGUI_BASE: base, AGUI_CLIENT: client, AGUI_PLAN: plan } = process.env;
  await playAll(JSON.parse(plan), { base, client, open, restart }, (result) =>
    process.send({ type: "result", ...result }),
  );
  process.send({ type: "end" }, () => process.exit(0));
}
