"""Real peers: unmodified eve clients in front of Dragoman, real eve servers behind it."""
