"""The name of the program: the command, and in a wheel the package that everything is in.

In this repository `adapters` and `proxy` lie beside it. The build puts them below it.
"""

from proxy import __version__ as __version__
