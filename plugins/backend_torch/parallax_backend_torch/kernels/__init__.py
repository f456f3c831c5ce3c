"""The expensive operations of a step on CPUs: products, paged attention, and the parts between.

Each function takes and returns torch tensors on the CPU. It runs this distribution's compiled library if it was built
(see ``library``), otherwise plain torch, with the same signature and the same errors.
"""
