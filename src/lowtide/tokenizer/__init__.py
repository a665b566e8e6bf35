"""The tokenizer room. A name or a file enters; token ids leave.

`vocabulary` reads what a tokenizer is, `encode` turns blocks of documents into ids (gigatoken does the
work), `reference` is the plain encoder the fast one must equal, `disagreements` knows the code points on
which the two would differ, `agreement` checks them against each other on the real input.
An encoder costs about 16 MiB and 240 bytes a token, and grows with the words it meets.
"""
