"""The corridor: one short story per command, told with the rooms below it.

What enters are plain settings; what leaves are folders sealed with a manifest, and plain results. The
pipeline holds the order of things (read, encode or count, write, checkpoint) and the budget; it knows no
terminal.
"""
