"""Training: settings, schedule, optimizer, step, evaluation, checkpoints, and the loop around them.

Enters: a dataset's loader and settings. Leaves: checkpoints, events. It is told whether to stop, and knows
nothing of commands. `settings`, `schedule`, `run_folder` and `watch_loss` do without torch.
"""
