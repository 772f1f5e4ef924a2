"""Watches and gates a Hermes Agent by its hooks: what they tell becomes canonical events, and the
answer to a gated call goes back to the hook that waits.

Nothing is asked of Hermes: hooks come by themselves, in whatever order, some twice and some never.

The modules, each of which calls only those below it:

* `codec`: the contract, the time;
* `gateway`, `messages`, `tools`, `children`: a handler for each hook;
* `turns`: turns and model calls; `posts`: what Hermes is told;
* `state`: the records, and how they are stored.
"""

from adapters.hermes_agent.client.codec import HermesHooksClient
from adapters.hermes_agent.client.posts import ABILITIES

__all__ = ["ABILITIES", "HermesHooksClient"]
