"""Windows over token shards, in an order that is computed and never stored.

Input: a dataset of ours or a peer's (`shards`), a context, a seed.
Output: batch k, a pure function of the three; arrays `x` and `y`, or torch tensors.
Cost: the batch, its raw tokens, and an order of 4,096 windows at a time (under a MiB); document windows
add 8 bytes for every 256 documents. Tokens stay in the page cache, which belongs to the kernel.

    settings        what decides the batches
    find_tokens     what lies at a path: tokens, a share of them, or only text
    order           a bijection over an epoch's windows, and where the epoch's borders lie
    windows         contiguous windows: the stream cut every `context` tokens
    pack_documents  document windows: whole documents, packed
    schedule        the endless row of windows, epoch after epoch, and reading ahead while the disk is slow
    document_ids    which document a position belongs to
    batches         windows into `x` and `y`; for examples, targets limited to the loss mask
    token_dataset   TokenDataset: all of these together
    mixture         several datasets by weight
    loader          torch tensors from a thread; the only file here that imports torch
    items           one window per item, for DataLoader and the Hugging Face Trainer
    describe        facts about a loader, and what a few seconds of loading show
"""
