"""What this machine allows and what may go wrong: one function for each line of `doctor`.

Those that read Linux's own files take a `root`, so that any machine can be tried on any other. What only torch
knows is asked of a child that dies with its parent.
"""
