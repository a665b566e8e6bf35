"""Files on disk are whole or absent.

Takes bytes, plain JSON values and paths; gives published files, sealed records and fingerprints.
Costs one fsync of the file and one of its folder per publication, and 1 MiB of memory
to digest a file of any size.
"""
