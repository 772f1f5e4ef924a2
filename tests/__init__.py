"""What holds for the program, from single frames to the whole proxy."""
