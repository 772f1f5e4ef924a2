"""Drives agents that speak AG-UI: Pydantic AI, LangGraph, LlamaIndex and others.

Every command that reaches one is a run, a POST to its URL with the whole conversation, and the body
of the answer is all that tells of it. Functions over one typed state (`state`), which the
dispatcher alone calls (`codec`):

* `frames`: what an event means; `work`, `snapshots` and `interrupts` have the handlers, `turns`
  what opens and ends turns;
* `posts`: what a run is asked for by; `messages`: the conversation as it is sent.
"""

from adapters.agui.client.codec import AguiClient

__all__ = ["AguiClient"]
