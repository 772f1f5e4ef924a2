"""The page at `/ui/`, on which one watches sessions and their translation.

Its files are in `static`; each dialect has a frontend for it in `page.js` of its own folder. The
page asks the control API and the faces, as any other program does.
"""
