"""What this machine allows and what is likely to go wrong: one function for each line of `doctor`.

`examine.RULES` lists them. They read Linux's own files under a `root`, so that any machine can be tried on any
other. What only torch knows is asked of a child that dies with its parent.
"""
