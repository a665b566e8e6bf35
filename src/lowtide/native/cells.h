/* Work on cells of one width. Included once for each width, with CELL, BITS and FAR defined.

   A symbol that spans one cell is that cell. One that spans n > 1 cells looks like this:

       symbol │ mark n-1 │ … whatever … │ mark n-1          n - 1 <= FAR
       symbol │ FAR_MARK │ n │ … │ n │ FAR_MARK             n - 1 >  FAR; n takes LENGTH_CELLS cells

   so that its end is found from its beginning, and its beginning from its end. Marks are the largest values
   of a cell, symbols lie below them, and only the cells between words are 0. A list may name a place
   whose symbol has since been swallowed by its left neighbour: the cell there is a mark then, no symbol. */

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define N(name) JOIN(name##_, BITS)

#define FAR_MARK ((CELL)~(CELL)0)
#define MARK(distance) ((CELL)(FAR_MARK - (CELL)(distance)))
#define LEAST_MARK MARK(FAR)
#define LENGTH_CELLS (BITS == 8 ? 7 : 6) /* digits to the base FAR + 1 */

/* A length is written in marks as well, digit by digit: no cell inside a symbol may look like another. */
static inline void N(put_length)(CELL *at, uint64_t length) {
    for (int index = 0; index < LENGTH_CELLS; index++, length /= FAR + 1) at[index] = MARK(length % (FAR + 1));
}

static inline uint64_t N(get_length)(const CELL *at) {
    uint64_t length = 0;
    for (int index = LENGTH_CELLS; index-- > 0;) length = length * (FAR + 1) + (CELL)(FAR_MARK - at[index]);
    return length;
}

/* How many cells the symbol spans that begins at `at`. */
static inline uint64_t N(span)(const CELL *cells, uint64_t at) {
    CELL next = cells[at + 1];
    if (next < LEAST_MARK) return 1;
    if (next != FAR_MARK) return (uint64_t)(FAR_MARK - next) + 1;
    return N(get_length)(cells + at + 2);
}

/* Where the symbol begins that ends just before `at`. */
static inline uint64_t N(begin_of)(const CELL *cells, uint64_t at) {
    CELL last = cells[at - 1];
    if (last < LEAST_MARK) return at - 1;
    if (last != FAR_MARK) return at - 1 - (uint64_t)(FAR_MARK - last);
    return at - N(get_length)(cells + at - 1 - LENGTH_CELLS);
}

/* One symbol over [begin, end), where two met at `middle`. */
static inline void N(join)(CELL *cells, uint64_t begin, uint64_t middle, uint64_t end, CELL symbol) {
    uint64_t length = end - begin;
    cells[middle] = FAR_MARK; /* a list may still name it: it must not look like a symbol */
    cells[begin] = symbol;
    if (length - 1 <= FAR) {
        cells[begin + 1] = cells[end - 1] = MARK(length - 1);
        return;
    }
    cells[begin + 1] = cells[end - 1] = FAR_MARK;
    N(put_length)(cells + begin + 2, length);
    N(put_length)(cells + end - 1 - LENGTH_CELLS, length);
}

/* The class a place belongs to, at or behind `class`. */
static inline uint64_t N(class_at)(const Merger *m, uint64_t class, uint64_t place) {
    if (place < m->class_ends[class]) return class;
    uint64_t low = class + 1, high = m->class_total - 1;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (place < m->class_ends[middle]) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* Put `made` wherever the step's pair stands at the given places, which ascend. What this does to the
   neighbours' pairs is noted in m->before and m->after. `places` keeps those where it was done. */
static void N(join_places)(Merger *m, Step *step, uint32_t made, uint32_t *places, uint32_t *size) {
    CELL *cells = m->cells;
    uint64_t class = 0;
    uint32_t done = 0;
    for (uint32_t index = 0; index < *size; index++) {
        uint64_t begin = places[index];
        if (index + 8 < *size) __builtin_prefetch(&cells[places[index + 8]]);
        if (cells[begin] != step->left) continue;
        uint64_t middle = begin + N(span)(cells, begin);
        if (cells[middle] != step->right) continue;
        uint64_t end = middle + N(span)(cells, middle);
        class = N(class_at)(m, class, begin);
        int64_t count = m->class_counts[class];
        if (cells[begin - 1]) {
            uint32_t neighbour = cells[N(begin_of)(cells, begin)];
            touch_before(m, neighbour);
            m->before[neighbour].gained += count;
            m->before[neighbour].places++;
        }
        N(join)(cells, begin, middle, end, (CELL)made);
        if (cells[end]) {
            uint32_t neighbour = cells[end];
            touch_after(m, neighbour);
            m->after[neighbour].gained += count;
            m->after[neighbour].places++;
        }
        step->joined += count;
        if (!cells[begin - 1] && !cells[end]) step->whole += count;
        places[done++] = (uint32_t)begin;
    }
    *size = done;
}

static inline void N(note)(Merger *m, uint32_t entry, uint64_t place) {
    if (!entry) return;
    Entry *born = &m->born[entry - 1];
    m->lists[born->start + born->size++] = (uint32_t)place;
}

/* Fill the lists of the entries just born: all pairs around the new symbol at the given places. Of two new
   ones side by side, the left one notes the pair. */
static void N(note_places)(Merger *m, uint32_t made, const uint32_t *places, uint32_t size) {
    const CELL *cells = m->cells;
    for (uint32_t index = 0; index < size; index++) {
        uint64_t place = places[index];
        if (index + 8 < size) __builtin_prefetch(&cells[places[index + 8]]);
        if (cells[place - 1]) {
            uint64_t begin = N(begin_of)(cells, place);
            uint32_t neighbour = cells[begin];
            if (neighbour != made) N(note)(m, m->before[neighbour].entry, begin);
        }
        uint32_t neighbour = cells[place + N(span)(cells, place)];
        if (neighbour) N(note)(m, neighbour == made ? m->before[made].entry : m->after[neighbour].entry, place);
    }
}

/* The next two neighbours: at walk->at and walk->next, in a word of the count walk->count. */
static inline int N(next_pair)(const Merger *m, const CELL *cells, Walk *walk) {
    for (;;) {
        uint64_t at = walk->next;
        while (walk->class < m->class_total && at >= m->class_ends[walk->class]) walk->class++;
        if (walk->class == m->class_total) return 0;
        walk->at = at;
        walk->next = at + (cells[at] ? N(span)(cells, at) : 1);
        walk->count = m->class_counts[walk->class];
        if (cells[at] && cells[walk->next]) return 1;
    }
}

static int N(count_pairs)(Merger *m, Candidate *table, uint64_t slots, uint64_t part, uint64_t parts) {
    const CELL *cells = m->cells;
    uint64_t used = 0;
    for (Walk walk = FROM_THE_START; N(next_pair)(m, cells, &walk);) {
        uint64_t key = key_of(cells[walk.at], cells[walk.next]), hash = scramble(key);
        if (parts > 1 && (hash >> 40) % parts != part) continue;
        uint64_t slot = hash & (slots - 1);
        while (table[slot].key && table[slot].key != key) slot = (slot + 1) & (slots - 1);
        if (!table[slot].key) {
            if (used++ >= slots / 4 * 3) return 0;
            table[slot].key = key;
        }
        table[slot].count += walk.count;
        table[slot].places++;
    }
    return 1;
}

/* Fill the lists of the queue's entries. Every pair's count is the number of its entry meanwhile. */
static void N(list_pairs)(Merger *m) {
    const CELL *cells = m->cells;
    for (Walk walk = FROM_THE_START; N(next_pair)(m, cells, &walk);) {
        const Pair *pair = find_pair(m, key_of(cells[walk.at], cells[walk.next]));
        if (!pair) continue;
        Entry *entry = &m->queue[pair->count];
        m->lists[entry->start + entry->size++] = (uint32_t)walk.at;
    }
}

/* Give every symbol one cell again and leave out words that have become a single one. */
static void N(close_up)(Merger *m) {
    CELL *cells = m->cells;
    uint64_t from = 1, to = 1;
    for (uint64_t class = 0; class < m->class_total; class++) {
        uint64_t end = m->class_ends[class];
        while (from < end) {
            uint64_t word = to;
            for (uint64_t next; cells[from]; from = next) {
                next = from + N(span)(cells, from);
                cells[to++] = cells[from];
            }
            from++;
            if (to - word < 2) to = word;
            else cells[to++] = 0;
        }
        m->class_ends[class] = to;
    }
    m->cell_count = to;
}

/* Symbols from cell *next on, one each, words parted by 0; how many were written. */
static uint64_t N(copy_cells)(Merger *m, uint64_t *next, uint32_t *symbols, uint64_t room) {
    const CELL *cells = m->cells;
    uint64_t written = 0, at = *next;
    for (; at < m->cell_count && written < room; written++) {
        symbols[written] = cells[at];
        at += cells[at] ? N(span)(cells, at) : 1;
    }
    *next = at;
    return written;
}

const CellWork WORK = {
    .most_symbols = LEAST_MARK - 1,
    .join_places = N(join_places),
    .note_places = N(note_places),
    .count_pairs = N(count_pairs),
    .list_pairs = N(list_pairs),
    .close_up = N(close_up),
    .copy_cells = N(copy_cells),
};
