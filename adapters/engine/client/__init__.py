"""Drives a September Engine: commands become its four requests, its event stream canonical events.

A turn is one `POST /execute`, whose body is the stream. When that body is lost the turn goes on in
the Engine, and the rest comes from `GET /execute/replay` (section 11). Replay is by time and deltas
carry none, so the codec remembers how far it has read, and `adapters.engine.alignment` finds that
place in what replay repeats; where it cannot, that is a `gap`, never a guess.

What the Engine does not say and other dialects need is inferred here, and marked: model calls
(`usage` ends one), the end of a block, and whether a tool needs permission (a call is held for
250 ms, or until something shows).

The modules, each of which calls only those below it:

* `codec`: the contract, the hot path of deltas, the time;
* `replies`: what became of requests; `frames`: which handler a frame has, what is held, what is
  late;
* `turn_end`: the ends of a turn;
* `work`: text, tools, usage; `posts`: commands as requests;
* `interactions`: requests to a person, and their answers;
* `early_results`: results before their calls;
* `turns`: turns, steps, blocks; `streams`: live bodies and replays;
* `state`: the records, and how they are stored.
"""

from adapters.engine.client.codec import EngineClient
from adapters.engine.client.interactions import APPROVAL_OPTIONS
from adapters.engine.client.posts import ABILITIES
from adapters.engine.client.replies import refusal

__all__ = ["ABILITIES", "APPROVAL_OPTIONS", "EngineClient", "refusal"]
