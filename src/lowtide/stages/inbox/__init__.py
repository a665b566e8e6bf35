"""An inbox: batch files that appear in a folder are tokenized and trained on, one after another, each once.

Enters: a folder in which files appear, a run's settings. Leaves: a run like any other, a ledger of files.
Costs: the memory of one training run, and of one `tokenize` in a process of its own while a file is read.
"""
