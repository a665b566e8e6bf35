"""The token formats on disk: one payload of little-endian ids under several headers.

Input: arrays of token ids with the positions where documents end; folders of ours or of a peer.
Output: shards, a document index, a loss mask for examples, and a sealed manifest, absent or whole;
read-only views of them.
Cost: 2 or 3 MiB of memory per split while writing (`write.needs_bytes`), pieces of at most 8 MiB while
reading, one fsync per file and mark. The bytes on disk depend on the token stream alone: not on how
it was chunked, nor on where a run was killed and resumed.

    layout          file names and headers
    payload         one flat file: write, read, verify in bounded pieces
    write           SplitWriter: append, mark, publish, seal, resume
    loss_mask       which tokens of examples are targets: one bit per token
    documents       where documents end: our index, or a scan
    megatron        Megatron's `.idx`
    manifest        what a finished folder holds, as `lowtide.json`
    read            open_dataset: a folder of ours, or a peer's files (peers)
    token_pieces    many short ranges of a stream at once, for training
    stamps          whether a file is still the one that was opened
    verify          every byte against the manifest
    export          the same tokens in a peer's format
    describe        facts for people
"""
