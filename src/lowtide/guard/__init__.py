"""Any process tree, ours or not: what it takes, when it is asked to stop, where it is heading, why it died.

Process ids, limits and timelines enter; readings, verdicts and signals leave. It touches /proc, cgroups,
signals and the kernel's log, and never torch. `why/` judges deaths, `doctor/` the machine.
"""
