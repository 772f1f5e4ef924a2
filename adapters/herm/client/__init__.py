"""Drives a Herm gateway: commands become its requests, its envelopes become canonical events.

Each module has one job, and knows of the others only those above it in this list:

* `records`: what must survive a restart, typed. The modules share it; each writes its own part.
* `envelopes`, `contents`: what is on the wire, read and written.
* `posts`: requests. `abilities`: what can be carried. `sessions`: the session as a whole.
* `numbers`: what of the backend's count was seen, and so what is new, early or old.
* `texts`: open runs of text. `asks`: open requests. `answers`: their answers on the wire.
* `inputs`: what becomes of commands. `doubts`: of those whose answer was lost. `echoes`: inputs
  that the backend shows, those of others too.
* `turns`: begin, pause, end.
* `work`: what the agent shows: text, tools, questions, threads.
* `catching_up`: the list beside the stream. `reading`: from frames and lists to the modules above.
* `codec`: the contract; it alone knows all of them, and hands on what concerns several.

Modules call down this list, never up or in a circle. A strict rule, that no module calls another,
was tried on paper: here it would make a message of nearly every line, for a turn that begins
settles an input, and a tool that returns resolves a request.
"""

from adapters.herm.client.codec import HermClient
from adapters.herm.client.posts import refusal

__all__ = ["HermClient", "refusal"]
