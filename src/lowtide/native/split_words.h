/* Where a word ends: the three patterns of the field, each read branch by branch, with no engine.

   A pattern is a list of branches joined by `|`. The first branch that matches at the start of a word
   decides, and takes as much as it can. Here a branch is an `if`, in the pattern's own order, below a
   comment that spells it. Nothing looks behind, so a text may be cut from any border between words on.

       word_end_gpt2("  it's", 0, ...)  ->  1     " "     \s+(?!\S)
       word_end_gpt2("  it's", 1, ...)  ->  4     " it"   ?\p{L}+
       word_end_gpt2("  it's", 4, ...)  ->  6     "'s"

   text[at:end] is one whole text (`end` is what a look-ahead takes for its end) and `at` < `end`. The
   answer is always above `at` and never above `end`, and no byte beyond is read, whatever the bytes are.
   They should be UTF-8: what is not is cut too, by no rule worth naming.

   `classes` holds one byte for each code point below 0x110000 (split_words.py makes it). Time grows with the
   word, and a byte is looked at a few times at most. */

#ifndef LOWTIDE_SPLIT_WORDS_H
#define LOWTIDE_SPLIT_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LETTER = 1, /* \p{L} */
    NUMBER = 2, /* \p{N} */
    SPACE = 4,  /* \s */
    UPPER = 8,  /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    LOWER = 16, /* [\p{Ll}\p{Lm}\p{Lo}\p{M}]: letters without case and marks are in both */
};

enum { GPT2 = 0, CL100K = 1, O200K = 2 };

typedef struct {
    unsigned classes;
    size_t next;
} Character;

/* One character beyond ASCII. Each length is checked, for a text may end inside a character. */
static inline Character read_long_character(const uint8_t *text, size_t at, size_t end,
                                            const uint8_t *classes) {
    const uint8_t *bytes = text + at;
    const size_t left = end - at;
    const uint32_t lead = bytes[0];
    uint32_t point = 0x110000;
    size_t length = 1;
    if (lead >= 0xF0 && left >= 4) {
        point = (lead & 7) << 18 | (bytes[1] & 63u) << 12 | (bytes[2] & 63u) << 6 | (bytes[3] & 63u);
        length = 4;
    } else if (lead >= 0xE0 && lead < 0xF0 && left >= 3) {
        point = (lead & 15) << 12 | (bytes[1] & 63u) << 6 | (bytes[2] & 63u);
        length = 3;
    } else if (lead >= 0xC0 && lead < 0xE0 && left >= 2) {
        point = (lead & 31) << 6 | (bytes[1] & 63u);
        length = 2;
    }
    if (point >= 0x110000) return (Character){0, at + 1}; /* no UTF-8; the table ends here */
    return (Character){classes[point], at + length};
}

static inline Character read_character(const uint8_t *text, size_t at, size_t end,
                                       const uint8_t *classes) {
    if (text[at] < 0x80) return (Character){classes[text[at]], at + 1};
    return read_long_character(text, at, end, classes);
}

/* Where the characters end that belong, of the classes asked about, to exactly those wanted. */
static inline size_t run_end(const uint8_t *text, size_t at, size_t end, const uint8_t *classes,
                             unsigned asked, unsigned wanted) {
    while (at < end) {
        const Character one = read_character(text, at, end, classes);
        if ((one.classes & asked) != wanted) break;
        at = one.next;
    }
    return at;
}

static inline size_t letters_end(const uint8_t *text, size_t at, size_t end, const uint8_t *classes) {
    return run_end(text, at, end, classes, LETTER, LETTER);
}

/* [^\s\p{L}\p{N}]*: punctuation, symbols, marks, controls and what was never assigned. */
static inline size_t symbols_end(const uint8_t *text, size_t at, size_t end, const uint8_t *classes) {
    return run_end(text, at, end, classes, LETTER | NUMBER | SPACE, 0);
}

/* 's|'t|'re|'ve|'m|'ll|'d, or `at` where none stands. */
static inline size_t contraction_end(const uint8_t *text, size_t at, size_t end) {
    if (end - at < 2 || text[at] != '\'') return at;
    const uint8_t first = text[at + 1];
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if (end - at < 3) return at;
    const uint8_t second = text[at + 2];
    if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
    return first == 'l' && second == 'l' ? at + 3 : at;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d), or `at`. To Unicode the long s (U+017F) is another case of s. */
static inline size_t any_case_contraction_end(const uint8_t *text, size_t at, size_t end) {
    if (end - at < 2 || text[at] != '\'') return at;
    const unsigned first = text[at + 1] | 0x20u; /* only S and s become s, and so on */
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if (end - at < 3) return at;
    const unsigned second = text[at + 2] | 0x20u;
    if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
    if (first == 'l' && second == 'l') return at + 3;
    return text[at + 1] == 0xC5 && text[at + 2] == 0xBF ? at + 3 : at;
}

/* \s+(?!\S)|\s+ where a space stands. All spaces at the end of a text; elsewhere all but the last one, which
   is left to what comes behind it; and one that stands alone. */
static inline size_t spaces_end(const uint8_t *text, size_t at, size_t end, const uint8_t *classes) {
    size_t last = at;
    size_t stop = read_character(text, at, end, classes).next;
    while (stop < end) {
        const Character one = read_character(text, stop, end, classes);
        if (!(one.classes & SPACE)) return last > at ? last : stop;
        last = stop;
        stop = one.next;
    }
    return end;
}

/* ------------------------------------------------------------------------------------------- gpt2 */

static inline size_t word_end_gpt2(const uint8_t *text, size_t at, size_t end,
                                   const uint8_t *classes) {
    /* 's|'t|'re|'ve|'m|'ll|'d */
    const size_t contraction = contraction_end(text, at, end);
    if (contraction > at) return contraction;

    /* The ` ?` of the next three branches: a blank goes with what follows, unless that is a space. */
    Character one = read_character(text, at, end, classes);
    if (text[at] == ' ' && at + 1 < end) {
        const Character second = read_character(text, at + 1, end, classes);
        if (!(second.classes & SPACE)) one = second;
    }
    /*  ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+ */
    const unsigned asked = LETTER | NUMBER | SPACE;
    if (!(one.classes & SPACE)) {
        return run_end(text, one.next, end, classes, asked, one.classes & asked);
    }
    /* \s+(?!\S)|\s+ */
    return spaces_end(text, at, end, classes);
}

/* -------------------------------------------------------------------------- cl100k and o200k share */

static inline bool is_newline(uint8_t byte) {
    return byte == '\r' || byte == '\n';
}

/* [^\r\n\p{L}\p{N}]: what may stand before letters and be part of their word. */
static inline bool leads_letters(uint8_t byte, unsigned classes) {
    return !(classes & (LETTER | NUMBER)) && !is_newline(byte);
}

/* \p{N}{1,3} where a number stands. */
static inline size_t three_numbers_end(const uint8_t *text, size_t at, size_t end,
                                       const uint8_t *classes) {
    for (int taken = 0; taken < 3 && at < end; taken++) {
        const Character one = read_character(text, at, end, classes);
        if (!(one.classes & NUMBER)) break;
        at = one.next;
    }
    return at;
}

/*  ?[^\s\p{L}\p{N}]+, or `at` where none stands. */
static inline size_t blank_and_symbols_end(const uint8_t *text, size_t at, size_t end,
                                           const uint8_t *classes) {
    const size_t begin = at + (text[at] == ' ');
    const size_t stop = symbols_end(text, begin, end, classes);
    return stop > begin ? stop : at;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ where a space stands: up to the last newline among the spaces, if there is one. */
static inline size_t lines_end(const uint8_t *text, size_t at, size_t end, const uint8_t *classes) {
    const size_t stop = run_end(text, at, end, classes, SPACE, SPACE);
    for (size_t behind = stop; behind > at; behind--) {
        if (is_newline(text[behind - 1])) return behind;
    }
    return spaces_end(text, at, end, classes);
}

/* ----------------------------------------------------------------------------------------- cl100k */

static inline size_t word_end_cl100k(const uint8_t *text, size_t at, size_t end,
                                     const uint8_t *classes) {
    /* (?i:'s|'t|'re|'ve|'m|'ll|'d) */
    const size_t contraction = any_case_contraction_end(text, at, end);
    if (contraction > at) return contraction;

    /* [^\r\n\p{L}\p{N}]?\p{L}+ */
    const Character one = read_character(text, at, end, classes);
    if (one.classes & LETTER) return letters_end(text, one.next, end, classes);
    if (leads_letters(text[at], one.classes)) {
        const size_t stop = letters_end(text, one.next, end, classes);
        if (stop > one.next) return stop;
    }
    /* \p{N}{1,3} */
    if (one.classes & NUMBER) return three_numbers_end(text, at, end, classes);

    /*  ?[^\s\p{L}\p{N}]+[\r\n]* */
    size_t stop = blank_and_symbols_end(text, at, end, classes);
    if (stop > at) {
        while (stop < end && is_newline(text[stop])) stop++;
        return stop;
    }
    /* \s*[\r\n]+|\s+(?!\S)|\s+ */
    return lines_end(text, at, end, classes);
}

/* ------------------------------------------------------------------------------------------ o200k */

/* [UPPER]*[LOWER]+, or `at`. The first run takes all it can. Where nothing lower follows, it gives back
   until what it gave is lower too, and the second run ends there: behind the last character of both. */
static inline size_t upper_then_lower_end(const uint8_t *text, size_t at, size_t end,
                                          const uint8_t *classes) {
    size_t upper = at;
    size_t both = at;
    while (upper < end) {
        const Character one = read_character(text, upper, end, classes);
        if (!(one.classes & UPPER)) break;
        upper = one.next;
        if (one.classes & LOWER) both = one.next;
    }
    const size_t lower = run_end(text, upper, end, classes, LOWER, LOWER);
    return lower > upper ? lower : both;
}

/* [UPPER]+[LOWER]*, or `at`. Asked only where the above failed: nothing lower can follow. */
static inline size_t upper_end(const uint8_t *text, size_t at, size_t end, const uint8_t *classes) {
    return run_end(text, at, end, classes, UPPER, UPPER);
}

/* The first two branches without their contraction, or `at`. A mark may be what leads, or the first letter: the
   word ends at the same place, and only as a letter can a mark stand alone. */
static inline size_t cased_letters_end(const uint8_t *text, size_t at, size_t end,
                                       const uint8_t *classes) {
    const Character one = read_character(text, at, end, classes);
    const bool leads = leads_letters(text[at], one.classes) && !(one.classes & UPPER);
    const size_t begin = leads ? one.next : at;
    /* [^\r\n\p{L}\p{N}]?[UPPER]*[LOWER]+ */
    size_t stop = upper_then_lower_end(text, begin, end, classes);
    if (stop > begin) return stop;
    /* [^\r\n\p{L}\p{N}]?[UPPER]+[LOWER]* */
    stop = upper_end(text, begin, end, classes);
    return stop > begin ? stop : at;
}

static inline size_t word_end_o200k(const uint8_t *text, size_t at, size_t end,
                                    const uint8_t *classes) {
    /* ...[UPPER]*[LOWER]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|...[UPPER]+[LOWER]*(?i:'s|'t|'re|'ve|'m|'ll|'d)? */
    const size_t letters = cased_letters_end(text, at, end, classes);
    if (letters > at) return any_case_contraction_end(text, letters, end);

    /* \p{N}{1,3} */
    const size_t numbers = three_numbers_end(text, at, end, classes);
    if (numbers > at) return numbers;

    /*  ?[^\s\p{L}\p{N}]+[\r\n/]* */
    size_t stop = blank_and_symbols_end(text, at, end, classes);
    if (stop > at) {
        while (stop < end && (is_newline(text[stop]) || text[stop] == '/')) stop++;
        return stop;
    }
    /* \s*[\r\n]+|\s+(?!\S)|\s+ */
    return lines_end(text, at, end, classes);
}

#endif
