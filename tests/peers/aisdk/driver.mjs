// Joins one client, the scenarios, and the runner that started this process.
import { drive as driveCells } from "../driving.mjs";
import { SCENES, Stage } from "./scenes.mjs";
import { Talk } from "./talk.mjs";

/**
 * Plays the scenarios. `open({transport, id, messages, resume, may})` makes a page: `transport` has the
 * options of its way to the server, `id` is that of the conversation, `messages` what the application had
 * stored, `resume` whether it asks at once for what goes on, and `may` what it asks whether to send by
 * itself. See `Talk` for what it gives.
 */
export const drive = (version, open) => {
  const begin = (id) => new Talk({ version, id, open });
  return driveCells(SCENES, Stage, begin);
};
