// What must hold for every list of eve events, whoever sent it, and small questions about one.
import assert from "node:assert/strict";

const TURN_ENDS = new Set(["turn.completed", "turn.failed", "turn.cancelled"]);
const BLOCKS = [
  { name: "message", delta: "messageDelta", soFar: "messageSoFar" },
  { name: "reasoning", delta: "reasoningDelta", soFar: "reasoningSoFar" },
];

export const ofType = (events, type) => events.filter((event) => event.type === type);
export const typesOf = (events) => events.map((event) => event.type).join(" ");

/** The messages of the user, in order. */
export const received = (events) => ofType(events, "message.received").map((e) => e.data.message);

/** Every action of the events with its results: `{callId, toolName, input, results}`. */
export function actions(events) {
  const results = ofType(events, "action.result");
  return ofType(events, "actions.requested")
    .flatMap((event) => event.data.actions)
    .map((action) => ({
      ...action,
      results: results.filter((e) => e.data.result.callId === action.callId).map((e) => e.data),
    }));
}

/** The one action with that call id. */
export function theAction(events, callId) {
  const found = actions(events).filter((action) => action.callId === callId);
  assert.equal(found.length, 1, `the call ${callId} is shown once`);
  return found[0];
}

export const POSITIVE = /^(approve|yes|allow)/i;
export const NEGATIVE = /^(deny|cancel|no\b|reject)/i;

/** The id of the option of an approval that means yes (or no); ids differ between servers. */
export function optionLike(request, pattern) {
  const found = request.options.find((o) => pattern.test(o.id) || pattern.test(o.label));
  assert.ok(found, `no option like ${pattern} in ${JSON.stringify(request.options)}`);
  return found.id;
}

/**
 * Checks a log from its first event: no event twice, deltas that add up to the completed text, and
 * turns that open and close one after the other.
 *
 * `cumulative` says that the reader is of the token generation, which shows only cumulative text.
 */
export function checkLog(events, { cumulative }) {
  const ids = events.map((event) => event.meta?.id);
  assert.ok(
    ids.every((id) => typeof id === "string" && id !== ""),
    "an event has no meta.id",
  );
  assert.equal(new Set(ids).size, ids.length, "an event came twice");

  let openTurn;
  const text = { message: "", reasoning: "" };
  for (const { type, data } of events) {
    if (type === "turn.started") {
      assert.equal(openTurn, undefined, `${data.turnId} started inside of ${openTurn}`);
      openTurn = data.turnId;
    }
    if (TURN_ENDS.has(type)) {
      assert.equal(data.turnId, openTurn, `${type} of a turn that is not open`);
      openTurn = undefined;
    }
    if (type === "step.started") Object.assign(text, { message: "", reasoning: "" });
    for (const block of BLOCKS) {
      if (type === `${block.name}.appended`) {
        text[block.name] += data[block.delta];
        if (cumulative) assert.equal(typeof data[block.soFar], "string", `${type}: no cumulative`);
        if (block.soFar in data) assert.equal(data[block.soFar], text[block.name], block.soFar);
      }
      if (type === `${block.name}.completed`) {
        if (text[block.name] !== "") assert.equal(data[block.name], text[block.name], type);
        text[block.name] = "";
      }
    }
  }
  return { openTurn };
}
