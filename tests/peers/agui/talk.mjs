// What a person sees of a conversation in an application, and the way to it that all clients have.

/**
 * A conversation of one client. What it shows is in `shown`, line by line: each run as its new
 * messages and its end. A client's part is:
 *
 * - `messages()`: the list that its application shows,
 * - `asks()`: what the person is asked, as `{id, message, schema}`,
 * - `post(words)`, `give(answers)`: have a run; answers are `{id, payload}`,
 * - `again()`: ask for the newest answer once more, where its application has a button for that,
 * - `leave()`: stop the run,
 * - `ended`: what the newest run came to, as its application is told: `["ends"]`, or an error.
 */
export class Talk {
  shown = [];
  #known = new Map();
  /** Tells how a run ends: a subscriber of its agent. */
  ends = {
    onRunFinishedEvent: () => void this.ended.push("ends"),
    onRunErrorEvent: ({ event }) => void this.ended.push(`FAILS ${event.code}: ${event.message}`),
  };

  async say(words) {
    this.note(`USER ${words}`);
    await this.#run(() => this.post(words));
  }
  async answer(...answers) {
    await this.#run(() => this.give(answers));
  }
  /** Allows or denies what is asked, one for each. */
  async decide(...approved) {
    const asks = this.asks();
    const payload = (one) => ({ approved: one });
    await this.answer(...approved.map((one, at) => ({ id: asks[at].id, payload: payload(one) })));
  }
  async reload() {
    this.note("RELOADS");
    await this.#run(() => this.again());
  }
  note(line) {
    this.shown.push(line.replaceAll("\n", " / "));
  }
  /** The text that has come so far of the answer to the newest message. */
  get coming() {
    const messages = this.messages();
    const said = messages.findLastIndex((one) => one.role === "user");
    return messages
      .slice(said + 1)
      .map((one) => (one.role === "assistant" ? (one.content ?? "") : ""))
      .join("");
  }
  async #run(play) {
    this.ended = [];
    await play();
    this.#look();
    const asks = this.asks();
    if (this.ended.length === 0) this.ended.push("nothing");
    for (const end of new Set(this.ended)) if (asks.length === 0 || end !== "ends") this.note(end);
    for (const { message } of asks) this.note(`ASKS ${message}`);
  }
  /** Notes what is new in the list of messages. */
  #look() {
    const messages = this.messages();
    const ids = messages.map((one) => one.id);
    if (new Set(ids).size !== ids.length) this.note(`an id twice: ${ids}`);
    const names = new Map();
    for (const one of messages)
      for (const call of one.toolCalls ?? []) names.set(call.id, call.function.name);
    for (const one of messages) {
      const lines = linesOf(one, names);
      const before = this.#known.get(one.id) ?? [];
      this.#known.set(one.id, lines);
      const other = before.some((line, at) => lines[at] !== line);
      if (other) this.note(`changed: ${before.join(" / ")}`);
      else lines.splice(0, before.length);
      for (const line of lines) this.note(line);
      this.#known.set(one.id, linesOf(one, names));
    }
    for (const [id, lines] of this.#known) {
      if (ids.includes(id)) continue;
      this.note(`gone: ${lines.join(" / ")}`);
      this.#known.delete(id);
    }
  }
}

function linesOf(message, names) {
  const { role, content, toolCalls = [] } = message;
  switch (role) {
    case "user":
      return [];
    case "assistant":
      return [
        ...(content ? [`SAYS ${content}`] : []),
        ...toolCalls.map(({ function: { name, arguments: given } }) =>
          `CALLS ${name} ${told(name, given)}`,
        ),
      ];
    case "tool":
      return names.get(message.toolCallId) === ASK
        ? [] // the application's own answer
        : [`RESULT ${names.get(message.toolCallId)}: ${content}`];
    case "reasoning":
      return [`THINKS ${content}`];
    default:
      return [`${role} ${JSON.stringify(content)}`];
  }
}

/** The tool by which Dragoman asks an application whose client knows no interrupts. */
export const ASK = "dragoman_ask";

/** What a call is shown with: the words of an ask, else its arguments, which must be JSON. */
function told(name, given) {
  const values = JSON.parse(given);
  return name === ASK ? values.message : JSON.stringify(values);
}

/** Interrupts as what a person is asked. */
export function askedBy(interrupts) {
  return interrupts.map(({ id, message, responseSchema: schema }) => ({ id, message, schema }));
}

/** Answers as a `resume`. */
export function resumed(answers) {
  return answers.map(({ id, payload }) => ({ interruptId: id, status: "resolved", payload }));
}
