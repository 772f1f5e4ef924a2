// Plays the scenarios on pages that use `useChat` of `@ai-sdk/react`.
import process from "node:process";

import { drive } from "../driver.mjs";
import { pages } from "./usechat.mjs";

const [, , version] = process.argv;
const { major, open } = await pages(version);
await drive(major, open);
