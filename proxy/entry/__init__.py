"""How a request comes in: whose it is, from where, and what of it is recorded."""
