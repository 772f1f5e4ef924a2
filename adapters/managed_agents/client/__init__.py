"""Drives a service of Managed Agents: commands become its requests, its events canonical events.

The modules, each of which calls only those below it:

* `codec`: the contract, the hot path of deltas, the time;
* `sends`: commands on their way;
* `replies`: what became of requests; `frames`: which handler an event has, what was seen before;
* `ends`: ends of the session;
* `work`: messages, tools, model requests, usage, errors;
* `turns`: turns of the primary thread and of children;
* `inputs`: inputs that are shown, ours and others';
* `interactions`: uses that wait for an answer;
* `lists`: the lists beside the streams; `posts`: commands as requests; `contents`: content blocks;
* `state`: the records, and how they are stored.
"""

from adapters.managed_agents.client.codec import ManagedAgentsClient
from adapters.managed_agents.client.posts import refusal

__all__ = ["ManagedAgentsClient", "refusal"]
