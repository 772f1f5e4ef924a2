// What the releases of the clients can show, and what they have shown at the end of a scenario.

const EVERY = {
  "client 0.0.47": true,
  "client 0.0.59": true,
  "client 1.0.0": true,
  copilotkit: true,
  "copilotkit react": true,
  "assistant-ui": true,
  "agent-framework 1.7.0": true,
};

const ABORTED = "FAILS abort: This operation was aborted";
const UNADDRESSED = "Thread has 1 pending interrupt(s) not addressed by resume: ID";

/** Ability -> the sections of the page of AG-UI that tell of it, and client -> how it has it. */
export const TABLE = {
  text: { page: "4, 5.4", ...EVERY },
  reasoning: { page: "1, 4", ...EVERY },
  tools: { page: "7", ...EVERY },
  /** A failed tool has no form of its own: it is text. */
  failedTools: { page: "7", ...EVERY },
  /** Where a result stands: with its call, behind the message with its call, or where it came. */
  results: {
    page: "5.4",
    "client 0.0.47": "where it came",
    "client 0.0.59": "behind its call",
    "client 1.0.0": "behind its call",
    copilotkit: "behind its call",
    "copilotkit react": "behind its call",
    "assistant-ui": "with its call",
  },
  /** What is asked: as calls of a tool, as interrupts, or as both where the release is unknown. */
  asks: {
    page: "1, 2.1, 8.2, 8.4",
    "client 0.0.47": ["calls"],
    "client 0.0.59": ["calls", "interrupts"],
    "client 1.0.0": ["interrupts"],
    copilotkit: ["calls", "interrupts"],
    "copilotkit react": ["calls", "interrupts"],
    "assistant-ui": ["calls", "interrupts"],
  },
  /** An answer to one of two: sent, kept until there is the other, or refused by the client in its words. */
  partly: {
    page: "8.2, 8.4",
    "client 0.0.47": "sent",
    "client 0.0.59": `REFUSED ${UNADDRESSED}`,
    "client 1.0.0": `REFUSED ${UNADDRESSED}`,
    copilotkit: `ERROR agent_run_failed: ${UNADDRESSED}`,
    "copilotkit react": "kept",
    "assistant-ui":
      "REFUSED [agui] submitInterruptResponses: missing responses for open interrupts: ID",
  },
  /** How an application is told of `RUN_ERROR`. */
  errors: {
    page: "2.3",
    "client 0.0.47": ["FAILS CODE: WORDS"],
    "client 0.0.59": ["FAILS CODE: WORDS"],
    "client 1.0.0": ["FAILS CODE: WORDS"],
    copilotkit: ["FAILS CODE: WORDS", "ERROR agent_run_error_event: WORDS"],
    "copilotkit react": ["FAILS CODE: WORDS", "ERROR agent_run_error_event: WORDS"],
    // To its application, and below the message.
    "assistant-ui": ["FAILS CODE: WORDS", "ERROR WORDS"],
  },
  /** A request with a thread of its own and all that was said. */
  histories: { page: "5.4", ...EVERY },
  /** A stop by the person: the partial text stays, and the client itself makes the error. */
  stops: {
    page: "10",
    "client 0.0.47": ABORTED,
    "client 0.0.59": ABORTED,
    "client 1.0.0": ABORTED,
    copilotkit: ABORTED,
    "copilotkit react": ABORTED,
    "assistant-ui": "ERROR This operation was aborted",
  },
  /** A button that asks for the newest answer once more. */
  reloads: { page: "5.4", "assistant-ui": true },
};

const THINKS = "THINKS The failing test is about rounding. Look at the helper before guessing.";
const ROUNDING = "SAYS `to_cents` truncates instead of rounding, so 19.99 becomes 1998. (turn 1)";
const basil = (turn) => [
  "USER script: text",
  `SAYS Basil likes six hours of sun — a south-facing sill at the café works. (turn ${turn})`,
  "ends",
];
const LOOKS = [
  THINKS,
  "SAYS Checking the rounding helper.",
  'CALLS read_file {"path":"/workspace/src/money.py"}',
  "RESULT read_file: def to_cents(x): /     return int(x * 100) / ",
];
const TOOL = ["USER script: tool", ...LOOKS, ROUNDING, "ends"];

/** What is asked, by the backend that asks: as the calls or interrupts that a client shows. */
const BASH = 'bash {"command":"rm -rf /srv/exports/2024"}';
const HOSTS = 'write_file {"path":"/etc/hosts","content":"10.0.0.9 build\\n"}';
const removing = (route) =>
  route === "herm" ? "rm -rf /srv/exports/2024" : "Run `rm -rf /srv/exports/2024`?";
const writing = (route) => {
  const words = route === "herm" ? "Allow `write_file`?" : "Write to /etc/hosts?";
  // What they do not say of the call is added.
  return `${words} / ${HOSTS.replace(" ", ": ")}`;
};
const asks = (can, ...words) => [
  ...(can.asks.includes("calls") ? words.map((one) => `CALLS dragoman_ask ${one}`) : []),
  ...words.map((one) => `ASKS ${one}`),
];

/** The lines of a run that has failed. */
const fails = (can, code, words) =>
  can.errors.map((line) => line.replace("CODE", code).replace("WORDS", words));

const TO_REMOVE = "SAYS The old export is 4 GB; removing it frees the disk.";
const approval = (can, route) => [
  "USER script: approve",
  TO_REMOVE,
  `CALLS ${BASH}`,
  ...asks(can, removing(route)),
];
const DONE = "SAYS  Done, 4.1 GB freed. (turn 1)";
const APPROVED = ["RESULT bash: ", DONE, "ends"];
/** Backend -> the result of a call that a person has denied. */
const DENIED = {
  herm: "permission denied",
  "eve-s":
    '{"approval":{"requestId":"ID","status":"denied"},"code":"TOOL_EXECUTION_DENIED",' +
    '"message":"Tool execution was denied.","tool":{"result":"not_run"}}',
  engine: "Denied: permission_denied",
};
const LEFT_ALONE = "Understood, I left /srv/exports/2024 alone.";
const NOT_WRITTEN =
  "Understood, I left /etc/hosts alone. You can add the line yourself: `10.0.0.9 build`. (turn 1)";

/** Two approvals: herm and eve ask both at once, and engine one after the other. */
function partly(can, route) {
  const begin = ["USER script: approve2", "SAYS Two things need a go-ahead.", `CALLS ${BASH}`];
  if (route === "engine")
    return [
      ...begin,
      ...asks(can, removing(route)),
      "RESULT bash: ",
      "SAYS  Done, 4.1 GB freed.",
      `CALLS ${HOSTS}`,
      ...asks(can, writing(route)),
      `RESULT write_file: ${DENIED[route]}`,
      `SAYS ${NOT_WRITTEN}`,
      "ends",
    ];
  const both = [...begin, `CALLS ${HOSTS}`, ...asks(can, removing(route), writing(route))];
  const removed = (result) => `RESULT bash: ${result}`;
  const kept = `RESULT write_file: ${DENIED[route]}`;
  if (can.partly === "sent" || can.partly === "kept")
    return [
      ...both,
      ...(can.partly === "kept" ? ["nothing"] : []),
      `ASKS ${writing(route)}`,
      ...done(can, route, [removed(""), " Done, 4.1 GB freed."], [kept, NOT_WRITTEN]),
    ];
  // The client lets nothing go before both are answered; then both are denied.
  return [
    ...both,
    can.partly,
    `ASKS ${removing(route)}`,
    `ASKS ${writing(route)}`,
    ...done(can, route, [removed(DENIED[route]), LEFT_ALONE], [kept, NOT_WRITTEN]),
  ];
}

/** The end of a turn with two results, each with what the agent says of it. */
function done(can, route, [first, one], [second, other]) {
  if (route === "eve-s") {
    // All words are one text, and what is denied has its result before anything runs.
    const results = first.includes("denied") ? [first, second] : [second, first];
    return [...results, `SAYS ${one}${other}`, "ends"];
  }
  if (can.results === "where it came")
    return [first, `SAYS ${one}`, second, `SAYS ${other}`, "ends"];
  return [first, second, `SAYS ${one}`, `SAYS ${other}`, "ends"];
}

const ASK_QUESTION =
  'ask_question {"question":"Which departure do you prefer?",' +
  '"options":[{"label":"07:40","description":"07:40"},{"label":"09:10","description":"09:10"}]}';

const AUDITED = [
  "RESULT read_file: DROP TABLE u; / ",
  "RESULT read_file: CREATE TABLE t (id int); / ",
];

/** Scenario -> the abilities that it shows, and the lines that must stand there in the end. */
const SHOWN = {
  text: [["text"], () => basil(1)],
  reasoning: [["reasoning"], () => ["USER script: reason", THINKS, ROUNDING, "ends"]],
  tool: [["reasoning", "tools"], () => TOOL],
  tools: [
    ["tools", "results"],
    (can) => [
      "USER script: tools",
      "SAYS Starting the audit.",
      'CALLS read_file {"path":"/workspace/a.sql"}',
      'CALLS read_file {"path":"/workspace/b.sql"}',
      // The second call is the first to have one.
      ...(can.results === "with its call" ? AUDITED.toReversed() : AUDITED),
      "SAYS One risk found: b.sql drops table u without a guard. (turn 1)",
      "ends",
    ],
  ],
  toolfail: [
    ["failedTools"],
    () => [
      "USER script: toolfail",
      "SAYS Reading the thread.",
      'CALLS gmail.read_thread {"thread":"t-9"}',
      "RESULT gmail.read_thread: connector token expired",
      "SAYS The mail connector must be connected again. (turn 1)",
      "ends",
    ],
  ],
  approve: [["asks"], (can, route) => [...approval(can, route), ...APPROVED]],
  deny: [
    ["asks", "failedTools"],
    (can, route) => [
      ...approval(can, route),
      `RESULT bash: ${DENIED[route]}`,
      `SAYS ${LEFT_ALONE} (turn 1)`,
      "ends",
    ],
  ],
  "approve-partly": [["asks", "partly", "results"], partly],
  question: [
    ["asks"],
    (can, route) => [
      "USER script: ask",
      "SAYS Two trains fit. ",
      ...(route === "eve-s" ? [`CALLS ${ASK_QUESTION}`] : []),
      ...asks(can, "Which departure do you prefer?"),
      ...(route === "eve-s" ? ['RESULT ask_question: {"answer":"09:10","status":"answered"}'] : []),
      "SAYS Holding a seat on the 09:10. (turn 1)",
      "ends",
    ],
  ],
  "follow-up": [["text", "tools"], () => [...TOOL, ...basil(2)]],
  reload: [
    ["tools", "reloads"],
    () => [
      ...TOOL,
      // What is asked for again is the whole turn; the message before stays.
      "RELOADS",
      ...LOOKS,
      ROUNDING.replace("turn 1", "turn 2"),
      `gone: ${ROUNDING}`,
      "ends",
      ...basil(3),
    ],
  ],
  "reload-approved": [
    ["asks", "reloads"],
    (can, route) => [
      ...approval(can, route),
      ...APPROVED,
      "RELOADS",
      ...approval(can, route).slice(1, -1),
      `gone: ${DONE}`,
      `ASKS ${removing(route)}`,
      `RESULT bash: ${DENIED[route]}`,
      `SAYS ${LEFT_ALONE} (turn 2)`,
      "ends",
    ],
  ],
  failing: [
    ["errors"],
    (can, route) => {
      const code = "LLM_PROVIDER_ERROR";
      const words = "The model provider failed while generating.";
      return [
        "USER script: failmid",
        "SAYS The first lighthouse was built on ",
        // Herm has a line of text for an error.
        ...(route === "herm" ? fails(can, "error", `${code}: ${words}`) : fails(can, code, words)),
        ...basil(2),
      ];
    },
  ],
  stop: [
    ["stops"],
    (can, route) => [
      "USER script: slow",
      "SAYS tick…",
      can.stops,
      // The Engine has no way to stop a turn.
      route === "engine" ? "AGENT went on" : "AGENT stopped",
      ...basil(2),
    ],
  ],
  "approved-elsewhere": [
    ["asks"],
    (can, route) => [...approval(can, route), ...APPROVED, ...basil(2)],
  ],
  "own-history": [
    ["histories"],
    () => [
      "USER script: tool",
      `SAYS Checking the rounding helper.${ROUNDING.slice("SAYS ".length)}`,
      "ends",
      "USER hello",
      "SAYS You said what was said before, and: hello (turn 1)",
      "ends",
    ],
  ],
  restart: [
    ["errors"],
    (can) => [
      "USER script: slow",
      "SAYS tick…",
      ...fails(
        can,
        "incomplete",
        "The connection to the agent ended before the run did; read the thread again.",
      ),
      "AGENT went on",
      ...basil(2),
    ],
  ],
  "restart-asked": [["asks"], (can, route) => [...approval(can, route), ...APPROVED]],
};

/** What a client must have shown, and the sections that say what it can. */
export function expected(name, client, route) {
  const [abilities, shows] = SHOWN[name];
  const can = Object.fromEntries(Object.entries(TABLE).map(([what, row]) => [what, row[client]]));
  const pages = abilities.flatMap((what) => TABLE[what].page.split(", "));
  return { page: [...new Set(pages)].join(", "), shows: shows(can, route) };
}

/** Takes out of a line what differs from time to time: ids, and how far an answer had come. */
export function plain(line) {
  return line
    .replace(/\b(toolu|aitxt|hitl)[-_][\w-]+/g, "ID")
    .replace(/^(USER script: slow) \d+$/, "$1")
    .replace(/^SAYS (tick \d+ )+$/, "SAYS tick…")
    .replace(
      /^SAYS You said: “.* User: script: tool .* Assistant: `to_cents` .* hello”\. /,
      "SAYS You said what was said before, and: hello ",
    );
}
