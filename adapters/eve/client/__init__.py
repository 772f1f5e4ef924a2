"""Drives an eve server of any generation: commands become requests, NDJSON streams become events.

One codec for the token generation (T) and the two session-ID generations (S1, S2); which one it is
shows in the first create answer, the status of a follow-up, the stream's version header and
`session.started` (eve page, section 1).

T and S1 close a turn at a pause and open another one at the answer; here that is one canonical turn
(`Line.closed`). What proves that an answer arrived differs too (section 8.2): S2 and later S1 say
so, T shows effects only. Every thread has a stream of its own with a count of its own: the main
line, and every child that the backend names.

What waits: a tool call, 250 ms at most, until its permission shows; the end of a turn, until the
boundary that follows tells the usage; the end of a child, until its own stream has been read.

Each room has one job, and knows of the others only those below it in this list; an import contract
holds it:

* `codec`: the contract, and the hot path of deltas; it makes the rooms;
* `reading`: from records to the rooms; `streams`: what is read, and what opening and closing tell;
  `replies`: what came of requests; `alarms`: the time;
* `commands`: from commands to requests;
* records by what they are about: `boundaries` of turns, `sessions`, `messages`, `work`, `asking`,
  `sign_ins`, `children`; below them `blocks`: text and reasoning;
* `ends`: of turns, children and the session;
* `turns`: begin, go on; `resolving`: how a request ended, and by what evidence;
* `stopping`: eve's cancel; `first`: the first message of a session;
* `inputs`: what becomes of commands; `retries`: what is sent again;
* `holding`: calls whose permission is not known; `asks`: open requests and their answers;
* `members`: threads; `places`: how far each was read; `dues`: when one is due; `posts`: requests;
* `server`: which eve it is, and what it can do;
* `reports`, `contents`, `values`: events and wire objects;
* `records`: what is stored, typed. The rooms share it.
"""

from adapters.eve.client.codec import EveClient
from adapters.eve.client.values import refusal

__all__ = ["EveClient", "refusal"]
