/* Every border of a text, 64 bytes at a time where these are ASCII.

   Whether a word starts at a byte follows nearly always from the byte and its neighbours. So a few operations
   on 64 bits, one bit for each byte, answer for a whole block:

       bytes     i f _ ( a _ _ * _ n )        _ is a blank; pattern gpt2
       letters   1 1 . . 1 . . . . 1 .
       spaces    . . 1 . . 1 1 . 1 . .
       starts    1 . 1 . 1 1 1 . 1 . 1        "if" " (" "a" " " " *" " n" ")"

   The plain way of split_words.h spends most of its time on branches that the processor guessed wrong; here
   few are left. What neighbours cannot tell (contractions, blank lines with blanks in them, all that is
   not ASCII) is not decided here: the bits end before it, and the plain way takes the next word. */

#include "split_words.h"

#include <string.h>

#include "layout.h"

#define BLOCK_BYTES 64

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* One bit for each byte, the first byte lowest. `<< 1` moves a bit to the byte behind it. */
typedef struct {
    uint64_t letters, capitals, numbers, symbols;
    uint64_t spaces;             /* the next two together */
    uint64_t newlines, in_lines; /* [\r\n], and the spaces that are none */
    uint64_t blanks;             /* only ' ' */
    uint64_t apostrophes, slashes;
    uint64_t unknown; /* not ASCII; and the last byte, whose right neighbour is not here */
} Block;

#ifdef __SSE2__

#define AT_A_TIME 16
typedef __m128i Bytes;

static inline Bytes load(const uint8_t *text) {
    return _mm_loadu_si128((const __m128i *)text);
}

static inline uint64_t beyond_ascii(Bytes bytes) {
    return (uint64_t)(unsigned)_mm_movemask_epi8(bytes);
}

/* One bit for each byte from `first` to `last`, both ASCII. */
static inline uint64_t in_range(Bytes bytes, char first, char last) {
    const __m128i above = _mm_sub_epi8(bytes, _mm_set1_epi8(first));
    const __m128i least = _mm_min_epu8(above, _mm_set1_epi8((char)(last - first)));
    return (uint64_t)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(above, least));
}

#else /* any processor: eight bytes in one 64-bit number, half as fast */

#define AT_A_TIME 8
#define EACH_BYTE 0x0101010101010101u
typedef uint64_t Bytes;

static inline Bytes load(const uint8_t *text) {
    uint64_t bytes;
    memcpy(&bytes, text, 8);
    return bytes;
}

/* The highest bit of each byte. The product moves the eight of them side by side. */
static inline uint64_t beyond_ascii(Bytes bytes) {
    return (bytes >> 7 & EACH_BYTE) * 0x0102040810204080u >> 56;
}

/* Without its highest bit a byte can be added to, and never spills into the next one. A byte beyond ASCII may
   then seem to be in the range; it is unknown, and its bits are not asked for. */
static inline uint64_t in_range(Bytes bytes, char first, char last) {
    const uint64_t low = bytes & EACH_BYTE * 0x7F;
    const uint64_t from_first = low + EACH_BYTE * (uint64_t)(0x80 - first);
    const uint64_t behind_last = low + EACH_BYTE * (uint64_t)(0x7F - last);
    return beyond_ascii(from_first & ~behind_last);
}

#endif

static inline Block read_block(const uint8_t *text) {
    Block block = {0};
    for (unsigned at = 0; at < BLOCK_BYTES; at += AT_A_TIME) {
        const Bytes bytes = load(text + at);
        const uint64_t capitals = in_range(bytes, 'A', 'Z'), blanks = in_range(bytes, ' ', ' ');
        block.letters |= (capitals | in_range(bytes, 'a', 'z')) << at;
        block.capitals |= capitals << at;
        block.numbers |= in_range(bytes, '0', '9') << at;
        block.spaces |= (blanks | in_range(bytes, '\t', '\r')) << at;
        block.newlines |= (in_range(bytes, '\n', '\n') | in_range(bytes, '\r', '\r')) << at;
        block.blanks |= blanks << at;
        block.apostrophes |= in_range(bytes, '\'', '\'') << at;
        block.slashes |= in_range(bytes, '/', '/') << at;
        block.unknown |= beyond_ascii(bytes) << at;
    }
    block.unknown |= (uint64_t)1 << 63;
    block.in_lines = block.spaces & ~block.newlines;
    block.symbols = ~(block.letters | block.numbers | block.spaces);
    return block;
}

/* All bits below the lowest one; all 64 where there is none. */
static inline uint64_t below(uint64_t bits) {
    return (bits - 1) & ~bits;
}

/* Every word that starts in the block, if its first byte starts one: exact up to the first byte that is
   unknown or not so simple. Only bits of which that is certain are set. */
static inline uint64_t starts_gpt2(const uint8_t *text) {
    const Block is = read_block(text);
    /*  ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+: where a kind begins, but for a blank before it */
    const uint64_t goes_on = (is.letters & is.letters << 1) | (is.numbers & is.numbers << 1) |
                             (is.symbols & is.symbols << 1);
    const uint64_t words = ~(is.spaces | goes_on | is.blanks << 1);
    /* \s+(?!\S)|\s+: the first space, and the last, which was left to what comes behind it */
    const uint64_t spaces = is.spaces & ~(is.spaces << 1 & is.spaces >> 1);
    /* 's|'t|'re|'ve|'m|'ll|'d: perhaps, where an apostrophe starts a word */
    const uint64_t contractions = words & is.apostrophes & is.letters >> 1;
    return (words | spaces) & below(is.unknown >> 1) & below(contractions << 1);
}

/* \p{N}{1,3}: where a number begins, and behind every third of its digits. */
static inline uint64_t number_starts(uint64_t numbers) {
    const uint64_t three = numbers & numbers << 1 & numbers << 2;
    uint64_t starts = numbers & ~(numbers << 1);
    for (uint64_t more = starts << 3 & three; more; more = more << 3 & three) starts |= more;
    return starts;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+: a word of spaces begins behind what is no space, behind the last newline, and at
   the last space. Newlines behind a symbol belong to the symbol's word. */
static inline uint64_t space_starts(const Block *is) {
    const uint64_t first = is->in_lines & ~(is->spaces << 1);
    const uint64_t last = is->in_lines & ~(is->spaces >> 1);
    const uint64_t behind_newline = is->in_lines & is->newlines << 1;
    return first | last | behind_newline | (is->newlines & (is->letters | is->numbers) << 1);
}

/* The bits before the first newline that was taken for the last among its spaces, and is not, or may not be: a
   line of blanks follows. The sum carries from the begin of each such line to its end. */
static inline uint64_t before_blank_lines(const Block *is) {
    const uint64_t indents = is->in_lines & below(is->unknown);
    const uint64_t begins = indents & is->newlines << 1;
    const uint64_t ends = (indents + begins) & ~indents & (is->newlines | is->unknown);
    if (!ends) return ~(uint64_t)0;
    return ((uint64_t)1 << (63 - __builtin_clzll(begins & below(ends)))) - 1;
}

static inline uint64_t starts_cl100k(const uint8_t *text) {
    const Block is = read_block(text);
    /*  ?[^\s\p{L}\p{N}]+[\r\n]* */
    const uint64_t symbols = is.symbols & ~(is.symbols << 1 | is.blanks << 1);
    /* [^\r\n\p{L}\p{N}]?\p{L}+: a space before letters always starts their word, a symbol if it can */
    const uint64_t letters = is.letters & ~(is.letters << 1 | is.in_lines << 1 | symbols << 1);
    const uint64_t starts = letters | number_starts(is.numbers) | symbols | space_starts(&is);
    /* (?i:'s|'t|'re|'ve|'m|'ll|'d): perhaps, where an apostrophe starts a word */
    const uint64_t contractions = symbols & is.apostrophes & is.letters >> 1;
    return starts & below(is.unknown >> 1) & below(contractions << 1) & before_blank_lines(&is);
}

static inline uint64_t starts_o200k(const uint8_t *text) {
    const Block is = read_block(text);
    const uint64_t smalls = is.letters & ~is.capitals;
    const uint64_t symbols = is.symbols & ~(is.symbols << 1 | is.blanks << 1);
    /* As above, and where a capital follows a small letter: in ASCII none is both. */
    const uint64_t letters = (is.letters & ~(is.letters << 1 | is.in_lines << 1 | symbols << 1)) |
                             (is.capitals & smalls << 1);
    const uint64_t starts = letters | number_starts(is.numbers) | symbols | space_starts(&is);
    /* ...(?i:'s|'t|'re|'ve|'m|'ll|'d)?: perhaps, where an apostrophe stands between letters */
    const uint64_t contractions = is.apostrophes & is.letters << 1 & is.letters >> 1;
    /* ...[\r\n/]*: a slash behind a newline may belong to symbols before it */
    const uint64_t slashes = is.slashes & is.newlines << 1;
    return starts & below(is.unknown >> 1) & below(contractions | slashes) & before_blank_lines(&is);
}

typedef uint64_t FindStarts(const uint8_t *text);
typedef size_t FindEnd(const uint8_t *text, size_t at, size_t end, const uint8_t *classes);

static inline size_t split(FindStarts *find_starts, FindEnd *find_end, const uint8_t *text,
                           size_t length, const uint8_t *classes, uint32_t *ends, size_t room) {
    size_t at = 0, count = 0;
    while (at < length && count < room) {
        /* A word in another script begins with its letter, or with a blank and its letter. */
        if (length - at >= BLOCK_BYTES && (text[at] | text[at + 1]) < 0x80) {
            const size_t block_at = at;
            uint64_t starts = find_starts(text + at) & ~(uint64_t)1;
            for (; starts && count < room; starts &= starts - 1) {
                at = block_at + (size_t)__builtin_ctzll(starts);
                ends[count++] = (uint32_t)at;
            }
            if (at > block_at) continue;
        }
        at = find_end(text, at, length, classes);
        ends[count++] = (uint32_t)at;
    }
    return count;
}

/* The ends of many words at once: as word_end_... gives them one by one, and over ASCII three times as fast.
   Written to `ends`, as offsets into the text, until text or room is used up; returns how many. To go
   on, call again with what lies behind the last of them. The text must be shorter than 4 GiB. */
size_t lt_split_words(int pattern, const uint8_t *text, size_t length, const uint8_t *classes,
                      uint32_t *ends, size_t room) {
    switch (pattern) {
    case GPT2: return split(starts_gpt2, word_end_gpt2, text, length, classes, ends, room);
    case CL100K: return split(starts_cl100k, word_end_cl100k, text, length, classes, ends, room);
    default: return split(starts_o200k, word_end_o200k, text, length, classes, ends, room);
    }
}
