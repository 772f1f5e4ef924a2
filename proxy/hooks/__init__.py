"""What runs inside a Hermes Agent: its hooks, which ask Dragoman and tell it what happens.

`delivery.py` sends one event and reads the answer. It is copied into homes of Hermes beside
`plugin/` and `gateway/`, so it needs the standard library alone, and nothing here imports the rest
of the proxy. The third way in is a shell hook, the command `dragoman hook`.
"""
