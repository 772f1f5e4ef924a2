"""The attack part of the proof: what strangers, other tenants and hostile backends try, and what
came of it. Nothing here shares code with the routes or the codecs."""
