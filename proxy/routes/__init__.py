"""The routes: one module per served dialect, and the control API. They parse, call, and stream;
nothing else."""
