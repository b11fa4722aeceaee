/* Headers are read by a parser for just that dictionary; archives through their central directory. */
#include "worker/data/table/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZLIB_CONST /* inflate does not write to its input */
#include <zlib.h>

enum {
    MAGIC_BYTES = 6,
    PREFIX_BYTES = 8, /* magic and version */
    MOST_ARRAYS = 64,
    MOST_NAME = 128,
    CHUNK_BYTES = 1 << 16, /* of an archive, at first */
    BLOCK_BYTES = 1 << 16, /* of rows as doubles; at least one row */
    ZIP_END = 22,
    ZIP_ENTRY = 46,
    ZIP_LOCAL = 30,
    ZIP_MOST_COMMENT = 65535,
    ZIP_STORED = 0,
    ZIP_DEFLATED = 8,
    ZIP_SIZES_FOLLOW = 8, /* a flag */
    ZIP_LONG_SIZES = 1,   /* an extra field's kind */
    DEFLATE_MOST_RATIO = 1032,
};

static const char npy_magic[] = "\x93NUMPY";

/* One array: its shape and where its elements are. */
struct array {
    char name[MOST_NAME];
    char kind;  /* b, i, u or f, as numpy calls them */
    int size;   /* bytes of an element */
    bool swaps; /* big-endian */
    bool by_columns;
    uint64_t rows;
    int columns;
    bool is_vector;
    bool is_no_table;        /* text, a single value, images ... */
    const uint8_t *elements; /* NULL: in the stream */
    uint8_t *memory;         /* the memory that contains them, if it is the array's own */
};

struct npy_reader {
    struct stream *stream;
    uint8_t *file; /* all of an archive */
    struct array arrays[MOST_ARRAYS];
    int count, columns;
    char *left_out[MOST_ARRAYS]; /* why an array of an archive is no part of the table */
    int left_out_count;
    uint64_t rows, next;
    uint8_t *chunk; /* room for a block's rows of the stream; NULL: they are in memory */
    double *block;  /* [block_capacity, columns]; the chunk itself if its elements are doubles of this machine */
    size_t block_rows, block_next, block_capacity;
    size_t plain_end; /* rows of the block before it, from the last one asked about on, are plain */
};

bool npy_is_known(const void *head, size_t size)
{
    return size >= MAGIC_BYTES && (memcmp(head, npy_magic, MAGIC_BYTES) == 0 || memcmp(head, "PK\3\4", 4) == 0 ||
                                   memcmp(head, "PK\5\6", 4) == 0);
}

/* --- headers --- */

/* The text after 'key': in the dictionary; NULL if it is missing. */
static const char *find_value(const char *header, const char *key)
{
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *at = strstr(header, quoted);
    if (!at) {
        return NULL;
    }
    at += strlen(quoted);
    return at + strspn(at, " ");
}

static bool parse_type(struct array *array, const char *text)
{
    static const struct {
        char kind;
        int size;
    } known[] = {{'b', 1}, {'i', 1}, {'i', 2}, {'i', 4}, {'i', 8}, {'u', 1},
                 {'u', 2}, {'u', 4}, {'u', 8}, {'f', 2}, {'f', 4}, {'f', 8}};
    if (!text || text[0] != '\'' || !strchr("<>|=", text[1]) || text[1] == '\0' || text[2] == '\0') {
        return false;
    }
    char *end;
    const long size = strtol(text + 3, &end, 10);
    if (*end != '\'') {
        return false;
    }
    array->kind = text[2];
    array->size = (int)size;
    array->swaps = text[1] == '>';
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].kind == array->kind && known[i].size == size) {
            return true;
        }
    }
    return false;
}

static bool parse_shape(struct array *array, const char *text)
{
    if (!text || *text++ != '(') {
        return false;
    }
    uint64_t sizes[2] = {0, 1};
    int count = 0;
    while (*text >= '0' && *text <= '9') {
        char *end;
        const unsigned long long size = strtoull(text, &end, 10);
        if (count == 2 || size > (uint64_t)1 << 40) {
            return false;
        }
        sizes[count++] = size;
        text = end + strspn(end, ", ");
    }
    array->rows = sizes[0];
    array->columns = sizes[1] <= NPY_MAX_COLUMNS ? (int)sizes[1] : 0;
    array->is_vector = count == 1;
    return *text == ')' && count >= 1 && array->columns >= 1;
}

static bool parse_header(struct array *array, const char *header, const char *name, struct error *error)
{
    const char *type = find_value(header, "descr");
    if (!parse_type(array, type)) {
        const char kind = type && type[0] == '\'' && type[1] != '\0' ? type[2] : '\0';
        return error_set(error, "%s: its elements are %s", name,
                         kind == 'O' ? "Python objects (a pickle), which are never loaded; save numbers, as by "
                                       "array.astype(float), or a table with texts as CSV"
                         : kind == 'U' || kind == 'S'
                             ? "text, which arrays of a table are not; save the table as CSV, or numbers for the texts"
                             : "not numbers that a table can take: bool, int, uint, float16 to float64 (of a "
                               "structured array: numpy.lib.recfunctions.structured_to_unstructured)");
    }
    const char *order = find_value(header, "fortran_order");
    if (!order || (strncmp(order, "True", 4) != 0 && strncmp(order, "False", 5) != 0) ||
        !parse_shape(array, find_value(header, "shape"))) {
        return error_set(error, "%s: has no shape of a table; it needs [rows] or [rows, columns], at most %d", name,
                         NPY_MAX_COLUMNS);
    }
    array->by_columns = order[0] == 'T' && !array->is_vector;
    return true;
}

static size_t row_bytes(const struct array *array)
{
    return (size_t)array->columns * (size_t)array->size;
}

static bool read_exactly(struct stream *stream, void *bytes, size_t size, struct error *error)
{
    size_t got;
    if (!stream_read(stream, bytes, size, &got, error)) {
        return false;
    }
    return got == size || error_set(error, "%s: ends before its last element; was it cut?", stream_name(stream));
}

/* The dictionary as text, which the caller frees; *size: bytes before the elements. */
static char *read_header(struct stream *stream, size_t *size, struct error *error)
{
    uint8_t prefix[PREFIX_BYTES + 4];
    const char *name = stream_name(stream);
    if (!read_exactly(stream, prefix, PREFIX_BYTES, error)) {
        return NULL;
    }
    const int version = prefix[MAGIC_BYTES];
    if (memcmp(prefix, npy_magic, MAGIC_BYTES) != 0 || version < 1 || version > 3) {
        error_set(error, "%s: is no numpy array of format 1 to 3", name);
        return NULL;
    }
    const size_t length_bytes = version == 1 ? 2 : 4;
    if (!read_exactly(stream, prefix + PREFIX_BYTES, length_bytes, error)) {
        return NULL;
    }
    uint64_t length = 0;
    for (size_t i = 0; i < length_bytes; i++) {
        length |= (uint64_t)prefix[PREFIX_BYTES + i] << 8 * i;
    }
    char *text = length <= NPY_MAX_HEADER ? calloc(1, length + 1) : NULL;
    if (!text) {
        error_set(error, "%s: its header of %llu bytes is too large", name, (unsigned long long)length);
        return NULL;
    }
    if (!read_exactly(stream, text, length, error)) {
        free(text);
        return NULL;
    }
    *size = PREFIX_BYTES + length_bytes + (size_t)length;
    return text;
}

/* Reads the header, and all elements if they are in column order. bytes: all of the stream, if they are in memory. */
static bool read_array(struct array *array, struct stream *stream, const uint8_t *bytes, struct error *error)
{
    size_t header_bytes;
    char *header = read_header(stream, &header_bytes, error);
    const char *name = stream_name(stream);
    if (!header) {
        return false;
    }
    array->is_no_table = !parse_header(array, header, name, error);
    free(header);
    if (array->is_no_table) {
        return false;
    }
    const uint64_t all = stream_most_bytes(stream), most = bytes && all >= header_bytes ? all - header_bytes : all;
    if (array->rows > most / row_bytes(array)) {
        return error_set(error, "%s: says that it has %llu rows, more than fit into the file; was it cut?", name,
                         (unsigned long long)array->rows);
    }
    if (bytes) {
        array->elements = bytes + header_bytes;
        return true;
    }
    if (!array->by_columns) {
        return true;
    }
    const size_t size = (size_t)array->rows * row_bytes(array);
    if (!stream_charge(stream, size, error)) {
        return false;
    }
    array->memory = malloc(size > 0 ? size : 1);
    if (!array->memory) {
        return error_set(error, "%s: out of memory for %zu MiB", name, size >> 20);
    }
    array->elements = array->memory;
    return read_exactly(stream, array->memory, size, error);
}

/* --- archives --- */

static uint64_t little(const uint8_t *bytes, int count)
{
    uint64_t number = 0;
    for (int i = 0; i < count; i++) {
        number |= (uint64_t)bytes[i] << 8 * i;
    }
    return number;
}

/* The end record of the central directory; NULL if there is none. */
static const uint8_t *find_end(const uint8_t *file, size_t size)
{
    for (size_t back = ZIP_END; back <= size && back <= ZIP_END + ZIP_MOST_COMMENT; back++) {
        if (memcmp(file + size - back, "PK\5\6", 4) == 0) {
            return file + size - back;
        }
    }
    return NULL;
}

static bool inflate_member(uint8_t *out, size_t out_size, const uint8_t *in, size_t in_size)
{
    z_stream stream = {.next_in = in, .avail_in = (uInt)in_size, .next_out = out, .avail_out = (uInt)out_size};
    if (in_size > UINT32_MAX || out_size > UINT32_MAX || inflateInit2(&stream, -15) != Z_OK) {
        return false;
    }
    const bool done = inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_out == 0;
    inflateEnd(&stream);
    return done;
}

/* A member, as both of its headers describe it. */
struct zip_member {
    const char *name;
    size_t name_size;
    uint64_t method, checksum;
    uint64_t packed, plain;    /* bytes */
    uint64_t start, data, end; /* offsets of its local header, its bytes, and what follows */
};

/* Sizes of 64 bits in a local header's extra field: numpy writes them whatever the size. */
static void read_long_sizes(const uint8_t *extra, size_t size, uint64_t *packed, uint64_t *plain)
{
    while (size >= 4) {
        const size_t length = (size_t)little(extra + 2, 2);
        if (length > size - 4) {
            return;
        }
        if (little(extra, 2) == ZIP_LONG_SIZES && length >= 16) {
            *plain = little(extra + 4, 8);
            *packed = little(extra + 12, 8);
            return;
        }
        extra += 4 + length;
        size -= 4 + length;
    }
}

/* Does its local header exist, and say the same as the directory? Sizes may follow the bytes instead. */
static bool find_member(struct zip_member *member, const uint8_t *file, uint64_t directory, const uint8_t *entry)
{
    *member = (struct zip_member){.name = (const char *)entry + ZIP_ENTRY,
                                  .name_size = (size_t)little(entry + 28, 2),
                                  .method = little(entry + 10, 2),
                                  .checksum = little(entry + 16, 4),
                                  .packed = little(entry + 20, 4),
                                  .plain = little(entry + 24, 4),
                                  .start = little(entry + 42, 4)};
    const uint8_t *local = file + member->start;
    if (member->start + ZIP_LOCAL > directory || memcmp(local, "PK\3\4", 4) != 0) {
        return false;
    }
    const uint64_t name_size = little(local + 26, 2), extra_size = little(local + 28, 2);
    uint64_t packed = little(local + 18, 4), plain = little(local + 22, 4);
    member->data = member->start + ZIP_LOCAL + name_size + extra_size;
    member->end = member->data + member->packed;
    if (member->end > directory || little(local + 8, 2) != member->method) {
        return false;
    }
    if (packed == UINT32_MAX || plain == UINT32_MAX) {
        read_long_sizes(local + ZIP_LOCAL + name_size, (size_t)extra_size, &packed, &plain);
    }
    const bool sizes_follow = little(local + 6, 2) & ZIP_SIZES_FOLLOW;
    if ((packed != member->packed || plain != member->plain) && !(sizes_follow && packed == 0 && plain == 0)) {
        return false;
    }
    return (member->method == ZIP_STORED && member->packed == member->plain) ||
           (member->method == ZIP_DEFLATED && member->plain <= member->packed * DEFLATE_MOST_RATIO + 64);
}

/* Bytes that stand for several arrays would unpack to many times what an archive can hold. */
static bool check_apart(const struct zip_member *members, int count, const char *file, struct error *error)
{
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            if (members[i].start < members[j].end && members[j].start < members[i].end) {
                return error_set(error, "%s: its arrays %.*s and %.*s overlap; write it again", file,
                                 (int)members[j].name_size, members[j].name, (int)members[i].name_size,
                                 members[i].name);
            }
        }
    }
    return true;
}

/* A member's bytes, decompressed into memory of the array's own if necessary. */
static const uint8_t *member_bytes(struct npy_reader *reader, struct array *array, const struct zip_member *member,
                                   struct error *error)
{
    const uint8_t *bytes = reader->file + member->data;
    const char *name = stream_name(reader->stream);
    if (member->method == ZIP_STORED) {
        return bytes;
    }
    if (!stream_charge(reader->stream, (size_t)member->plain + 1, error)) {
        return NULL;
    }
    array->memory = malloc((size_t)member->plain + 1);
    if (!array->memory || !inflate_member(array->memory, (size_t)member->plain, bytes, (size_t)member->packed)) {
        error_set(error, array->memory ? "%s: its array %s is damaged" : "%s: out of memory for its array %s", name,
                  array->name);
        return NULL;
    }
    return array->memory;
}

static void name_array(struct array *array, const struct zip_member *member)
{
    const char *name = member->name;
    size_t length = member->name_size;
    if (length > 4 && memcmp(name + length - 4, ".npy", 4) == 0) {
        length -= 4;
    }
    snprintf(array->name, sizeof array->name, "%.*s", (int)(length < MOST_NAME ? length : MOST_NAME - 1), name);
}

/* One member: "X.npy". */
static bool add_member(struct npy_reader *reader, const struct zip_member *member, struct error *error)
{
    struct array *array = &reader->arrays[reader->count++];
    const char *file = stream_name(reader->stream);
    name_array(array, member);
    const uint8_t *bytes = member_bytes(reader, array, member, error);
    if (!bytes) {
        return false;
    }
    if (crc32_z(0, bytes, (size_t)member->plain) != member->checksum) {
        return error_set(error, "%s: its array %s is damaged: its checksum is wrong", file, array->name);
    }
    struct stream *stream;
    if (!stream_open_bytes_as(&stream, array->name, bytes, (size_t)member->plain, STREAM_PLAIN, error)) {
        return false;
    }
    const bool done = read_array(array, stream, bytes, error) || error_wrap(error, "%s", file);
    stream_close(stream);
    if (array->is_no_table) {
        reader->left_out[reader->left_out_count] = strdup(error->text);
        reader->left_out_count += reader->left_out[reader->left_out_count] != NULL;
        reader->count--;
        stream_release(reader->stream, array->memory ? (size_t)member->plain + 1 : 0);
        free(array->memory);
        *array = (struct array){.columns = 0};
        return true;
    }
    return done;
}

static bool open_archive(struct npy_reader *reader, size_t size, struct error *error)
{
    const char *name = stream_name(reader->stream);
    const uint8_t *end = find_end(reader->file, size);
    if (!end) {
        return error_set(error, "%s: has no directory, as a .npz file does at its end; was it cut?", name);
    }
    const uint64_t entries = little(end + 10, 2), directory = little(end + 16, 4);
    struct zip_member members[MOST_ARRAYS];
    if (entries == 0 || entries > MOST_ARRAYS) {
        return error_set(error, "%s: has %llu arrays; a table has 1 to %d", name, (unsigned long long)entries,
                         MOST_ARRAYS);
    }
    uint64_t at = directory;
    for (uint64_t i = 0; i < entries; i++) {
        const uint8_t *entry = reader->file + at;
        if (at + ZIP_ENTRY > size || memcmp(entry, "PK\1\2", 4) != 0 || at + ZIP_ENTRY + little(entry + 28, 2) > size) {
            return error_set(error, "%s: its directory is damaged", name);
        }
        if (!find_member(&members[i], reader->file, directory, entry)) {
            return error_set(error, "%s: its array %.*s is damaged, or packed otherwise than numpy does", name,
                             (int)members[i].name_size, members[i].name);
        }
        at += ZIP_ENTRY + little(entry + 28, 2) + little(entry + 30, 2) + little(entry + 32, 2);
    }
    if (!check_apart(members, (int)entries, name, error)) {
        return false;
    }
    for (uint64_t i = 0; i < entries; i++) {
        if (!add_member(reader, &members[i], error)) {
            return false;
        }
    }
    return reader->count > 0 || reader->left_out_count == 0 || error_set(error, "%s", reader->left_out[0]);
}

/* The rest of the stream after the head. */
static bool read_archive(struct npy_reader *reader, struct error *error)
{
    size_t size = 0;
    for (size_t capacity = CHUNK_BYTES;; capacity *= 2) {
        size_t got;
        if (!stream_charge(reader->stream, capacity - size, error)) {
            return false;
        }
        uint8_t *larger = realloc(reader->file, capacity);
        if (!larger) {
            return error_set(error, "%s: out of memory while reading it", stream_name(reader->stream));
        }
        reader->file = larger;
        if (!stream_read(reader->stream, reader->file + size, capacity - size, &got, error)) {
            return false;
        }
        size += got;
        if (size < capacity) {
            break;
        }
    }
    return open_archive(reader, size, error);
}

/* --- reading --- */

static bool lay_out(struct npy_reader *reader, struct error *error)
{
    const char *name = stream_name(reader->stream);
    reader->rows = reader->arrays[0].rows;
    for (int i = 0; i < reader->count; i++) {
        if (reader->arrays[i].rows != reader->rows) {
            return error_set(error, "%s: its arrays %s and %s have %llu and %llu rows", name, reader->arrays[0].name,
                             reader->arrays[i].name, (unsigned long long)reader->rows,
                             (unsigned long long)reader->arrays[i].rows);
        }
        reader->columns += reader->arrays[i].columns;
    }
    return reader->columns <= NPY_MAX_COLUMNS || error_set(error, "%s: has too many columns", name);
}

static bool are_doubles(const struct array *array)
{
    return array->kind == 'f' && array->size == 8 && !array->swaps;
}

static bool make_block(struct npy_reader *reader, struct error *error)
{
    const struct array *array = &reader->arrays[0];
    const size_t bytes = (size_t)reader->columns * sizeof *reader->block;
    reader->block_capacity = bytes < BLOCK_BYTES ? BLOCK_BYTES / bytes : 1;
    if (!stream_charge(reader->stream, 2 * reader->block_capacity * bytes, error)) {
        return false;
    }
    reader->chunk = array->elements ? NULL : malloc(reader->block_capacity * row_bytes(array));
    reader->block =
        reader->chunk && are_doubles(array) ? (void *)reader->chunk : malloc(reader->block_capacity * bytes);
    return (reader->block && (reader->chunk || array->elements)) ||
           error_set(error, "%s: out of memory while reading it", stream_name(reader->stream));
}

static bool open_stream(struct npy_reader *reader, const uint8_t *head, struct error *error)
{
    const bool is_archive = memcmp(head, "PK", 2) == 0;
    const bool done = is_archive ? read_archive(reader, error)
                                 : read_array(&reader->arrays[reader->count++], reader->stream, NULL, error);
    return done && lay_out(reader, error) && make_block(reader, error);
}

static uint64_t element_bits(const struct array *array, const uint8_t *bytes)
{
    uint64_t bits = 0;
    if (!array->swaps) {
        memcpy(&bits, bytes, (size_t)array->size);
        return bits;
    }
    for (int i = 0; i < array->size; i++) {
        bits = bits << 8 | bytes[i];
    }
    return bits;
}

/* IEEE 754's binary16. */
static double half(uint64_t bits)
{
    const int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
    double number;
    if (exponent == 31) {
        number = fraction != 0 ? __builtin_nan("") : __builtin_inf();
    } else if (exponent == 0) {
        number = __builtin_ldexp(fraction, -24);
    } else {
        number = __builtin_ldexp(1024 + fraction, exponent - 25);
    }
    return bits >> 15 ? -number : number;
}

static double element(const struct array *array, const uint8_t *bytes)
{
    const uint64_t bits = element_bits(array, bytes);
    double number;
    float single;
    switch (array->kind) {
    case 'f':
        if (array->size == 8) {
            memcpy(&number, &bits, sizeof number);
            return number;
        }
        if (array->size == 4) {
            const uint32_t low = (uint32_t)bits;
            memcpy(&single, &low, sizeof single);
            return (double)single;
        }
        return half(bits);
    case 'i': {
        const int unused = 64 - 8 * array->size;
        return (double)((int64_t)(bits << unused) >> unused);
    }
    case 'b':
        return bits != 0;
    default:
        return (double)bits;
    }
}

/* Strided elements of the common types, without a decision for each. */
static void convert(const struct array *array, const uint8_t *bytes, size_t stride, double *numbers, size_t count)
{
    const bool is_dense = stride == (size_t)array->size;
    if (is_dense && are_doubles(array)) {
        memcpy(numbers, bytes, count * sizeof *numbers);
        return;
    }
    if (is_dense && array->kind == 'f' && array->size == 4 && !array->swaps) {
        for (size_t i = 0; i < count; i++) {
            float single;
            memcpy(&single, bytes + i * sizeof single, sizeof single);
            numbers[i] = (double)single;
        }
        return;
    }
    for (size_t i = 0; i < count; i++) {
        numbers[i] = element(array, bytes + i * stride);
    }
}

/* An array's part of the block; bytes: the array's elements of its rows [first, ...). */
static void convert_rows(const struct npy_reader *reader, const struct array *array, const uint8_t *bytes, size_t first,
                         double *to)
{
    const size_t columns = (size_t)reader->columns, size = (size_t)array->size;
    if (!array->by_columns && array->columns == reader->columns) {
        convert(array, bytes + first * row_bytes(array), size, to, reader->block_rows * columns);
        return;
    }
    for (size_t row = first; row < first + reader->block_rows; row++, to += columns) {
        if (array->by_columns) {
            convert(array, bytes + row * size, (size_t)array->rows * size, to, (size_t)array->columns);
        } else {
            convert(array, bytes + row * row_bytes(array), size, to, (size_t)array->columns);
        }
    }
}

static bool fill_block(struct npy_reader *reader, struct error *error)
{
    const uint64_t left = reader->rows - reader->next;
    const size_t rows = left < reader->block_capacity ? (size_t)left : reader->block_capacity;
    if (reader->chunk && !read_exactly(reader->stream, reader->chunk, rows * row_bytes(&reader->arrays[0]), error)) {
        return false;
    }
    reader->block_rows = rows;
    reader->block_next = reader->plain_end = 0;
    if (reader->chunk && (void *)reader->chunk != reader->block) {
        convert_rows(reader, &reader->arrays[0], reader->chunk, 0, reader->block);
    }
    double *to = reader->block;
    for (int i = 0; !reader->chunk && i < reader->count; i++) {
        convert_rows(reader, &reader->arrays[i], reader->arrays[i].elements, (size_t)reader->next, to);
        to += reader->arrays[i].columns;
    }
    return true;
}

bool npy_next(struct npy_reader *reader, const double **numbers, bool *there, struct error *error)
{
    *there = reader->next < reader->rows;
    if (!*there) {
        return true;
    }
    if (reader->block_next == reader->block_rows && !fill_block(reader, error)) {
        return false;
    }
    *numbers = reader->block + reader->block_next++ * (size_t)reader->columns;
    reader->next++;
    return true;
}

/*
 * Are all below 2^127? By their exponents: larger, infinite or NaN values carry into the sign bit. Numbers from there
 * to the end of float32 are not worth a comparison of each.
 */
static bool is_plain(const double *numbers, int count)
{
    static const uint64_t sign = (uint64_t)1 << 63, limit = (uint64_t)(1023 + 127) << 52;
    uint64_t carried = 0;
    for (int i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        carried |= (bits & ~sign) + (sign - limit);
    }
    return (carried & sign) == 0;
}

int npy_plain(struct npy_reader *reader)
{
    const size_t row = reader->block_next - 1;
    if (reader->plain_end <= row) {
        reader->plain_end = row;
        while (reader->plain_end < reader->block_rows &&
               is_plain(reader->block + reader->plain_end * (size_t)reader->columns, reader->columns)) {
            reader->plain_end++;
        }
    }
    return reader->plain_end - row < NPY_MOST_PLAIN ? (int)(reader->plain_end - row) : NPY_MOST_PLAIN;
}

void npy_skip(struct npy_reader *reader, int count)
{
    reader->block_next += (size_t)count;
    reader->next += (uint64_t)count;
}

uint64_t npy_row(const struct npy_reader *reader)
{
    return reader->next - 1;
}

bool npy_open(struct npy_reader **result, struct stream *stream, const uint8_t head[NPY_HEAD], struct error *error)
{
    struct npy_reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        error_set(error, "%s: out of memory while reading it", stream_name(stream));
        stream_close(stream);
        return false;
    }
    reader->stream = stream;
    if (!open_stream(reader, head, error)) {
        npy_close(reader);
        return false;
    }
    *result = reader;
    return true;
}

void npy_close(struct npy_reader *reader)
{
    if (!reader) {
        return;
    }
    for (int i = 0; i < reader->count; i++) {
        free(reader->arrays[i].memory);
    }
    for (int i = 0; i < reader->left_out_count; i++) {
        free(reader->left_out[i]);
    }
    free(reader->file);
    if ((void *)reader->chunk != reader->block) {
        free(reader->chunk);
    }
    free(reader->block);
    stream_close(reader->stream);
    free(reader);
}

int npy_columns(const struct npy_reader *reader)
{
    return reader->columns;
}

const char *npy_column_name(const struct npy_reader *reader, int column, char name[NPY_COLUMN_NAME])
{
    const struct array *array = reader->arrays;
    while (column >= array->columns) {
        column -= array++->columns;
    }
    if (array->name[0] == '\0') {
        snprintf(name, NPY_COLUMN_NAME, "%d", column);
    } else if (array->columns == 1) {
        snprintf(name, NPY_COLUMN_NAME, "%s", array->name);
    } else {
        snprintf(name, NPY_COLUMN_NAME, "%s.%d", array->name, column);
    }
    return name;
}

char npy_kind(const struct npy_reader *reader)
{
    char kind = reader->count > 0 ? reader->arrays[0].kind : '\0';
    for (int i = 1; i < reader->count; i++) {
        kind = reader->arrays[i].kind == kind ? kind : '\0';
    }
    return kind;
}

const char *npy_left_out(const struct npy_reader *reader, int index)
{
    return index < reader->left_out_count ? reader->left_out[index] : "";
}

const char *npy_name(const struct npy_reader *reader)
{
    return stream_name(reader->stream);
}
