// Reads every golden of AG-UI with the vendor's own schemas and verifier of order, of each release.
//
// Usage: verify.mjs FOLDER
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import process from "node:process";
import { pathToFileURL } from "node:url";

const [, , folder] = process.argv;
const files = readdirSync(folder, { recursive: true })
  .filter((name) => path.basename(name) === "agui.sse")
  .map((name) => path.join(folder, name));

/**
 * A function that reads events as a release does: before 1.0 by its schemas, since then by the check
 * that its client makes, which only warns of members that it does not know.
 */
async function reader(version) {
  const entry = import.meta.resolve(`client-${version}`);
  const beside = createRequire(entry);
  const load = (name) => import(pathToFileURL(beside.resolve(name)).href);
  const { verifyEvents, enforceEvents } = await import(entry);
  const { EventSchemas } = await load("@ag-ui/core");
  const { from, lastValueFrom, toArray } = await load("rxjs");
  return async (events) => {
    if (!enforceEvents) for (const event of events) EventSchemas.parse(event);
    const enforced = enforceEvents ? from(events).pipe(enforceEvents()) : from(events);
    await lastValueFrom(enforced.pipe(verifyEvents(false), toArray()), { defaultValue: [] });
    if (warned.length > 0) throw new Error(warned.splice(0).join("; "));
  };
}

const warned = [];
console.warn = (...words) => warned.push(words.join(" "));

const eventsOf = (file) =>
  readFileSync(file, "utf8")
    .split("\n")
    .filter((line) => line.startsWith("data:"))
    .map((line) => JSON.parse(line.slice(5)));

let failed = files.length === 0;
for (const version of ["0.0.47", "0.0.59", "1.0.0"]) {
  const read = await reader(version);
  let wrong = 0;
  for (const file of files)
    await read(eventsOf(file)).catch((error) => {
      wrong += 1;
      console.log(`     ${file}: ${String(error).slice(0, 400)}`);
    });
  failed ||= wrong > 0;
  console.log(`${wrong ? "FAIL" : "PASS"} client ${version} reads ${files.length} goldens`);
}
process.exit(failed ? 1 : 0);
