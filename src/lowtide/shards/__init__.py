"""The token formats on disk: one payload of little-endian ids, several faces.

Enters: arrays of token ids with the positions where documents end; folders of ours or of a peer.
Leaves: shards, a document index, of examples the learnt bits, and a sealed manifest, absent or whole;
read-only views of them.
Costs: 2 or 3 MiB of memory per split while writing (`write.needs_bytes`), pieces of at most 8 MiB while
reading, one fsync per file and mark. The bytes on disk depend on the token stream alone: not on how
it was chunked, nor on where a run was killed and resumed.

    layout      what a file is called and how it begins
    write       SplitWriter: append, mark, publish, seal, resume
    learnt      which tokens of examples are learnt: one bit a token
    manifest    what a finished folder holds, as `lowtide.json`
    read        open_dataset: a folder of ours, or a peer's (peers, megatron, documents)
    verify      every byte against the manifest
    export      the same tokens in a peer's format (move_end_of_text)
    describe    facts for people
"""
