"""Sets hooks up in a home of Hermes: what changes there, and whether it works. Hermes loads none of
it."""
