"""The parts that client codecs are built of: each is one concern as one small state machine.

A client codec is a dispatcher over parts. A part is a slots dataclass of typed fields, which is its
whole state and goes into the codec's stored state as it is, with methods that hear what happened
and return what follows. Parts never call each other, and none knows a dialect (import contracts):
only the codec and its own modules call them. So what is true of a part can be read in one file, and
is tested as a table: state, what is heard, what follows.

| part | its job | who uses it |
|---|---|---|
| `ledger` | what was sent to the backend, until its fate and its receipt are known | Engine, eve |
| `echoes` | the same where one command posts several inputs, each with an echo | Herm |
| `queue` | messages to a backend that takes one at a time | Herm |
| `doubts` | inputs whose answer was lost, until a list tells what became of them | Engine, Herm |
| `silence` | the same without a list: until the stream was silent for long enough | eve |
| `asks` | open interactions, and what was answered to them | Engine, eve, Herm |
| `held` | tool calls that wait until their permission is known | Engine, eve |
| `again` | what was refused for now, or waits for something else, and when it is sent | Herm, eve |

For backends that answer each request with one run and remember nothing, as agents of AG-UI, two
modules are made of these: `runs` has the run that is under way and the answers that are gathered
for the next one, and `transcript` the conversation as it is sent each time.

**How a part hears.** By methods with the names of what it hears, each of which only the parts have
that it concerns. The first sketch had one set of transitions for all (a stream opened, a turn is
over, the connection is lost), which the codec would hand to every part. The three codecs show that
the order of the events that follow is the dialect's: at the end of a turn an Engine lets held calls
go, resolves what was answered, ends the step and then the turn, while an eve decides the calls,
waits for the boundary and resolves what it can infer. A broadcast has one order.

**Time.** A part that waits says until when (`CodecPart.due`), and `soonest` of all dues is the
codec's `wake_at`: nothing else keeps a deadline. What is to be done then is the part's own method,
since it differs: `held` lets events go, `doubts` names the inputs that are to be looked for now,
and the codec makes the dialect's request of each. A part knows no request, so the calls of a
`PartOutput` come from a codec's modules.

**What is stored.** All fields of a part. What concerns a connection begins anew after a restart: it
is not a field (`UncertainInputs.looking`), or is handed in. A changed field is a new version of
every state that holds the part.

A Herm's state has the fields of its parts among its own, under names of its own: `asks`, `echoes`
and `queue` are made over them. What a part needs of a record is a protocol, which both the part's
own record and a dialect's have.

**What a dialect keeps beside a part.** Indexes: an eve holds calls in each of its threads, and
finds open requests by thread and by call (`holding` and `asks` in its client). What is in such an
index, its module changes with the part.

**What of eve is in no part.** Its stops (`stopping`, a table of its own), and the times of threads,
which are a heap: there are thousands of children, and `soonest` of all would be asked with every
frame. What became of commands other than messages and steering is in no ledger there: only
their replies tell it, once, and an answer also by its request (`Answered.taken`). The ledger would
need an entry of every command that is sent, which version 1 did not store.

**Deltas bypass the parts.** They come by thousands. A codec makes the next delta of an open block
without asking any part, and asks again as soon as anything else comes.

**No part yet: `catching_up`**, joining a list and a stream. Herm's module of that name, with
`numbers`; Managed Agents will need the same with ids in the place of numbers. The Engine's list is
a replay without ids, whose frames are compared by content: `adapters.engine.alignment`. All answer
the same question, «is this frame new, known, or to be kept until more is read», and `alignment` is
the model: values in, verdicts out, no event and no request. What they share beyond the question
shows when the second one is built.
"""
