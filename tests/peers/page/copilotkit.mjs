// What a person does with the page of CopilotKit, and what it must show then.
import assert from "node:assert/strict";

import { until } from "./browser.mjs";

const TEXT = "Basil likes six hours of sun — a south-facing sill at the café works.";
const BUTTONS = ["Approve", "Deny"];

export class Talk {
  constructor(page) {
    this.page = page;
  }

  /** Sends words once the button for it can be pressed, which has no name: before, the page has not
   * reached its runtime. */
  async say(words) {
    await this.page.write("Type a message...", words);
    const pressed = `(() => {
      const button = document.querySelector('[data-testid="copilot-send-button"]');
      const ready = !button.disabled;
      if (ready) button.click();
      return ready;
    })()`;
    await until(() => this.page.evaluate(pressed), "the button that sends");
  }

  /** How often `words` are on the page. */
  async times(words) {
    return (await this.page.evaluate("document.body.innerText")).split(words).length - 1;
  }

  shows(words, times = 1) {
    return until(async () => (await this.times(words)) === times, `${words}, ${times} times`);
  }

  /** Waits until the question is there, and answers it with a button that is gone then. */
  async decides(button, question = "rm -rf /srv/exports/2024") {
    await this.shows(question);
    assert.equal(await this.times("dragoman_ask"), 0);
    await this.page.press(button);
  }
}

export const SCENES = {
  async copilotkit(page) {
    const talk = new Talk(page);
    await talk.say("script: approve");
    await talk.decides("Approve");
    await talk.shows("Done, 4.1 GB freed.");
    await talk.say("script: approve");
    await talk.decides("Deny");
    await talk.shows("Understood, I left /srv/exports/2024 alone.");
    await talk.shows("bash", 2);
    for (const name of BUTTONS) assert.equal(await page.count("button", name), 0);
    await talk.say("script: text");
    await talk.shows(TEXT);
    await talk.say("script: ask");
    await page.press("09:10");
    await talk.shows("Holding a seat on the 09:10.");
  },
};
