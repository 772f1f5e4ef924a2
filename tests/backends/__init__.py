"""What is special to the backends of a dialect, a folder for each.

What every backend comes to in front of every face is in `tests/pairs`, what comes of its faults in
`tests/faults`.
"""
