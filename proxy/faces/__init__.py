"""Serves the faces: what a dialect's routes declare (`adapters.contract.faces`) is done here.

`table` adds the routes of a dialect to an application and answers errors, `visit` is one request,
`finding` looks for sessions, `saying` takes commands, `reading` writes streams and other answers,
`passing` is the hook of backends that are called back. No dialect is named here.
"""
