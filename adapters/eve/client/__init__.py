"""Drives an eve server of any generation: commands become requests, NDJSON streams become events.

One codec for the token generation (T) and the two session-ID generations (S1, S2); which one it is
shows in the first create answer, the status of a follow-up, the stream's version header and
`session.started` (eve page, section 1).

T and S1 close a turn at a pause and open another one at the answer; here that is one canonical turn
(`ThreadState.closed`). What proves that an answer arrived differs too (section 8.2): S2 and later
S1 say so, T shows effects only. Every thread has a stream of its own with a count of its own: the
main line, and every child that the backend names.

What waits: a tool call, 250 ms at most, until its permission shows; the end of a turn, until the
boundary that follows tells the usage; the end of a child, until its own stream has been read.

Each module has one job, and knows of the others only those below it in this list; nothing imports
in a circle:

* `codec`: the contract, and the hot path of deltas; it makes the parts;
* `dispatcher`: from records to their handlers; `streams`: what is read, and what opening and
  closing tell; `replies`: what came of requests; `alarms`: the time;
* `commands`: from commands to requests;
* handlers of records by what they are about: `turn_records`, `session_records`, `message_records`,
  `step_records`, `request_records`, `sign_in_records`, `child_records`;
* `turn_end`: the ends of turns, of children and of the session;
* `parts`: what those above share, which is all that follows;
* `text_blocks`: text and reasoning;
* `turns`: begin, go on; `resolution`: how a request ended, and by what evidence;
* `cancellation`: eve's cancel; `first_message`: the first message of a session;
* `inputs`: what becomes of commands; `retries`: what is sent again;
* `pending_calls`: calls whose permission is not known; `input_requests`: open requests and their
  answers;
* `child_index`: threads; `cursors`: how far each was read; `timers`: when one is due; `posts`:
  requests;
* `server_profile`: which eve it is, and what it can do;
* `reports`, `contents`, `values`: events and wire objects;
* `state`: what is stored, typed. All share it.
"""

from adapters.eve.client.codec import EveClient
from adapters.eve.client.values import refusal

__all__ = ["EveClient", "refusal"]
