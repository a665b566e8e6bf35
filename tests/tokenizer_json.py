"""A tokenizer.json made from GPT-2's ranks, for tests that need one of their own."""

from __future__ import annotations

from lowtide.tokenizer.vocabulary import load_vocabulary, parse_ranks

Json = dict[str, object]


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte: `!` is itself, a space is `Ġ`."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelled = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in spelled:
            spelled[byte] = chr(256 + len(spelled) - len(printable))
    return spelled


def recover_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The two parts each token was merged from: those left when only smaller ranks may merge."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            left, right = _merge_below(token, rank, ranks)
            merges.append((left, right))
    return merges


def _merge_below(token: bytes, limit: int, ranks: dict[bytes, int]) -> list[bytes]:
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(parts[i] + parts[i + 1], limit) for i in range(len(parts) - 1)]
        best = min(range(len(pairs)), key=lambda at: pairs[at])
        if pairs[best] >= limit:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def added_token(
    content: str, token_id: int, *, special: bool = False, normalized: bool = False
) -> Json:
    """An entry of `added_tokens`."""
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": normalized,
        "special": special,
    }


def tokenizer_json(
    *, pattern: str | None = None, added: list[Json] | None = None, tokens: int = 50256
) -> Json:
    """GPT-2's first tokens as Hugging Face writes them; `pattern` replaces ByteLevel's own."""
    vocabulary = load_vocabulary("gpt2")
    ranks = parse_ranks(vocabulary.content, name="gpt2")
    ranks = {token: rank for token, rank in ranks.items() if rank < tokens}
    alphabet = byte_alphabet()

    def spell(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    byte_level: Json = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": pattern is None,
    }
    split: Json = {
        "type": "Split",
        "pattern": {"Regex": plain_spelling(pattern or "")},
        "behavior": "Isolated",
        "invert": False,
    }
    end_of_text = added_token("<|endoftext|>", 50256, special=True)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end_of_text, *(added or [])],
        "normalizer": None,
        "pre_tokenizer": byte_level
        if pattern is None
        else {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {spell(token): rank for token, rank in ranks.items()},
            "merges": [[spell(left), spell(right)] for left, right in recover_merges(ranks)],
        },
    }


def plain_spelling(pattern: str) -> str:
    """cl100k without possessive quantifiers, which Oniguruma reads as something else."""
    if r"\p{N}{1,3}+" not in pattern:
        return pattern
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
