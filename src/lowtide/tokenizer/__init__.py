"""Tokenizers: text becomes token ids by a tokenizer's name or file, and a corpus becomes a new vocabulary.

Encoding: `vocabulary` loads a tokenizer (`hugging_face` reads a tokenizer.json, `patterns` names the regular
expressions that cut words), `encode` turns blocks of documents into ids with gigatoken, `reference` is the slow
encoder that the fast one must equal (`reference_apart` runs it in a child process), and `disagreements` knows
the code points on which the two would differ. `learnt_tokens` makes loss masks.
An encoder costs about 16 MiB and 240 bytes a token, and grows with the words it has seen.

Learning: `split_words` cuts text into words, `count_words` counts them in tables of a fixed size,
`word_runs` writes full tables to disk and merges them, `merge_pairs` learns merges from the counted words, and
`byte_pairs` is the resulting vocabulary. The loops are C (`native`); `reference_train` and `reference_encode`
are their plain versions.
A table costs its allowance, 6 MiB at least; learning costs 2 to 14 bytes for each byte of the distinct
words, and up to 64 MiB for pairs.

Files: `byte_pair_files` writes and reads every form in which other tools keep a vocabulary. `tokenizer` is the
class for Python users, `text_pieces` cuts long texts for it.
"""
