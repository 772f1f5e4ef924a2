// Opens a page with `useChat` on a session that began elsewhere, and allows what it asks.
//
// Usage: approve.mjs VERSION URL SESSION. Prints a JSON line: what the page showed, and its messages.
import process from "node:process";

import { until } from "../../driving.mjs";
import { Talk } from "../talk.mjs";
import { pages } from "./usechat.mjs";

const [, , version, url, id] = process.argv;
const { major, open } = await pages(version);
const talk = new Talk({ version: major, id, open });
// A page that has stored nothing asks for the question, too.
talk.at(url, "?on_return=replay");
await talk.open([], true);
await until("the question", () => talk.messages.length > 0 && talk.asks().length === 1);
await talk.decide(true);
const texts = talk.messages.flatMap(({ parts }) => parts.filter(({ type }) => type === "text"));
const seen = { shown: talk.shown, said: texts.map(({ text }) => text), posts: talk.posts };
talk.close();
process.stdout.write(`${JSON.stringify(seen)}\n`);
process.exit(0);
