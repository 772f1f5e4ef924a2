// Joins one client, the scenarios, and the runner that started this process.
import { drive as driveCells } from "../driving.mjs";
import { SCENES, Stage } from "./scenes.mjs";

/** Plays the scenarios; `open(route, thread, {stops})` begins a conversation. */
export const drive = (open) => driveCells(SCENES, Stage, open);
