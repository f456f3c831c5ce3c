"""What the time of a step goes into, on CPUs: matrix products, attention over pages, and the small parts between.

Each function takes and returns torch tensors on the CPU. It runs the compiled library of this distribution where there
is one (see ``library``), and plain torch where there is not, with the same signature and the same errors.
"""
