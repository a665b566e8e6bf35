"""The baselines, each a program of its own as people write it, which `lowtide compare` runs in a box.

    python -m lowtide.tools.baselines.list_of_ids TOKENIZER OUT PROGRESS FILE...

TOKENIZER is a folder that `encoder.py` reads, OUT an empty folder, PROGRESS the file that `progress.py` writes,
and every FILE holds JSON lines with a `text`. Each holds in memory what such programs usually hold: nothing
here is worse or better than in the tutorials.
"""
