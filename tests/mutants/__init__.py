"""`make mutants`: do the fast tests notice when one line of the product is wrong?

It changes one line at a time in a copy of the tree, runs the tests that execute this line, the
quickest first, and counts how often one of them fails. 200 changes are drawn by a seed, spread by
lines over `adapters/` and the session, hub and journal modules. 95 % have to be caught, and every
change that no test notices is listed in `survivors.toml` with the reason why that is right.

Why no library (looked at in November 2026):

- mutmut 3 makes a function for every mutant of a whole package and chooses among them at run time.
  It draws no sample, has no seed, works in a folder of the work tree and leaves out code outside of
  functions, which here are the tables of states and words.
- cosmic-ray changes the files of the work tree in place, so that a kill leaves a mutation behind,
  runs one command for every mutant instead of the tests that can see it, and its sample has no
  seed.
- mutatest has sample and seed, but writes mutated byte code into the work tree's `__pycache__`,
  knows no test selection per line, and its last release (February 2022) is older than `match`.

Modules: `changes` finds what can be changed and draws the sample, `seen` knows which test runs
which line, `trial` runs tests in a copy, `plugin` is the part inside pytest, `__main__` the
command.
"""
