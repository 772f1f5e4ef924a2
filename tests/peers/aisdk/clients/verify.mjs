// Reads every golden of the AI SDK as a page of each release does, by the vendor's own schema.
//
// Usage: verify.mjs FOLDER
import { readFileSync, readdirSync } from "node:fs";
import path from "node:path";
import process from "node:process";

const [, , folder] = process.argv;
/** Golden -> the releases that its form is for. */
const READERS = {
  "aisdk-5.sse": ["5.0.0", "5.0.277"],
  "aisdk.sse": ["6.0.0", "6.0.326", "7.0.0", "7.0.173"],
};

/** The streams of a golden: each is what one answer has, up to its `[DONE]`. */
const streamsOf = (file) =>
  readFileSync(file, "utf8")
    .split(/(?<=data: \[DONE\]\n\n)/)
    .filter((text) => text.includes("data: "));

/**
 * Reads a stream as a page does that goes on with `message`, and returns what that has become; a
 * failed turn is no error here. Its transport checks each chunk.
 */
async function read(ai, text, message) {
  const transport = new ai.DefaultChatTransport({ fetch: async () => new Response(text) });
  const chunks = await transport.reconnectToStream({ chatId: "golden" });
  const kept = [];
  for await (const chunk of chunks) kept.push(chunk);
  const { messageId } = kept.find(({ type }) => type === "start") ?? {};
  const failed = kept.findIndex(({ type }) => type === "error");
  const stream = ReadableStream.from(failed < 0 ? kept : kept.slice(0, failed));
  const goesOn = message !== undefined && messageId === message.id ? message : undefined;
  let newest = goesOn;
  for await (const one of ai.readUIMessageStream({
    stream,
    message: structuredClone(goesOn),
    terminateOnError: true,
  }))
    newest = one;
  return newest;
}

let failed = false;
const all = readdirSync(folder, { recursive: true });
for (const [golden, releases] of Object.entries(READERS)) {
  const files = all
    .filter((name) => path.basename(name) === golden)
    .map((name) => path.join(folder, name));
  for (const release of releases) {
    const ai = await import(`ai-${release}`);
    let wrong = 0;
    for (const file of files) {
      let message;
      try {
        for (const text of streamsOf(file)) message = (await read(ai, text, message)) ?? message;
      } catch (error) {
        wrong += 1;
        console.log(`     ${file}: ${String(error).slice(0, 400)}`);
      }
    }
    failed ||= wrong > 0 || files.length === 0;
    console.log(`${wrong ? "FAIL" : "PASS"} ai ${release} reads ${files.length} goldens`);
  }
}
process.exit(failed ? 1 : 0);
