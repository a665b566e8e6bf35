"""What lies on disk lies there whole, or not at all.

Enters: bytes, plain JSON values, paths. Leaves: published files, seals, fingerprints.
Costs: one fsync of the file and one of its folder per publication; 1 MiB of memory to digest a
file of any size.
"""
