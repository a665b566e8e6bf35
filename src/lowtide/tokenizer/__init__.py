"""The tokenizer room. A name or a file enters and token ids leave; or text enters and a vocabulary leaves.

Encoding: `vocabulary` reads what a tokenizer is, `encode` turns blocks of documents into ids (gigatoken does
the work), `reference` is the plain encoder the fast one must equal, `disagreements` knows the code points
on which the two would differ, `agreement` checks them against each other on the real input.
An encoder costs about 16 MiB and 240 bytes a token, and grows with the words it meets.

Learning: `split_words` cuts text into words, `count_words` counts them in tables of a fixed size,
`word_runs` keeps full tables on disk and merges them, `merge_pairs` learns merges from the counted words,
`byte_pairs` is what comes of it. The loops are C (`native`); `reference_train` and `reference_encode` are
the same things plainly.
A table costs what it is allowed, 6 MiB at least; learning costs 2 to 14 bytes for each byte of the distinct
words, and up to 64 MiB for pairs.

Files: `write_files` and `read_files` know every form in which others keep a vocabulary. `tokenizer` is the
class that Python users see, `text_pieces` cuts long texts for it.
"""
