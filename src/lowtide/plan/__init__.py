"""Before a run: what it will need, whether it fits, how long it takes, and what to choose.

Enters: how many tokens there are, and a machine. Leaves: a Plan, and plan.toml. Milliseconds, and never torch.
"""
