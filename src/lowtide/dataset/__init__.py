"""Windows over token shards, in an order that is computed and never stored.

Enters: a dataset of ours or a peer's (`shards`), a context, a seed.
Leaves: batch k, a pure function of the three; arrays `x` and `y`, or torch tensors.
Costs: the batch, its raw tokens, and an order of 4,096 windows at a time (under a MiB); document windows
add 8 bytes for every 256 documents. Tokens stay in the page cache, which is the kernel's.

    settings        what decides the batches
    find_tokens     what lies at a path: tokens, a share of them, or only text
    order           a bijection over an epoch's windows, and where the epoch's borders lie
    windows         contiguous windows: the stream cut every `context` tokens
    pack_documents  document windows: whole documents, packed
    schedule        the endless row of windows, epoch after epoch
    read_ahead      asks for batches to come while the disk is slow
    document_ids    which document a position belongs to
    batches         windows into `x` and `y`
    learnt_targets  of examples, only what is learnt stays a target
    token_dataset   TokenDataset: all of these behind one name
    mixture         several datasets by weight
    loader          torch tensors from a thread; the only file here that imports torch
    items           one window an item, for DataLoader and the Hugging Face Trainer
    describe        what a loader sees and holds
    check           a loader run for a few seconds, measured
"""
