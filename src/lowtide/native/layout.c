/* The table that Python compares its own types with; layout.h has what stands in it. */

#include "layout.h"

typedef struct {
    const char *name; /* of a struct, a field or a function; none for an argument */
    const char *type; /* of a field, an argument or a result */
    uint64_t number;  /* the size of a struct, the offset of a field */
} Row;

#if INTPTR_MAX != INT64_MAX
#error "lowtide's C code is for 64-bit machines"
#endif
#if __SIZEOF_LONG__ == 8
#define LONG "i64"
#define UNSIGNED_LONG "u64"
#else
#define LONG "i32"
#define UNSIGNED_LONG "u32"
#endif

/* The name of a type; `T *` because void has no values. int64_t is one of long and long long, size_t as well.
   What is not listed is a pointer whose target Python does not name. */
#define POINTED(T, text) T **: text "*", const T **: text "*"
#define TYPE(T)                                                                                            \
    _Generic((T *)0,                                                                                       \
        void *: "void", int *: "i32", unsigned *: "u32", long *: LONG, unsigned long *: UNSIGNED_LONG,     \
        long long *: "i64", unsigned long long *: "u64", POINTED(int, "i32"), POINTED(unsigned, "u32"),    \
        POINTED(long, LONG), POINTED(unsigned long, UNSIGNED_LONG), POINTED(long long, "i64"),             \
        POINTED(unsigned long long, "u64"), void ***: "**", Marks *: "Marks",                          \
        POINTED(CountSettings, "CountSettings"), POINTED(MergerSettings, "MergerSettings"),                \
        POINTED(Step, "Step"), char *: "?", signed char *: "?", unsigned char *: "?", short *: "?",        \
        unsigned short *: "?", float *: "?", double *: "?", _Bool *: "?", default: "*")

#define ARGUMENT(type) {NULL, TYPE(type), 0},
#define EACH_1(type) ARGUMENT(type)
#define EACH_2(type, ...) ARGUMENT(type) EACH_1(__VA_ARGS__)
#define EACH_3(type, ...) ARGUMENT(type) EACH_2(__VA_ARGS__)
#define EACH_4(type, ...) ARGUMENT(type) EACH_3(__VA_ARGS__)
#define EACH_5(type, ...) ARGUMENT(type) EACH_4(__VA_ARGS__)
#define EACH_6(type, ...) ARGUMENT(type) EACH_5(__VA_ARGS__)
#define EACH_7(type, ...) ARGUMENT(type) EACH_6(__VA_ARGS__)
#define EACH_8(type, ...) ARGUMENT(type) EACH_7(__VA_ARGS__)
#define EACH_9(type, ...) ARGUMENT(type) EACH_8(__VA_ARGS__)
#define NINTH(a, b, c, d, e, f, g, h, i, found, ...) found
#define ARGUMENTS(...)                                                                                     \
    NINTH(__VA_ARGS__, EACH_9, EACH_8, EACH_7, EACH_6, EACH_5, EACH_4, EACH_3, EACH_2, EACH_1, )(__VA_ARGS__)

#define FUNCTION_ROWS(result, name, ...) {#name, TYPE(result), 0}, ARGUMENTS(__VA_ARGS__)

/* A field's offset is asked of a struct with a name: offsetof(Marks, bytes). */
#define MARKS_FIELD(type, name) {#name, TYPE(type), offsetof(Marks, name)},
#define COUNT_SETTINGS_FIELD(type, name) {#name, TYPE(type), offsetof(CountSettings, name)},
#define MERGER_SETTINGS_FIELD(type, name) {#name, TYPE(type), offsetof(MergerSettings, name)},
#define STEP_FIELD(type, name) {#name, TYPE(type), offsetof(Step, name)},
#define STRUCT_ROWS(name, fields) {#name, "struct", sizeof(name)}, fields(fields##_FIELD)

extern const Row lt_layout[];
const Row lt_layout[] = {STRUCTS(STRUCT_ROWS) FUNCTIONS(FUNCTION_ROWS){NULL, NULL, 0}};
