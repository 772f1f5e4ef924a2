"""A backend that misbehaves, and what an eve client sees of it.

Either nothing (the records are those of an undisturbed run), or a turn that failed with a code. In
all cases the session survives: the next message is answered, and nothing is said twice.

* `test_every_backend` is what holds for each dialect that can be driven;
* `faulty` says what a dialect has to tell for that, and each does in a module with the name of its
  folder in `adapters`;
* `test_<folder>` is what one dialect alone does wrong, or what comes of it there alone.
"""
