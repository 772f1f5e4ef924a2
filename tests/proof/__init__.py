"""The proof that nothing is lost and nothing is doubled, with figures: `python -m tests.proof`.

Real traffic in all twelve pairs at once, against a `dragoman serve` that is killed at random, or
over connections that break at random. What the scripted backends emitted and which requests they
got is compared with what strict clients have in the end, by readers of the wire (`facts`) that
share nothing with the codecs.
"""
