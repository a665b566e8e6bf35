"""Orchestration: one file per command, told with the packages below it.

What enters are plain settings; what leaves are folders sealed with a manifest, and plain results. The stages
hold the order of things (read, encode or count, write, checkpoint) and the budget; they know no terminal.
"""
