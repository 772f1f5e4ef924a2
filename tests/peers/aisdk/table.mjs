// What the releases can show, and what their pages have shown at the end of a scenario.

const CLIENTS = [
  "ai 5.0.0",
  "ai 5.0.277",
  "ai 6.0.0",
  "ai 6.0.326",
  "ai 7.0.0",
  "ai 7.0.173",
  "useChat 2.0.280",
  "useChat 3.0.328",
  "useChat 4.0.177",
  "assistant-ui 1.4.12",
];
const FIVE = ["ai 5.0.0", "ai 5.0.277", "useChat 2.0.280"];
/** Releases that take up the last message of an assistant when they resume (generation A). */
const ADOPTING = ["ai 5.0.0", "ai 6.0.0", "ai 7.0.0"];

/** A row where some releases differ from the others. */
const unlike = (some, theirs, others) =>
  Object.fromEntries(CLIENTS.map((client) => [client, some.includes(client) ? theirs : others]));
const all = (how) => unlike([], how, how);

/**
 * Ability -> the sections of the page of the AI SDK that tell of it with its words in short, and
 * client -> how it has it.
 */
export const TABLE = {
  text: { page: "7 text", ...all(true) },
  reasoning: { page: "5.1 reasoning in all releases", ...all(true) },
  /** No page posts again by itself after calls that the backend ran. */
  tools: { page: "7 tools, 8.1 a step with text behind the calls: one POST", ...all(true) },
  failedTools: { page: "8 output-error", ...all(true) },
  /** What is asked: as an approval of a call, or as a call of a tool of the page. */
  asks: {
    page: "9 release 5 has no approvals: ask with a page-side tool",
    ...unlike(FIVE, "calls", "approvals"),
  },
  /** What comes of a call that is denied. */
  denials: {
    page: "5.1 tool-output-denied since 6",
    ...unlike(FIVE, "an error", "denied"),
  },
  /** What has been answered waits until all of the last step is. */
  partly: { page: "8.1 predicates, 9 nothing is sent until all are answered", ...all(true) },
  questions: { page: "9 questions: no chunk of their own, a page-side tool", ...all(true) },
  errors: { page: "11 error chunk: its text", ...all(true) },
  stops: { page: "11 stop(): ready, the text kept", ...all(true) },
  /** What a page does when nothing runs. */
  idle: {
    page: "10 204: nothing visible; 5.0.0 hangs in submitted",
    ...unlike(["ai 5.0.0"], "stays submitted", "ends"),
  },
  replays: { page: "10.1 list ends with the user message: right", ...all(true) },
  /** What a page makes of a replay that had a part of the message stored. */
  stored: {
    page: "10.1 partial message stored, same id: A doubles, B, C and D replace",
    ...unlike(ADOPTING, "doubled", "replaced"),
  },
};

const THINKS = "THINKS The failing test is about rounding. Look at the helper before guessing.";
const ROUNDING = "SAYS `to_cents` truncates instead of rounding, so 19.99 becomes 1998. (turn 1)";
const basil = (turn) => [
  "USER script: text",
  `SAYS Basil likes six hours of sun — a south-facing sill at the café works. (turn ${turn})`,
  "ends",
];
const TOOL = [
  "USER script: tool",
  THINKS,
  "SAYS Checking the rounding helper.",
  'CALLS read_file {"path":"/workspace/src/money.py"}',
  "RESULT read_file: def to_cents(x): /     return int(x * 100) / ",
  ROUNDING,
  "ends",
];
const posts = (times) => `POSTS ${times}`;

const BASH = 'CALLS bash {"command":"rm -rf /srv/exports/2024"}';
const HOSTS = 'CALLS write_file {"path":"/etc/hosts","content":"10.0.0.9 build\\n"}';
/** What is asked, by the backend that asks. */
const removing = (route) =>
  route === "herm" ? "rm -rf /srv/exports/2024" : "Run `rm -rf /srv/exports/2024`?";
const writing = (route) => (route === "herm" ? "Allow `write_file`?" : "Write to /etc/hosts?");

/** Calls that wait for an answer, as pairs of the call and what is asked. */
function asks(can, ...pairs) {
  const name = (call) => call.split(" ")[1];
  if (can.asks === "calls")
    return [
      ...pairs.map(([call]) => call),
      ...pairs.flatMap(([, words]) => [`ASKS ${words}`, `OPEN ${words}`]),
    ];
  return [
    ...pairs.flatMap(([call]) => [call, `ASKS for ${name(call)}`]),
    ...pairs.map(([, words]) => `OPEN ${words}`),
  ];
}

/** Backend -> why a call was not run that a person has denied. */
const REASONS = { herm: "permission denied", "eve-s": "Tool execution was denied.", engine: "permission_denied" };
const denied = (can, route, name) =>
  can.denials === "denied"
    ? `RESULT ${name} is denied`
    : `RESULT ${name} is an error: Denied: ${REASONS[route]}`;

// The chunk of a denial has no place for words.
const why = (can, route) => (can.denials === "denied" ? [`TOLD ${REASONS[route]}`] : []);

const TO_REMOVE = "SAYS The old export is 4 GB; removing it frees the disk.";
const approval = (can, route) => [TO_REMOVE, ...asks(can, [BASH, removing(route)])];
const asking = (can, route) => ["USER script: approve", ...approval(can, route)];
const approved = (route) => [
  "RESULT bash: ",
  `CLOSED approved: ${removing(route)}`,
  "SAYS  Done, 4.1 GB freed. (turn 1)",
  "ends",
];

const NOT_WRITTEN =
  "Understood, I left /etc/hosts alone. You can add the line yourself: `10.0.0.9 build`. (turn 1)";

/** Two approvals: herm and eve ask both at once, and engine one after the other. */
function partly(can, route) {
  const begin = ["USER script: approve2", "SAYS Two things need a go-ahead."];
  if (route === "engine")
    return [
      ...begin,
      ...asks(can, [BASH, removing(route)]),
      "RESULT bash: ",
      `CLOSED approved: ${removing(route)}`,
      "SAYS  Done, 4.1 GB freed.",
      ...asks(can, [HOSTS, writing(route)]),
      denied(can, route, "write_file"),
      `CLOSED denied: ${writing(route)}`,
      ...why(can, route),
      `SAYS ${NOT_WRITTEN}`,
      "ends",
      posts(3),
    ];
  return [
    ...begin,
    ...asks(can, [BASH, removing(route)], [HOSTS, writing(route)]),
    ...(can.asks === "approvals" ? ["ANSWERED bash"] : []),
    "nothing is sent",
    "RESULT bash: ",
    denied(can, route, "write_file"),
    `CLOSED approved: ${removing(route)}`,
    `CLOSED denied: ${writing(route)}`,
    ...(route === "herm" ? [] : why(can, route)),
    `SAYS  Done, 4.1 GB freed.${NOT_WRITTEN}`,
    // A Herm runs the second tool behind what it says of the first.
    ...(route === "herm" ? why(can, route) : []),
    "ends",
    posts(2),
  ];
}

const SLOW = "USER script: slow";
const DEPARTURE = "Which departure do you prefer?";
const NAME = "Which name shall the ticket carry?";
const question = (words) => [`ASKS ${words}`, `OPEN ${words}`];
const ASK_QUESTION =
  `CALLS ask_question {"question":"${DEPARTURE}",` +
  '"options":[{"label":"07:40","description":"07:40"},{"label":"09:10","description":"09:10"}]}';

const STOPPED = (route) => (route === "engine" ? "AGENT went on" : "AGENT stopped");

/** Scenario -> the abilities that it shows, and the lines that must stand there in the end. */
const SHOWN = {
  text: [["text"], () => [...basil(1), posts(1)]],
  reasoning: [
    ["reasoning"],
    () => ["USER script: reason", THINKS, ROUNDING, "ends", posts(1)],
  ],
  tool: [["reasoning", "tools"], () => [...TOOL, posts(1)]],
  tools: [
    ["tools"],
    () => [
      "USER script: tools",
      "SAYS Starting the audit.",
      'CALLS read_file {"path":"/workspace/a.sql"}',
      "RESULT read_file: CREATE TABLE t (id int); / ",
      'CALLS read_file {"path":"/workspace/b.sql"}',
      "RESULT read_file: DROP TABLE u; / ",
      "SAYS One risk found: b.sql drops table u without a guard. (turn 1)",
      "ends",
      posts(1),
    ],
  ],
  toolfail: [
    ["failedTools"],
    () => [
      "USER script: toolfail",
      "SAYS Reading the thread.",
      'CALLS gmail.read_thread {"thread":"t-9"}',
      "RESULT gmail.read_thread is an error: connector token expired",
      "SAYS The mail connector must be connected again. (turn 1)",
      "ends",
      posts(1),
    ],
  ],
  approve: [["asks"], (can, route) => [...asking(can, route), ...approved(route), posts(2)]],
  deny: [
    ["asks", "denials"],
    (can, route) => [
      ...asking(can, route),
      denied(can, route, "bash"),
      `CLOSED denied: ${removing(route)}`,
      ...why(can, route),
      "SAYS Understood, I left /srv/exports/2024 alone. (turn 1)",
      "ends",
      posts(2),
    ],
  ],
  "approve-partly": [["asks", "denials", "partly"], partly],
  question: [
    ["questions"],
    (_, route) => [
      "USER script: ask",
      "SAYS Two trains fit. ",
      ...(route === "eve-s" ? [ASK_QUESTION] : []),
      ...question(DEPARTURE),
      ...(route === "eve-s" ? ['RESULT ask_question: {"answer":"09:10","status":"answered"}'] : []),
      `CLOSED answered: ${DEPARTURE}`,
      "SAYS Holding a seat on the 09:10. (turn 1)",
      "ends",
      posts(2),
    ],
  ],
  "question-by-words": [
    ["questions"],
    (_, route) => [
      "USER script: askopen",
      "SAYS One thing is missing. ",
      ...(route === "eve-s" ? [`CALLS ask_question {"question":"${NAME}"}`] : []),
      ...question(NAME),
      "USER Ada",
      `CLOSED answered: ${NAME}`,
      // A result may only stand in the message of its call.
      ...(route === "eve-s" ? ['TOLD {"answer":"Ada","status":"answered"}'] : []),
      "SAYS The ticket carries the name Ada. (turn 1)",
      "ends",
      posts(2),
    ],
  ],
  "follow-up": [["text", "tools"], () => [...TOOL, ...basil(2), posts(2)]],
  failing: [
    ["errors"],
    (_, route) => {
      const code = "LLM_PROVIDER_ERROR";
      const words = "The model provider failed while generating.";
      return [
        "USER script: failmid",
        "SAYS The first lighthouse was built on ",
        // Eve and Engine tell of an error before the turn fails; Herm has one line of text for both.
        ...(route !== "herm" ? [`TOLD ${code}: ${words}`] : []),
        `CODE ${route === "herm" ? "error" : code}`,
        `FAILS ${route === "herm" ? `${code}: ` : ""}${words}`,
        ...basil(2),
        posts(2),
      ];
    },
  ],
  stop: [
    ["stops"],
    (_, route) => [
      SLOW,
      "SAYS tick… (unfinished)",
      "ends",
      // The Engine has no way to stop a turn.
      STOPPED(route),
      ...basil(2),
      posts(2),
    ],
  ],
  "stop-asked": [
    ["text"],
    (_, route) => [
      SLOW,
      route === "engine"
        ? "STOP engine: `interrupt` is impossible: the Engine has no route that stops a turn"
        : 'STOP {"success":true}',
      `SAYS tick…${route === "engine" ? " (turn 1)" : ""}`,
      "ends",
      STOPPED(route),
      ...basil(2),
      posts(2),
    ],
  ],
  compressed: [
    ["text"],
    (_, route) => [
      SLOW,
      "AGENT is running",
      `SAYS tick…${route === "engine" ? " (turn 1)" : ""}`,
      "ends",
      posts(1),
    ],
  ],
  reload: [
    ["replays"],
    () => [
      SLOW,
      "RELOADS",
      "SAYS tick… (turn 1)",
      "ends",
      "AGENT went on",
      ...basil(2),
      posts(2),
    ],
  ],
  "reload-partly": [
    ["stored"],
    (can) => [
      SLOW,
      "RELOADS",
      "SAYS tick… (turn 1)",
      ...(can.stored === "replaced" ? ["gone: SAYS tick… (unfinished)"] : []),
      "ends",
      "AGENT went on",
      posts(1),
    ],
  ],
  "reload-asked": [
    ["replays", "asks"],
    (can, route) => [
      ...asking(can, route),
      "RELOADS",
      ...approval(can, route),
      ...approved(route),
      posts(2),
    ],
  ],
  "reload-idle": [
    ["idle"],
    (can) => [...basil(1), "RELOADS", can.idle, ...basil(2), posts(2)],
  ],
  "approved-elsewhere": [
    ["asks"],
    (can, route) => [...asking(can, route), ...approved(route), ...basil(2), posts(3)],
  ],
  "approved-elsewhere-reload": [
    ["asks", "replays"],
    (can, route) => [
      ...asking(can, route),
      "RELOADS",
      TO_REMOVE,
      BASH,
      ...approved(route),
      ...basil(2),
      posts(2),
    ],
  ],
  restart: [
    ["errors", "replays"],
    () => [
      SLOW,
      "SAYS tick… (unfinished)",
      "FAILS The connection to the agent ended before the answer did; load the page again.",
      "RELOADS",
      "SAYS tick… (turn 1)",
      "ends",
      "AGENT went on",
      ...basil(2),
      posts(2),
    ],
  ],
  "restart-asked": [
    ["asks"],
    (can, route) => [...asking(can, route), ...approved(route), posts(2)],
  ],
};

/** What a client must have shown, and what the page says of what it can. */
export function expected(name, client, route) {
  const [abilities, shows] = SHOWN[name];
  const can = Object.fromEntries(Object.entries(TABLE).map(([what, row]) => [what, row[client]]));
  return { page: abilities.map((what) => TABLE[what].page).join("; "), shows: shows(can, route) };
}

/** Takes out of a line what differs from time to time: how far an answer had come. */
export function plain(line) {
  return line
    .replace(/^(USER script: slow) \d+$/, "$1")
    .replace(/^(gone: )?SAYS (tick \d+ )+ ?/, "$1SAYS tick… ")
    .replace(/ $/, (end) => (line.includes("SAYS tick") ? "" : end))
    .replace(/ \(engine page, .*\)$/, "");
}
