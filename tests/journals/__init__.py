"""Journals as a killed process left them, kept of each release: today's code goes on with them.

`python -m tests.journals --write NAME [BACKEND ...]` makes one: it starts a proxy over scripted
backends, brings a session of each pair into each state that `tests.journals.cases` names, and
copies the journal's files while all that is under way. `tests/test_journals.py` opens every one
that is kept.

| file | what it is |
|---|---|
| `journal.tar.xz` | the database and its write-ahead log |
| `world.json.xz` | what the backends were sent and did; each session's log and frames, as digests |
| `after.json` | what each session came to when the release that wrote it went on with it |

A scripted backend cannot be stored in the middle of a turn. Its requests are, with the steps of its
clock and what was to go wrong; sent again to a new one of the same seed they bring it to the same
point, which is compared. So scripts, frames and ids of the scripted backends may get more, and must
not change. A journal holds no secret and nobody's data: its sessions are those of the scripts.
"""
