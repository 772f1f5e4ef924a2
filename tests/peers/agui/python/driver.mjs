// The client of Microsoft's Agent Framework, a program in Python for each conversation.
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import path from "node:path";
import process from "node:process";
import readline from "node:readline";

import { drive } from "../driver.mjs";
import { Talk } from "../talk.mjs";

const here = import.meta.dirname;

class AgentTalk extends Talk {
  #messages = [];
  #program;
  #answers;

  constructor(url) {
    super();
    const words = [path.join(here, "agent.py"), url];
    this.#program = spawn(path.join(here, "venv/bin/python"), words, {
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.#answers = readline.createInterface({ input: this.#program.stdout })[Symbol.asyncIterator]();
  }
  messages() {
    return this.#messages;
  }
  asks() {
    return [];
  }
  async post(content) {
    this.#messages.push({ id: randomUUID(), role: "user", content });
    this.#program.stdin.write(`${JSON.stringify(content)}\n`);
    const { value, done } = await this.#answers.next();
    if (done) throw new Error("the agent has ended");
    this.#messages.push({ id: randomUUID(), role: "assistant", content: JSON.parse(value) });
    this.ended.push("ends");
  }
  leave() {
    this.#program.kill();
  }
}

await drive((route) => new AgentTalk(`${process.env.PEERS_BASE}/as/agui/to/${route}-page`));
