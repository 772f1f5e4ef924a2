// What a page shows as a whole, and where Dragoman's pages are meant to show something else than those
// of the vendor's own server.
const ASK = "dragoman_ask";

/** The page as lines, under a heading; `status` and `error` are the hook's. See `Talk` for the rest. */
export function pictureOf(heading, { messages, thread, status, error, buttons }) {
  const ids = messages.map(({ id }) => id);
  return [
    `== ${heading}`,
    ...messages.flatMap(({ role, parts }) => [role, ...parts.flatMap(linesOf)]),
    ...(new Set(ids).size < ids.length ? ["an id twice"] : []),
    ...(thread ? [`thread: ${thread.join(" ")}`] : []),
    `buttons: ${buttons}`,
    status === "error" ? `error: ${error?.message ? "told" : "without words"}` : status,
  ];
}

function linesOf({ type, text, state, toolName, output }) {
  if (type === "text") return text ? [`  text ${text.replaceAll("\n", " / ")}`] : [];
  if (type === "file") return ["  file"];
  if (type !== "dynamic-tool" && !type.startsWith("tool-")) return [];
  const result = state === "output-available" ? `: ${JSON.stringify(output)}` : "";
  return [`  tool ${toolName ?? type.slice("tool-".length)} ${state}${result}`];
}

/** Takes out of a line what differs from time to time: how far an answer had come, the number of the turn. */
export const plainPicture = (line) =>
  line.replace(/^( {2}text .*) \(turn \d+\)$/, "$1").replace(/^ {2}text (tick \d+ )+ ?$/, "  text tick…");

const NO_REMOVAL = "Understood, I left /srv/exports/2024 alone.";
const NO_HOSTS = "Understood, I left /etc/hosts alone. You can add the line yourself: `10.0.0.9 build`.";
const REASON = "The person went on with another message.";
/** What assistant-ui writes into a call that it ends. */
export const ENDED = "User cancelled tool call by sending a new message.";
const ADDED = ` You added: ${REASON}`;
const SKIPPED = "Holding a seat on the (The user declined to answer.).";

/** What is shown where what the agent asks then is declined too. */
const twice = (added) => [
  `  text ${NO_REMOVAL}${added}`,
  "  tool write_file output-error",
  `  text ${NO_HOSTS}${added}`,
];

/** Script and backend -> what the agent says when what it asked is declined, or the lines that show it. */
const DECLINED = {
  "approve-twice": { herm: twice(""), "eve-s": twice(ADDED), engine: twice(ADDED) },
  approve: { herm: NO_REMOVAL, "eve-s": NO_REMOVAL + ADDED, engine: NO_REMOVAL + ADDED },
  approve2: { herm: NO_REMOVAL + NO_HOSTS, "eve-s": NO_REMOVAL + ADDED + NO_HOSTS + ADDED },
  ask: { herm: "Holding a seat on the (skipped).", "eve-s": SKIPPED, engine: SKIPPED + ADDED },
  custom: { herm: `The application says: an error, ${REASON}` },
};
/** What of these is declined by the words of the page's own library, which has ended the call. */
const ENDED_CUSTOM = `The application says: an error, ${ENDED}`;

/**
 * What is meant to differ: why, `where`, and what then `becomes` of the lines of the oracle. A cell is
 * `{client, route, script, act}`, `script` and `act` being those of a scene in which something is asked.
 */
const DIFFERENCES = [
  {
    why: "An open question that takes any words is answered by them; the vendor's server drops it.",
    where: ({ script, act }) => script === "ask" && act === "words",
    becomes: (lines) =>
      lines.map((line) =>
        line === "  text You said: “never mind”." ? "  text Holding a seat on the never mind." : line,
      ),
  },
  {
    why: "A backend has the turn that asked still open: it is told that this is declined, and says so first.",
    where: ({ script, act }) =>
      DECLINED[script] && !(act === "reload" || (script === "ask" && act === "words")),
    becomes(lines, { script, act, route }) {
      const said = script === "custom" && act === "closed" ? ENDED_CUSTOM : DECLINED[script][route];
      const place = act === "words" || act === "closed" ? 1 : 0;
      return inLaterPictures(lines, place, Array.isArray(said) ? said : [`  text ${said}`]);
    },
  },
  {
    why: "Release 5 has no approvals: beside the tool that asks stands the call that waits.",
    where: ({ client, script }) => isFive(client) && script?.startsWith("approve"),
    becomes: (lines) => besideAsks(lines, callOfFive),
  },
  {
    why: "An eve asks its questions by a call of its own, which is shown as all calls are.",
    where: ({ route, script }) => route === "eve-s" && script === "ask",
    becomes: (lines) => besideAsks(lines, (line) => [eveQuestion(line), line]),
  },
];

/** Cells that are known to be wrong: once they are right, they are to go. */
const NOT_YET = [];

/** A page of 5.0.0 that is told that nothing runs waits for ever. */
const hangs = ({ client, act }) => client === "ai 5.0.0" && act === "reload";

const isFive = (client) => /^(ai 5|useChat 2)/.test(client);

/** Adds lines to the beginning of the answer at this place, in all pictures but the first. */
function inLaterPictures(lines, place, added) {
  let picture = -1;
  let answer = -1;
  return lines.flatMap((line) => {
    if (line.startsWith("== ")) {
      picture += 1;
      answer = -1;
    }
    if (line !== "assistant") return [line];
    answer += 1;
    return picture > 0 && answer === place ? [line, ...added] : [line];
  });
}

/** Shows each group of calls that ask, one behind the other, by other lines. */
function besideAsks(lines, shown) {
  const asks = (line) => line?.startsWith(`  tool ${ASK} `);
  let asked = 0; // in the message
  return lines.flatMap((line, at) => {
    if (line === "assistant") asked = 0;
    if (!asks(line)) return [line];
    if (asks(lines[at - 1])) return [];
    const others = lines.slice(at).findIndex((one) => !asks(one));
    const pairs = lines.slice(at, at + others).map((one) => shown(one, asked++));
    return [...pairs.map(([call]) => call), ...pairs.map(([, ask]) => ask)];
  });
}

function callOfFive(line, at) {
  const call = `  tool ${["bash", "write_file"][at]}`;
  const state = line.slice(`  tool ${ASK} `.length);
  if (!state.startsWith("output-available")) return [`${call} ${state}`, line];
  return [`${call} output-available: ""`, `  tool ${ASK} output-available: {"outcome":"approved"}`];
}

function eveQuestion(line) {
  const answered = '{"answer":"09:10","status":"answered"}';
  return line.replace(ASK, "ask_question").replace(/(output-available: ).*/, `$1${answered}`);
}

/** What must be shown where the oracle has shown these lines. */
export function likeOracle(lines, cell) {
  // What breaks before the oracle is not right anywhere.
  if (cell.route === "native")
    return [...lines.slice(0, -2), hangs(cell) ? "submitted" : "ready", lines.at(-1)];
  return DIFFERENCES.filter(({ where }) => where(cell)).reduce(
    (all, { becomes }) => becomes(all, cell),
    lines,
  );
}

/** Why a cell is not right yet, if that is known. */
export const notYet = (cell) =>
  NOT_YET.find(({ where }) => cell.route !== "native" && where(cell))?.why;
