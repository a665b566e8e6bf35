"""The usual ways, each a program of its own as people write it, for `lowtide compare` to run in a box.

    python -m lowtide.pipeline.ways.list_of_ids TOKENIZER OUT PROGRESS FILE...

TOKENIZER is a folder that `encoder.py` reads, OUT an empty folder, PROGRESS the file that `progress.py` writes,
and every FILE holds JSON lines with a `text`. What a way holds in memory is what this way holds everywhere:
nothing here is made worse, or better, than it is found in tutorials.
"""
