"""What may be used, what is asked for, what is used.

Enters: a `--memory` text, each room's needs, the system's own files (`/proc`, cgroups).
Leaves: a limit, a budget, measured use, a verdict. Private memory is what counts: anonymous and
shared-memory pages of the process tree; page cache is shown apart.
Costs: 13 µs for this process, about a millisecond per process and 100 MB for the exact tree.
"""
