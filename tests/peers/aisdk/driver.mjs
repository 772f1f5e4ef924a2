// Joins one client, the scenarios, and the runner that started this process.
import { drive as driveCells } from "../driving.mjs";
import { SCENES, Stage } from "./scenes.mjs";
import { Talk } from "./talk.mjs";

/**
 * Plays the scenarios. `open({api, id, messages, resume, line, auto})` makes a page: `api` is the
 * URL of the chat, `id` of the conversation, `messages` what the application had stored, `resume`
 * whether it asks at once for what goes on, `line.fetch` its way to the server, and `auto` what it
 * asks whether to send by itself. See `Talk` for what it gives.
 */
export const drive = (version, open) => {
  const begin = (api, id) => new Talk({ version, api, id, open });
  return driveCells(SCENES, Stage, begin);
};
