"""How much memory may be used, is asked for, and is used.

Reads a `--memory` text, each package's needs, and the system's own files (`/proc`, cgroups).
Gives a limit, a budget, measured use and a verdict. Private memory is what counts: anonymous and
shared-memory pages of the process tree; page cache is shown separately.
Costs 13 µs for this process, about a millisecond per process and 100 MB for the exact tree.
"""
