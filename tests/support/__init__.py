"""Strict clients of the dialects, and a Dragoman with its backends to use them on.

The strict clients (`herm_client`, `eve_client` with `eve_records`, `engine_client`) accept what the
protocol pages promise and nothing else. They are written from the pages, share no code with the
codecs, and raise `ProtocolViolation` with the frame or record that broke a promise. They serve
against Dragoman's faces, the scripted backends and real servers alike.

`dragoman` starts the real application over scripted backends; `alone`, `running` and `houses` are
kinds of it, by the backends that they have.
"""
