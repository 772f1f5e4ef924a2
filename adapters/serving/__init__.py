"""The parts that faces are built of: each is one concern of an encoder or of a request's reader.

As in `adapters.driving`, a part of an encoder is a slots dataclass of typed fields that stands in
the encoder's state, so a snapshot has it as it is. Its methods hear an event of the log and return
what follows; they never write a frame, never call another part, and know no dialect (import
contracts). The encoder decides what its protocol makes of that.

| part | its job |
|---|---|
| `inputs` | commands that belong together, and what became of each |
| `pauses` | how the main thread stands, and which requests wait for a person |
| `later` | frames that wait for the next stream |
| `tokens` | tokens of a stream, each call counted once |
| `notes` | events that a protocol has no event for, as a name and a value |
| `results` | whether the agent has just said its result in words |
| `ids` | ids that no other session has |
| `records` | which records are kept: the newest ones |

And of requests, whose bodies have the whole conversation:

| part | its job |
|---|---|
| `members` | members of a JSON body, or a refusal that names the place |
| `messages` | which messages of the person are new, and which are left out |
| `conversation` | what such a body says beside its answers, and the routes' functions about it |
| `answers` | what a payload answers: a decision, words, options |
| `prompts` | what a person reads of a request |

`cursors` are those of pages.

What a run or a stream is, its frames and cursors, and how a request is shown are the dialect's.
"""
