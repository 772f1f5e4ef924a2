"""Measures Dragoman beside a bare aiohttp pass-through, in one run, on one machine.

`python -m bench` starts an origin that plays an Engine, the proxies to compare and the load
generator (this process), each pinned to a core, and runs the parts in interleaved rounds. What
counts are the ratios to the bare pass-through of the same round: absolute figures differ from
machine to machine and from hour to hour.
"""
