"""Who talks to a face: what a person of each dialect can send, and what the face asks of them.

What they see is another matter: `tests.pairs.frontends` has those who look at everything,
`tests.proof.returning` those who come back with a cursor after every cut.
"""

from __future__ import annotations

from tests.people.engine import EnginePerson
from tests.people.eve import EvePerson
from tests.people.herm import HermPerson
from tests.people.person import Ask, Person, Picture

__all__ = ["Ask", "EnginePerson", "EvePerson", "HermPerson", "Person", "Picture"]
