"""Serves the faces: what a dialect's routes declare (`adapters.contract.faces`) is done here.

`table` adds the routes of a dialect to an application and answers errors, `face_request` is one
request, `lookup` looks for sessions, `submit` takes commands, `stream` writes streams and other
answers, `forward` is the hook of backends that are called back. No dialect is named here.
"""
