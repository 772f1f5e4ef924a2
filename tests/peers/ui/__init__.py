"""The part `ui` of `make peers`: the page at `/ui/` as people use it, in Chromium."""
