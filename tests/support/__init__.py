"""Strict clients of the dialects: they accept what the protocol pages promise and nothing else.

They are written from the pages, share no code with the codecs, and raise `ProtocolViolation` with
the frame or record that broke a promise. They serve against Dragoman's faces, the scripted backends
and real servers alike.
"""
