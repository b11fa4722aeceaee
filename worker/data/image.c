/* Decoders of pictures, the encoder of PNG, and fitting to a model's size. */
#include "worker/data/image.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jpeglib.h>
#include <jerror.h>
#include <spng.h>
#define ZLIB_CONST /* zlib does not write to its input */
#include <zlib.h>

#include "net/bytes.h"

static bool check_size(uint64_t width, uint64_t height, struct error *error)
{
    return (width >= 1 && height >= 1 && width <= IMAGE_MAX_SIDE && height <= IMAGE_MAX_SIDE &&
            width * height <= IMAGE_MAX_PIXELS) ||
           error_set(error, "is an image of %llux%llu pixels; the limits are %d per side and %d in all",
                     (unsigned long long)width, (unsigned long long)height, IMAGE_MAX_SIDE, IMAGE_MAX_PIXELS);
}

/* Checks the size and allocates a white image of image->channels, which image_free releases. */
static bool image_create(struct image *image, uint64_t width, uint64_t height, struct error *error)
{
    if (!check_size(width, height, error)) {
        return false;
    }
    const size_t bytes = (size_t)(width * height) * (size_t)image->channels;
    image->width = (int)width;
    image->height = (int)height;
    image->pixels = malloc(bytes);
    if (!image->pixels) {
        return error_set(error, "out of memory for an image of %dx%d", image->width, image->height);
    }
    memset(image->pixels, 255, bytes);
    return true;
}

/* A level of grey, or of a colour, of that opacity (0..255) on white. */
static inline uint8_t image_on_white(unsigned level, unsigned opacity)
{
    return (uint8_t)((level * opacity + 255 * (255 - opacity) + 127) / 255);
}

/* A colour, with its opacity (0..255). */
struct colour {
    uint8_t red, green, blue, opacity;
};

static inline bool is_grey(struct colour colour)
{
    return colour.red == colour.green && colour.green == colour.blue;
}

/* Sets pixel number `at`, in grey or in colour. */
static inline void set_pixel(struct image *image, size_t at, struct colour colour)
{
    if (image->channels == 1) {
        image->pixels[at] = image_on_white(image_luma(colour.red, colour.green, colour.blue), colour.opacity);
        return;
    }
    uint8_t *pixel = image->pixels + IMAGE_RGB * at;
    pixel[0] = image_on_white(colour.red, colour.opacity);
    pixel[1] = image_on_white(colour.green, colour.opacity);
    pixel[2] = image_on_white(colour.blue, colour.opacity);
}

/* --- BMP --- */

/* BMP as Windows writes it: BITMAPINFOHEADER or its successors, 1, 4, 8, 24 or 32 bits, uncompressed. */

enum {
    FILE_HEADER = 14,
    INFO_HEADER = 40,
    BITFIELDS = 3, /* with 32 bits almost always in the default order; the masks are checked */
    MOST_COLOURS = 256,
};

struct bmp {
    uint64_t width, height;
    bool top_down;
    unsigned bits;
    uint64_t pixels_at;
    struct colour palette[MOST_COLOURS];
    unsigned colours;
};

static bool bmp_is(const uint8_t *bytes, size_t size)
{
    return size >= FILE_HEADER + 4 && bytes[0] == 'B' && bytes[1] == 'M' &&
           get_le32(bytes + FILE_HEADER) >= INFO_HEADER;
}

/* Default positions of red, green and blue in a 32-bit pixel. */
static bool masks_are_usual(const uint8_t *masks)
{
    return get_le32(masks) == 0xFF0000 && get_le32(masks + 4) == 0xFF00 && get_le32(masks + 8) == 0xFF;
}

static bool bmp_read_palette(struct bmp *bmp, const uint8_t *bytes, size_t size, uint64_t at, struct error *error)
{
    unsigned used = get_le32(bytes + 46);
    bmp->colours = used == 0 || used > 1u << bmp->bits ? 1u << bmp->bits : used;
    if (at + (uint64_t)4 * bmp->colours > size) {
        return error_set(error, "is a BMP that ends within its palette");
    }
    for (unsigned i = 0; i < bmp->colours; i++) {
        const uint8_t *entry = bytes + at + (size_t)4 * i;
        bmp->palette[i] = (struct colour){entry[2], entry[1], entry[0], 255};
    }
    return true;
}

static bool bmp_read_header(struct bmp *bmp, const uint8_t *bytes, size_t size, struct error *error)
{
    if (size < FILE_HEADER + INFO_HEADER) {
        return error_set(error, "is a BMP that ends within its header");
    }
    uint32_t header = get_le32(bytes + 14), compression = get_le32(bytes + 30);
    int64_t width = (int32_t)get_le32(bytes + 18), height = (int32_t)get_le32(bytes + 22);
    bmp->bits = get_le16(bytes + 28);
    bmp->pixels_at = get_le32(bytes + 10);
    bmp->top_down = height < 0;
    bmp->height = (uint64_t)(height < 0 ? -height : height);
    bmp->width = width < 0 ? 0 : (uint64_t)width;
    bool is_plain = compression == 0;
    if (compression == BITFIELDS && bmp->bits == 32 && size >= FILE_HEADER + INFO_HEADER + 12) {
        is_plain = masks_are_usual(bytes + FILE_HEADER + INFO_HEADER);
    }
    if (!is_plain || (bmp->bits != 1 && bmp->bits != 4 && bmp->bits != 8 && bmp->bits != 24 && bmp->bits != 32)) {
        return error_set(error,
                         "is a BMP with %u bits and compression %u; save it uncompressed, with 1, 4, 8, 24 or 32",
                         bmp->bits, compression);
    }
    return bmp->bits > 8 || bmp_read_palette(bmp, bytes, size, FILE_HEADER + (uint64_t)header, error);
}

static struct colour bmp_colour(const struct bmp *bmp, const uint8_t *row, size_t x)
{
    if (bmp->bits <= 8) {
        size_t bit = x * bmp->bits;
        unsigned index = (unsigned)row[bit / 8] >> (8 - bmp->bits - bit % 8) & ((1u << bmp->bits) - 1);
        return index < bmp->colours ? bmp->palette[index] : (struct colour){.opacity = 255};
    }
    const uint8_t *pixel = row + x * (bmp->bits / 8);
    return (struct colour){pixel[2], pixel[1], pixel[0], 255};
}

static uint64_t bmp_row_bytes(const struct bmp *bmp)
{
    return (bmp->width * bmp->bits + 31) / 32 * 4;
}

/* Whether the bytes end before the pixels do; its size has been checked. */
static bool bmp_lacks_pixels(const struct bmp *bmp, size_t size)
{
    return bmp->pixels_at > size || bmp_row_bytes(bmp) * bmp->height > size - bmp->pixels_at;
}

static bool bmp_is_cut(const uint8_t *bytes, size_t size)
{
    struct bmp bmp = {0};
    struct error error;
    return bmp_read_header(&bmp, bytes, size, &error) && check_size(bmp.width, bmp.height, &error) &&
           bmp_lacks_pixels(&bmp, size);
}

static bool bmp_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    struct bmp bmp = {0};
    if (!bmp_read_header(&bmp, bytes, size, error)) {
        return false;
    }
    if (!check_size(bmp.width, bmp.height, error)) {
        return false;
    }
    if (bmp_lacks_pixels(&bmp, size)) {
        return error_set(error, "is a BMP that ends within its pixels");
    }
    if (!image_create(image, bmp.width, bmp.height, error)) {
        return false;
    }
    const uint64_t row_bytes = bmp_row_bytes(&bmp);
    for (size_t y = 0; y < bmp.height; y++) {
        size_t from = bmp.top_down ? y : (size_t)bmp.height - 1 - y;
        const uint8_t *row = bytes + bmp.pixels_at + from * row_bytes;
        for (size_t x = 0; x < bmp.width; x++) {
            set_pixel(image, y * bmp.width + x, bmp_colour(&bmp, row, x));
        }
    }
    return true;
}

static bool bmp_examine(struct image_head *head, const uint8_t *bytes, size_t size, bool *more, struct error *error)
{
    enum { ENOUGH = FILE_HEADER + 4 * MOST_COLOURS + 256 /* the palette follows the longest header */ };
    struct bmp bmp = {0};
    *more = size < ENOUGH;
    if (!bmp_read_header(&bmp, bytes, size, error) || !check_size(bmp.width, bmp.height, error)) {
        return false;
    }
    bool in_colour = bmp.bits > 8;
    for (unsigned i = 0; i < bmp.colours; i++) {
        in_colour = in_colour || !is_grey(bmp.palette[i]);
    }
    *head = (struct image_head){(int)bmp.width, (int)bmp.height, in_colour ? IMAGE_RGB : 1};
    return true;
}

/* --- PGM and PPM --- */

/* PBM, PGM and PPM, as text (P1 to P3) and in bytes (P4 to P6). Format: netpbm.sourceforge.net/doc/pgm.html. */

struct pnm_reader {
    const uint8_t *bytes;
    size_t size, at;
};

static bool pnm_is(const uint8_t *bytes, size_t size)
{
    return size >= 3 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '6' &&
           (bytes[2] == '#' || (bytes[2] != 0 && strchr(" \t\r\n", bytes[2])));
}

static bool is_blank(uint8_t byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static void skip_blanks(struct pnm_reader *reader)
{
    bool in_comment = false;
    for (; reader->at < reader->size; reader->at++) {
        uint8_t byte = reader->bytes[reader->at];
        if (byte == '#') {
            in_comment = true;
        } else if (byte == '\n' || byte == '\r') {
            in_comment = false;
        } else if (!in_comment && !is_blank(byte)) {
            return;
        }
    }
}

/* most_digits: 1 in P1, where digits need no separator. */
static bool read_number(struct pnm_reader *reader, int most_digits, unsigned *number)
{
    skip_blanks(reader);
    int digits = 0;
    for (*number = 0; reader->at < reader->size && digits < most_digits; digits++) {
        uint8_t byte = reader->bytes[reader->at];
        if (byte < '0' || byte > '9') {
            break;
        }
        *number = *number * 10 + (byte - '0');
        reader->at++;
    }
    return digits > 0;
}

/* The next sample in 0..255. */
static bool read_sample(struct pnm_reader *reader, int kind, unsigned largest, unsigned *value)
{
    if (kind <= 3) {
        if (!read_number(reader, kind == 1 ? 1 : 5, value)) {
            return false;
        }
    } else {
        size_t bytes = largest > 255 ? 2 : 1;
        if (reader->size - reader->at < bytes) {
            return false;
        }
        const uint8_t *sample = reader->bytes + reader->at;
        *value = bytes == 2 ? (unsigned)sample[0] << 8 | sample[1] : sample[0];
        reader->at += bytes;
    }
    *value = *value > largest ? 255 : (*value * 255 + largest / 2) / largest;
    return true;
}

/* P4: eight pixels in a byte, each row begins a new one; a set bit is black. */
static bool read_bits(struct pnm_reader *reader, struct image *image, struct error *error)
{
    size_t row_bytes = ((size_t)image->width + 7) / 8;
    if ((reader->size - reader->at) / row_bytes < (size_t)image->height) {
        return error_set(error, "is a PBM that ends within its pixels");
    }
    for (int y = 0; y < image->height; y++) {
        const uint8_t *row = reader->bytes + reader->at + (size_t)y * row_bytes;
        for (int x = 0; x < image->width; x++) {
            bool black = row[x / 8] >> (7 - x % 8) & 1;
            const uint8_t level = black ? 0 : 255;
            set_pixel(image, (size_t)y * (size_t)image->width + (size_t)x, (struct colour){level, level, level, 255});
        }
    }
    return true;
}

static bool read_pixels(struct pnm_reader *reader, struct image *image, int kind, unsigned largest, struct error *error)
{
    unsigned samples = kind % 3 == 0 ? 3 : 1;
    size_t pixels = (size_t)image->width * (size_t)image->height;
    for (size_t i = 0; i < pixels; i++) {
        unsigned values[3] = {0};
        for (unsigned s = 0; s < samples; s++) {
            if (!read_sample(reader, kind, largest, &values[s])) {
                return error_set(error, "is a PNM that ends within its pixels, after %zu of %zu", i, pixels);
            }
        }
        const unsigned first = kind == 1 ? 255 - values[0] : values[0];
        const struct colour colour = {(uint8_t)first, (uint8_t)(samples == 3 ? values[1] : first),
                                      (uint8_t)(samples == 3 ? values[2] : first), 255};
        set_pixel(image, i, colour);
    }
    return true;
}

struct pnm_head {
    int kind; /* 1 to 6 */
    unsigned width, height, largest;
};

/* Leaves the reader at the first pixel. */
static bool pnm_read_head(struct pnm_reader *reader, struct pnm_head *head, struct error *error)
{
    *head = (struct pnm_head){.kind = reader->bytes[1] - '0', .largest = 1};
    if (!read_number(reader, 9, &head->width) || !read_number(reader, 9, &head->height) ||
        (head->kind % 3 != 1 && !read_number(reader, 9, &head->largest))) {
        return error_set(error, "is a PNM with an incomplete header");
    }
    if (head->largest < 1 || head->largest > 65535) {
        return error_set(error, "is a PNM whose largest value is %u; expected 1 to 65535", head->largest);
    }
    if (head->kind > 3 && (reader->at == reader->size || !is_blank(reader->bytes[reader->at++]))) {
        return error_set(error, "is a PNM without a blank before its pixels");
    }
    return true;
}

static bool pnm_examine(struct image_head *head, const uint8_t *bytes, size_t size, bool *more, struct error *error)
{
    enum { ENOUGH = 4096 /* a comment may be long */ };
    struct pnm_reader reader = {bytes, size, 2};
    struct pnm_head pnm;
    *more = size < ENOUGH;
    if (!pnm_read_head(&reader, &pnm, error) || !check_size(pnm.width, pnm.height, error)) {
        return false;
    }
    *head = (struct image_head){(int)pnm.width, (int)pnm.height, pnm.kind % 3 == 0 ? IMAGE_RGB : 1};
    return true;
}

/* Each pixel takes at least a bit in P4, and a byte in other formats. */
static bool pnm_lacks_pixels(const struct pnm_head *head, size_t size)
{
    return (uint64_t)head->width * head->height / 8 > size;
}

static bool pnm_is_cut(const uint8_t *bytes, size_t size)
{
    struct pnm_reader reader = {bytes, size, 2};
    struct pnm_head head;
    struct error error;
    return pnm_read_head(&reader, &head, &error) && pnm_lacks_pixels(&head, size);
}

static bool pnm_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    struct pnm_reader reader = {bytes, size, 2};
    struct pnm_head head;
    if (!pnm_read_head(&reader, &head, error)) {
        return false;
    }
    if (pnm_lacks_pixels(&head, size)) {
        return error_set(error, "is a PNM of %ux%u pixels with only %zu bytes", head.width, head.height, size);
    }
    if (!image_create(image, head.width, head.height, error)) {
        return false;
    }
    return head.kind == 4 ? read_bits(&reader, image, error)
                          : read_pixels(&reader, image, head.kind, head.largest, error);
}

/* --- Orientation --- */

static unsigned get_16(const uint8_t *bytes, bool big)
{
    return big ? (unsigned)bytes[0] << 8 | bytes[1] : get_le16(bytes);
}

/* The orientation, 1 to 8, in EXIF data; 1 if there is none. */
static int exif_orientation(const uint8_t *tiff, size_t size)
{
    enum { TIFF_HEADER = 8, ENTRY = 12, ORIENTATION = 0x0112, SHORT = 3 };
    if (size < TIFF_HEADER) {
        return 1;
    }
    const bool big = tiff[0] == 'M';
    const uint32_t at = big ? get_be32(tiff + 4) : get_le32(tiff + 4);
    if (at > size - 2) {
        return 1;
    }
    const unsigned entries = get_16(tiff + at, big);
    for (size_t i = 0; i < entries && at + 2 + (i + 1) * ENTRY <= size; i++) {
        const uint8_t *entry = tiff + at + 2 + i * ENTRY;
        if (get_16(entry, big) == ORIENTATION && get_16(entry + 2, big) == SHORT) {
            const unsigned value = get_16(entry + 8, big);
            return value >= 1 && value <= 8 ? (int)value : 1;
        }
    }
    return 1;
}

/* A file's width and height, and how it is to be turned. */
struct turn {
    unsigned width, height;
    int orientation;
};

/* Are width and height exchanged? */
static bool lies(const struct turn *turn)
{
    return turn->orientation > 4;
}

static unsigned upright_width(const struct turn *turn)
{
    return lies(turn) ? turn->height : turn->width;
}

static unsigned upright_height(const struct turn *turn)
{
    return lies(turn) ? turn->width : turn->height;
}

/* Where pixel (x, y) of the file belongs in the upright image. */
static size_t upright(const struct turn *turn, size_t x, size_t y)
{
    const size_t width = turn->width, height = turn->height, right = width - 1 - x, below = height - 1 - y;
    switch (turn->orientation) {
    case 2:
        return y * width + right;
    case 3:
        return below * width + right;
    case 4:
        return below * width + x;
    case 5:
        return x * height + y;
    case 6:
        return x * height + below;
    case 7:
        return right * height + below;
    case 8:
        return right * height + y;
    default:
        return y * width + x;
    }
}

/* --- PNG --- */

/*
 * PNG by libspng, row by row: only two rows are in memory besides the image, whatever the file promises. It is given
 * the chunks that make up the pixels, and none of texts, colour profiles and the like.
 */

static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

enum { CHUNK_OVERHEAD = 12, HEADER_BYTES = 13, PNG_CHUNK_TYPE = 4, PNG_CHUNK_DATA = 8 };

struct png {
    const uint8_t *bytes;
    size_t size;
    size_t at, end; /* what libspng reads next, up to the end of this chunk */
    bool ended;     /* the file did, before its IEND */
    struct spng_ihdr header;
    struct colour palette[256];
    unsigned entries;
    bool has_key; /* one colour is transparent */
    unsigned key[3];
    struct turn turn;
};

static bool png_is(const uint8_t *bytes, size_t size)
{
    return size >= sizeof signature && memcmp(bytes, signature, sizeof signature) == 0;
}

static bool is_chunk(const uint8_t *chunk, const char *type)
{
    return memcmp(chunk + PNG_CHUNK_TYPE, type, 4) == 0;
}

/* Moves on to the next chunk that matters; false: the file ends before. */
static bool next_chunk(struct png *png)
{
    for (;;) {
        png->at = png->end;
        if (png->size - png->at < CHUNK_OVERHEAD) {
            return false;
        }
        const uint8_t *chunk = png->bytes + png->at;
        const uint32_t size = get_be32(chunk);
        if (size > png->size - png->at - CHUNK_OVERHEAD) {
            return false;
        }
        png->end = png->at + CHUNK_OVERHEAD + size;
        const bool is_critical = (chunk[PNG_CHUNK_TYPE] & 0x20) == 0; /* an upper-case letter */
        if (is_critical || is_chunk(chunk, "tRNS")) {
            return true;
        }
    }
}

/* How far bytes go; PNG_ENOUGH: up to the EXIF data, or the end. */
enum png_reach { PNG_NO_PIXELS, PNG_PIXELS, PNG_ENOUGH };

/* By EXIF data, before or behind the pixels. */
static enum png_reach png_orientation(const uint8_t *bytes, size_t size, int *orientation)
{
    enum png_reach reach = PNG_NO_PIXELS;
    *orientation = 1;
    for (size_t at = sizeof signature; size - at >= PNG_CHUNK_DATA;) {
        const uint8_t *chunk = bytes + at;
        const uint32_t length = get_be32(chunk);
        if (is_chunk(chunk, "IEND")) {
            return PNG_ENOUGH;
        }
        reach = is_chunk(chunk, "IDAT") ? PNG_PIXELS : reach;
        if (size - at < CHUNK_OVERHEAD || length > size - at - CHUNK_OVERHEAD) {
            return reach;
        }
        if (is_chunk(chunk, "eXIf")) {
            *orientation = exif_orientation(chunk + PNG_CHUNK_DATA, length);
            return PNG_ENOUGH;
        }
        at += CHUNK_OVERHEAD + length;
    }
    return reach;
}

static int png_read(spng_ctx *context, void *user, void *to, size_t size)
{
    struct png *png = user;
    (void)context;
    for (size_t done = 0, some; done < size; done += some) {
        if (png->at == png->end && !next_chunk(png)) {
            png->ended = true;
            return SPNG_IO_EOF;
        }
        some = png->end - png->at < size - done ? png->end - png->at : size - done;
        memcpy((uint8_t *)to + done, png->bytes + png->at, some);
        png->at += some;
    }
    return 0;
}

static bool png_fail(const struct png *png, int code, struct error *error)
{
    return png->ended ? error_set(error, "is a PNG that ends at byte %zu, before its IEND", png->size)
           : code == SPNG_EIDAT_TOO_SHORT || code == SPNG_EIDAT_STREAM
               ? error_set(error, "is a PNG whose image data ends too early or is damaged")
           : code == SPNG_ECHUNK_CRC ? error_set(error, "is a PNG of which a chunk is damaged: its CRC is wrong")
                                     : error_set(error, "is a PNG that cannot be read: %s", spng_strerror(code));
}

static unsigned png_samples(const struct png *png)
{
    switch (png->header.color_type) {
    case SPNG_COLOR_TYPE_TRUECOLOR:
        return 3;
    case SPNG_COLOR_TYPE_GRAYSCALE_ALPHA:
        return 2;
    case SPNG_COLOR_TYPE_TRUECOLOR_ALPHA:
        return 4;
    default:
        return 1;
    }
}

/* The palette, and what is transparent; both are optional. */
static void read_palette(struct png *png, spng_ctx *context)
{
    struct spng_plte palette;
    struct spng_trns transparent;
    const bool is_indexed = png->header.color_type == SPNG_COLOR_TYPE_INDEXED;
    if (is_indexed && spng_get_plte(context, &palette) == 0) {
        png->entries = palette.n_entries;
        for (unsigned i = 0; i < png->entries; i++) {
            const struct spng_plte_entry *entry = &palette.entries[i];
            png->palette[i] = (struct colour){entry->red, entry->green, entry->blue, 255};
        }
    }
    if (spng_get_trns(context, &transparent) != 0) {
        return;
    }
    for (unsigned i = 0; is_indexed && i < transparent.n_type3_entries && i < png->entries; i++) {
        png->palette[i].opacity = transparent.type3_alpha[i];
    }
    png->has_key = !is_indexed;
    const bool is_of_grey = png->header.color_type == SPNG_COLOR_TYPE_GRAYSCALE;
    png->key[0] = is_of_grey ? transparent.gray : transparent.red;
    png->key[1] = transparent.green;
    png->key[2] = transparent.blue;
}

/* Sample i of a row, in its own depth. */
static unsigned png_sample(const struct png *png, const uint8_t *row, size_t i)
{
    const unsigned depth = png->header.bit_depth;
    if (depth == 16) {
        return (unsigned)row[2 * i] << 8 | row[2 * i + 1];
    }
    if (depth == 8) {
        return row[i];
    }
    size_t bit = i * depth;
    return (unsigned)row[bit / 8] >> (8 - depth - bit % 8) & ((1u << depth) - 1);
}

static struct colour png_colour(const struct png *png, const uint8_t *row, size_t x)
{
    const unsigned samples = png_samples(png), largest = (1u << png->header.bit_depth) - 1;
    unsigned values[4] = {0};
    bool is_key = png->has_key;
    for (unsigned i = 0; i < samples; i++) {
        values[i] = png_sample(png, row, x * samples + i);
        is_key = is_key && values[i] == png->key[i % 3];
    }
    if (png->header.color_type == SPNG_COLOR_TYPE_INDEXED) {
        return values[0] < png->entries ? png->palette[values[0]] : (struct colour){.opacity = 255};
    }
    for (unsigned i = 0; i < samples; i++) {
        values[i] = (values[i] * 255 + largest / 2) / largest;
    }
    const unsigned opacity = is_key ? 0 : samples % 2 == 0 ? values[samples - 1] : 255;
    const bool in_colour = samples >= 3;
    return (struct colour){(uint8_t)values[0], (uint8_t)values[in_colour ? 1 : 0], (uint8_t)values[in_colour ? 2 : 0],
                           (uint8_t)opacity};
}

/* Position of one pass's pixels in the image. */
struct png_pass {
    unsigned x, step_x;
};

static bool png_read_rows(struct png *png, spng_ctx *context, uint8_t *row, size_t row_bytes, struct image *image,
                          struct error *error)
{
    static const struct png_pass adam7[7] = {{0, 8}, {4, 8}, {0, 4}, {2, 4}, {0, 2}, {1, 2}, {0, 1}};
    static const struct png_pass whole = {0, 1};
    struct spng_row_info info;
    int code = 0;
    while (code == 0) {
        code = spng_get_row_info(context, &info);
        code = code != 0 ? code : spng_decode_scanline(context, row, row_bytes);
        if (code != 0 && code != SPNG_EOI) {
            return png_fail(png, code, error);
        }
        const struct png_pass *pass = png->header.interlace_method ? &adam7[info.pass] : &whole;
        size_t i = 0;
        for (size_t x = pass->x; x < png->header.width; x += pass->step_x) {
            set_pixel(image, upright(&png->turn, x, info.row_num), png_colour(png, row, i++));
        }
    }
    return true;
}

/* What precedes the pixels. */
static bool png_begin(struct png *png, spng_ctx *context, struct error *error)
{
    enum { AT_WIDTH = 16, AT_HEIGHT = 20, AFTER = 24 };
    const bool has_size = png->size >= AFTER && is_chunk(png->bytes + sizeof signature, "IHDR");
    if (has_size && !check_size(get_be32(png->bytes + AT_WIDTH), get_be32(png->bytes + AT_HEIGHT), error)) {
        return false;
    }
    int code = spng_set_image_limits(context, IMAGE_MAX_SIDE, IMAGE_MAX_SIDE);
    png->end = sizeof signature;
    code = code != 0 ? code : spng_set_png_stream(context, png_read, png);
    code = code != 0 ? code : spng_get_ihdr(context, &png->header);
    return code == 0 || png_fail(png, code, error);
}

static bool png_decode_with(struct png *png, spng_ctx *context, struct image *image, struct error *error)
{
    if (!png_begin(png, context, error)) {
        return false;
    }
    const size_t row_bytes = ((size_t)png->header.width * png->header.bit_depth * png_samples(png) + 7) / 8;
    uint8_t *row = malloc(row_bytes);
    int code = row ? spng_decode_image(context, NULL, 0, SPNG_FMT_RAW, SPNG_DECODE_PROGRESSIVE) : SPNG_EMEM;
    bool done = code == 0 || png_fail(png, code, error);
    if (done) {
        read_palette(png, context);
        png->turn.width = png->header.width;
        png->turn.height = png->header.height;
        png_orientation(png->bytes, png->size, &png->turn.orientation);
        done = image_create(image, upright_width(&png->turn), upright_height(&png->turn), error) &&
               png_read_rows(png, context, row, row_bytes, image, error);
    }
    free(row);
    code = done ? spng_decode_chunks(context) : 0; /* the last checksum */
    return done && (code == 0 || png_fail(png, code, error));
}

static bool png_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    struct png png = {.bytes = bytes, .size = size};
    spng_ctx *context = spng_ctx_new(0);
    const bool done = context ? png_decode_with(&png, context, image, error)
                              : error_set(error, "out of memory while unpacking a PNG");
    spng_ctx_free(context);
    return done;
}

/* By the header, and for a palette by its colours. */
static bool png_examine(struct image_head *head, const uint8_t *bytes, size_t size, bool *more, struct error *error)
{
    struct png png = {.bytes = bytes, .size = size, .end = sizeof signature};
    *more = true;
    if (!next_chunk(&png) || !is_chunk(bytes + png.at, "IHDR") || png.end - png.at != CHUNK_OVERHEAD + HEADER_BYTES) {
        *more = size < sizeof signature + CHUNK_OVERHEAD + HEADER_BYTES;
        return error_set(error, "is a PNG that does not begin with IHDR");
    }
    const uint8_t *header = bytes + png.at + PNG_CHUNK_DATA;
    const unsigned colour = header[9];
    bool in_colour = (colour & SPNG_COLOR_TYPE_TRUECOLOR) != 0;
    if (!check_size(get_be32(header), get_be32(header + 4), error)) {
        *more = false;
        return false;
    }
    if (colour == SPNG_COLOR_TYPE_INDEXED) {
        if (!next_chunk(&png) || !is_chunk(bytes + png.at, "PLTE")) {
            return error_set(error, "is a PNG without a palette");
        }
        in_colour = false;
        for (size_t at = png.at + PNG_CHUNK_DATA; at + 7 <= png.end; at += 3) {
            in_colour = in_colour || bytes[at] != bytes[at + 1] || bytes[at] != bytes[at + 2];
        }
    }
    struct turn turn = {get_be32(header), get_be32(header + 4), 1};
    const enum png_reach reach = png_orientation(bytes, size, &turn.orientation);
    *more = reach != PNG_ENOUGH;
    if (reach == PNG_NO_PIXELS) {
        return error_set(error, "is a PNG that ends at byte %zu, before its pixels", size);
    }
    *head = (struct image_head){(int)upright_width(&turn), (int)upright_height(&turn), in_colour ? IMAGE_RGB : 1};
    return true;
}

/* --- writing --- */

static void put_be32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(value >> (24 - 8 * i));
    }
}

/* Adds length, type and CRC around `size` bytes that are already at `at` + 8; returns where the next chunk begins. */
static size_t seal_chunk(uint8_t *bytes, size_t at, const char *type, size_t size)
{
    put_be32(bytes + at, (uint32_t)size);
    memcpy(bytes + at + 4, type, 4);
    put_be32(bytes + at + 8 + size, (uint32_t)crc32(crc32(0, NULL, 0), bytes + at + 4, (uInt)size + 4));
    return at + size + CHUNK_OVERHEAD;
}

bool image_encode_png(const struct image *image, uint8_t **bytes, size_t *size, struct error *error)
{
    const int width = image->width, height = image->height;
    const size_t samples = (size_t)width * (size_t)image->channels, row = samples + 1, raw_bytes = row * (size_t)height;
    const uint8_t colour = image->channels == 1 ? SPNG_COLOR_TYPE_GRAYSCALE : SPNG_COLOR_TYPE_TRUECOLOR;
    uLongf packed = compressBound((uLong)raw_bytes);
    uint8_t *raw = malloc(raw_bytes);
    uint8_t *file = malloc(sizeof signature + HEADER_BYTES + (size_t)packed + (size_t)3 * CHUNK_OVERHEAD);
    if (!raw || !file) {
        free(raw);
        free(file);
        return error_set(error, "out of memory while writing an image of %dx%d", width, height);
    }
    for (int y = 0; y < height; y++) {
        raw[(size_t)y * row] = 0; /* no filter */
        memcpy(raw + (size_t)y * row + 1, image->pixels + (size_t)y * samples, samples);
    }
    memcpy(file, signature, sizeof signature);
    size_t at = sizeof signature;
    uint8_t *header = file + at + 8;
    put_be32(header, (uint32_t)width);
    put_be32(header + 4, (uint32_t)height);
    memcpy(header + 8, (uint8_t[]){8, colour, 0, 0, 0}, 5);
    at = seal_chunk(file, at, "IHDR", HEADER_BYTES);
    bool done = compress(file + at + 8, &packed, raw, (uLong)raw_bytes) == Z_OK;
    free(raw);
    if (!done) {
        free(file);
        return error_set(error, "out of memory while compressing an image of %dx%d", width, height);
    }
    at = seal_chunk(file, at, "IDAT", (size_t)packed);
    *size = seal_chunk(file, at, "IEND", 0);
    *bytes = file;
    return true;
}

/* --- JPEG --- */

/*
 * JPEG by libjpeg-turbo. Arithmetic coding and 12 bits are refused. What a decoder would only warn of, such as data
 * that ends early, is an error here. A progressive file has at most MOST_SCANS passes over its pixels, and fewer if it
 * is large, since a scan of a few bytes costs as much as a whole one.
 */

enum { MOST_SCANS = 100, LARGE_SCANS = 16 /* of IMAGE_MAX_PIXELS */, JPEG_BLOCK = 8, JPEG_MOST_SAMPLING = 4 };

/* What is known from the markers before the first scan. */
struct jpeg_head {
    unsigned width, height, components;
    bool multiple; /* the pixels come in several scans */
    int orientation;
};

static bool jpeg_is(const uint8_t *bytes, size_t size)
{
    return size >= 4 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF && bytes[3] >= 0xC0 && bytes[3] < 0xFF;
}

static int segment_orientation(const uint8_t *bytes, size_t size)
{
    enum { TIFF = 6 };
    return size > TIFF && memcmp(bytes, "Exif\0", TIFF) == 0 ? exif_orientation(bytes + TIFF, size - TIFF) : 1;
}

static bool is_frame(uint8_t marker) /* SOF0 to SOF15, but for DHT, JPG and DAC */
{
    return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/* Walks the segments up to the first scan. False: the bytes end before, or are no segments. */
static bool jpeg_read_head(struct jpeg_head *head, const uint8_t *bytes, size_t size, bool *more)
{
    enum { START_OF_SCAN = 0xDA, APP1 = 0xE1 };
    *head = (struct jpeg_head){.orientation = 1};
    *more = true;
    for (size_t at = 2; at + 4 <= size;) {
        const uint8_t marker = bytes[at + 1];
        if (bytes[at] != 0xFF) {
            *more = false;
            return false;
        }
        if (marker == 0xFF) { /* fill */
            at++;
            continue;
        }
        const size_t length = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (length < 2 || at + 2 + length > size) {
            *more = length >= 2;
            return false;
        }
        const uint8_t *body = bytes + at + 4;
        if (is_frame(marker) && length >= 8) {
            head->height = (unsigned)body[1] << 8 | body[2];
            head->width = (unsigned)body[3] << 8 | body[4];
            head->components = body[5];
            head->multiple = head->multiple || (marker & 3) == 2;
        } else if (marker == APP1 && head->orientation == 1) {
            head->orientation = segment_orientation(body, length - 2);
        } else if (marker == START_OF_SCAN) {
            head->multiple = head->multiple || length < 3 || body[0] < head->components;
            return head->width > 0;
        }
        at += 2 + length;
    }
    return false;
}

static bool jpeg_examine(struct image_head *head, const uint8_t *bytes, size_t size, bool *more, struct error *error)
{
    struct jpeg_head jpeg;
    if (!jpeg_read_head(&jpeg, bytes, size, more)) {
        return error_set(error,
                         *more ? "is a JPEG that ends at byte %zu, before its pixels"
                               : "is a JPEG that is damaged within its first %zu bytes",
                         size);
    }
    if (!check_size(jpeg.width, jpeg.height, error)) {
        return false;
    }
    const struct turn turn = {jpeg.width, jpeg.height, jpeg.orientation};
    *head = (struct image_head){(int)upright_width(&turn), (int)upright_height(&turn),
                                jpeg.components == 1 ? 1 : IMAGE_RGB};
    return true;
}

/* Coefficients of all scans are kept, two bytes each, in blocks up to the largest sampling factor. */
static size_t jpeg_coefficients(const struct jpeg_head *head)
{
    const size_t unit = JPEG_BLOCK * JPEG_MOST_SAMPLING;
    const size_t width = (head->width + unit - 1) / unit * unit, height = (head->height + unit - 1) / unit * unit;
    return head->multiple ? 2 * width * height * head->components : 0;
}

/* What decoding takes besides the image. */
static size_t jpeg_memory(const struct jpeg_head *head)
{
    enum { TABLES = 512 << 10, LINES = 64 /* of samples, where they are sampled up and converted */ };
    return TABLES + (size_t)head->width * LINES * (head->components < 3 ? 3 : head->components) +
           jpeg_coefficients(head);
}

struct jpeg {
    struct jpeg_decompress_struct decoder;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    struct jpeg_head head;
    jmp_buf failed;
    bool done;
    struct error *error;
};

/* Called by the library, which does not go on: ends the decoding. */
static void jpeg_failed(j_common_ptr common)
{
    struct jpeg *jpeg = common->client_data;
    char text[JMSG_LENGTH_MAX];
    jpeg->errors.format_message(common, text);
    error_set(jpeg->error, "is a JPEG that cannot be read: %s", text);
    longjmp(jpeg->failed, 1);
}

/* Of the warnings those that say that pixels are missing or wrong are errors. */
static void jpeg_warned(j_common_ptr common, int level)
{
    const int code = common->err->msg_code;
    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_JFIF_MAJOR && code != JWRN_ADOBE_XFORM &&
        code != JWRN_BOGUS_PROGRESSION) {
        jpeg_failed(common);
    }
}

static void jpeg_no_output(j_common_ptr common)
{
    (void)common;
}

static void jpeg_count_scans(j_common_ptr common)
{
    struct jpeg *jpeg = common->client_data;
    const uint64_t scans = (uint64_t)jpeg->decoder.input_scan_number;
    const uint64_t pixels = (uint64_t)jpeg->decoder.image_width * jpeg->decoder.image_height;
    if (scans > MOST_SCANS || scans * pixels > (uint64_t)LARGE_SCANS * IMAGE_MAX_PIXELS) {
        error_set(jpeg->error, "is a JPEG of more than %d scans; save it again", (int)scans - 1);
        longjmp(jpeg->failed, 1);
    }
}

/* Of CMYK; Adobe's programs store the inks inverted, and say so in a marker. */
static uint8_t jpeg_ink(const struct jpeg *jpeg, unsigned ink, unsigned black)
{
    const bool inverted = jpeg->decoder.saw_Adobe_marker;
    return (uint8_t)(((inverted ? ink : 255 - ink) * (inverted ? black : 255 - black) + 127) / 255);
}

static void jpeg_put_row(const struct jpeg *jpeg, const uint8_t *row, size_t y, struct image *image)
{
    const struct turn turn = {jpeg->head.width, jpeg->head.height, jpeg->head.orientation};
    const size_t samples = (size_t)jpeg->decoder.output_components;
    for (size_t x = 0; x < jpeg->head.width; x++, row += samples) {
        const bool is_ink = samples == 4;
        const struct colour colour = {is_ink ? jpeg_ink(jpeg, row[0], row[3]) : row[0],
                                      is_ink         ? jpeg_ink(jpeg, row[1], row[3])
                                      : samples == 3 ? row[1]
                                                     : row[0],
                                      is_ink         ? jpeg_ink(jpeg, row[2], row[3])
                                      : samples == 3 ? row[2]
                                                     : row[0],
                                      255};
        set_pixel(image, upright(&turn, x, y), colour);
    }
}

/* Grey of a picture in luma and chroma is its luma. */
static J_COLOR_SPACE jpeg_output(const struct jpeg_decompress_struct *decoder, int channels)
{
    const bool has_luma = decoder->jpeg_color_space == JCS_YCbCr || decoder->jpeg_color_space == JCS_GRAYSCALE;
    return decoder->num_components == 4 ? JCS_CMYK : has_luma && channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
}

/* Leaves by jpeg->failed if the file is damaged. */
static bool jpeg_decode_with(struct jpeg *jpeg, const uint8_t *bytes, size_t size, struct image *image)
{
    struct jpeg_decompress_struct *decoder = &jpeg->decoder;
    jpeg_create_decompress(decoder);
    decoder->progress = &jpeg->progress;
    jpeg_mem_src(decoder, bytes, (unsigned long)size);
    jpeg_read_header(decoder, TRUE);
    const unsigned components = (unsigned)decoder->num_components;
    if (decoder->data_precision != 8 || (components != 1 && components != 3 && components != 4)) {
        return error_set(jpeg->error, "is a JPEG of %d bits in %u components; save it in grey or RGB with 8 bits",
                         decoder->data_precision, components);
    }
    if (decoder->image_width != jpeg->head.width || decoder->image_height != jpeg->head.height) {
        return error_set(jpeg->error, "is a JPEG that states two sizes");
    }
    const struct turn turn = {jpeg->head.width, jpeg->head.height, jpeg->head.orientation};
    if (!image_create(image, upright_width(&turn), upright_height(&turn), jpeg->error)) {
        return false;
    }
    decoder->mem->max_memory_to_use = (long)jpeg_memory(&jpeg->head);
    decoder->out_color_space = jpeg_output(decoder, image->channels);
    decoder->dct_method = JDCT_ISLOW;
    jpeg_start_decompress(decoder);
    JSAMPARRAY row = decoder->mem->alloc_sarray((j_common_ptr)decoder, JPOOL_IMAGE,
                                                decoder->output_width * (unsigned)decoder->output_components, 1);
    while (decoder->output_scanline < decoder->output_height) {
        const size_t y = decoder->output_scanline;
        jpeg_read_scanlines(decoder, row, 1);
        jpeg_put_row(jpeg, row[0], y, image);
    }
    jpeg_finish_decompress(decoder);
    return true;
}

static bool jpeg_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    struct jpeg jpeg = {.error = error, .progress = {.progress_monitor = jpeg_count_scans}};
    struct image_head head;
    bool more;
    if (!jpeg_examine(&head, bytes, size, &more, error)) {
        return false;
    }
    jpeg_read_head(&jpeg.head, bytes, size, &more);
    jpeg.decoder.err = jpeg_std_error(&jpeg.errors);
    jpeg.decoder.client_data = &jpeg;
    jpeg.errors.error_exit = jpeg_failed;
    jpeg.errors.emit_message = jpeg_warned;
    jpeg.errors.output_message = jpeg_no_output;
    if (setjmp(jpeg.failed) == 0) {
        jpeg.done = jpeg_decode_with(&jpeg, bytes, size, image);
    }
    jpeg_destroy_decompress(&jpeg.decoder);
    return jpeg.done;
}

/* --- Any format --- */

/* Finds the format by the first bytes; file names are not trusted. */

static const struct image_format {
    bool (*is)(const uint8_t *bytes, size_t size);
    bool (*decode)(struct image *image, const uint8_t *bytes, size_t size, struct error *error);
    bool (*examine)(struct image_head *head, const uint8_t *bytes, size_t size, bool *more, struct error *error);
} image_formats[] = {
    {jpeg_is, jpeg_decode, jpeg_examine},
    {png_is, png_decode, png_examine},
    {bmp_is, bmp_decode, bmp_examine},
    {pnm_is, pnm_decode, pnm_examine},
};

static const struct image_format *format_of(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < sizeof image_formats / sizeof image_formats[0]; i++) {
        if (image_formats[i].is(bytes, size)) {
            return &image_formats[i];
        }
    }
    return NULL;
}

/* The name of a format that can't be read; NULL: none of them. */
static const char *foreign_format(const uint8_t *bytes, size_t size)
{
    static const struct {
        const char *name, *begin;
        size_t at, size;
    } foreign[] = {{"GIF", "GIF87a", 0, 6},    {"GIF", "GIF89a", 0, 6},    {"WebP", "WEBP", 8, 4},
                   {"TIFF", "II*\0", 0, 4},    {"TIFF", "MM\0*", 0, 4},    {"AVIF", "ftypavif", 4, 8},
                   {"HEIC", "ftypheic", 4, 8}, {"HEIF", "ftypmif1", 4, 8}, {"JPEG 2000", "\0\0\0\fjP  ", 0, 8},
                   {"Photoshop", "8BPS", 0, 4}};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        if (size >= foreign[i].at + foreign[i].size &&
            memcmp(bytes + foreign[i].at, foreign[i].begin, foreign[i].size) == 0) {
            return foreign[i].name;
        }
    }
    return NULL;
}

bool image_is_known(const uint8_t *bytes, size_t size)
{
    return format_of(bytes, size) || foreign_format(bytes, size);
}

/* The format; NULL: the error says what else the bytes are. */
static const struct image_format *need_format(const uint8_t *bytes, size_t size, struct error *error)
{
    const struct image_format *format = format_of(bytes, size);
    const char *foreign = format ? NULL : foreign_format(bytes, size);
    if (foreign) {
        error_set(error, "is a %s picture, which is not read; convert it to PNG or JPEG", foreign);
    } else if (!format) {
        error_set(error, "is not a JPEG, PNG, BMP or PGM picture");
    }
    return format;
}

bool image_examine(struct image_head *head, const uint8_t *bytes, size_t size, bool *more, struct error *error)
{
    const struct image_format *format = need_format(bytes, size, error);
    *more = false;
    return format && format->examine(head, bytes, size, more, error);
}

/* Whether decoding fails before it takes memory, because the bytes are too few for pixels that are not compressed. */
static bool image_is_cut(const uint8_t *bytes, size_t size)
{
    return (pnm_is(bytes, size) && pnm_is_cut(bytes, size)) || (bmp_is(bytes, size) && bmp_is_cut(bytes, size));
}

size_t image_memory(const uint8_t *bytes, size_t size)
{
    enum { ROWS = 6 * IMAGE_MAX_SIDE * 8 /* libspng's, and ours */, CONTEXT = 256 << 10 };
    struct image_head head;
    struct jpeg_head jpeg;
    struct error error;
    bool more;
    if (!image_examine(&head, bytes, size, &more, &error) || image_is_cut(bytes, size)) {
        return 0;
    }
    const size_t pixels = (size_t)head.width * (size_t)head.height * IMAGE_RGB;
    return pixels +
           (jpeg_is(bytes, size) && jpeg_read_head(&jpeg, bytes, size, &more) ? jpeg_memory(&jpeg) : ROWS + CONTEXT);
}

bool image_decode(struct image *image, const uint8_t *bytes, size_t size, int channels, struct error *error)
{
    const struct image_format *format = need_format(bytes, size, error);
    *image = (struct image){.channels = channels};
    const bool done = format && format->decode(image, bytes, size, error);
    if (!done) {
        image_free(image);
    }
    return done;
}

void image_free(struct image *image)
{
    free(image->pixels);
    *image = (struct image){0};
}

/* --- Fitting --- */

/*
 * Scales with a tent filter as wide as a source or target pixel, whichever is larger: one rule that is smooth both
 * ways.
 */

enum { LIGHT = 128, INK = 32 }; /* a border at least this light is paper; a pixel at least this light on black is ink */

struct box {
    int left, top, right, bottom; /* right and bottom: one beyond */
};

/* The median of the border separates paper from ink: the ink rarely covers half of it. */
static bool has_light_border(const struct image *image)
{
    int light = 0, all = 0;
    for (int y = 0; y < image->height; y++) {
        bool edge = y == 0 || y == image->height - 1;
        for (int x = 0; x < image->width; x += edge || image->width == 1 ? 1 : image->width - 1) {
            light += image->pixels[(size_t)y * (size_t)image->width + (size_t)x] >= LIGHT;
            all++;
        }
    }
    return 2 * light > all;
}

/* Bounding box of the ink, in an image that is inverted by `flip`; the whole image if there is none. */
static struct box find_ink(const uint8_t *pixels, int width, int height, uint8_t flip)
{
    struct box box = {width, height, 0, 0};
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            if ((pixels[(size_t)y * (size_t)width + (size_t)x] ^ flip) >= INK) {
                box.left = x < box.left ? x : box.left;
                box.right = x + 1 > box.right ? x + 1 : box.right;
                box.top = y < box.top ? y : box.top;
                box.bottom = y + 1;
            }
        }
    }
    return box.right > 0 ? box : (struct box){0, 0, width, height};
}

/* Tent-weighted mean of a row of `count` values around target pixel `i`; `stride` between values. */
static float resample(const float *values, int count, int stride, int i, double scale)
{
    double radius = fmax(scale, 1), centre = ((double)i + 0.5) * scale - 0.5, sum = 0, weights = 0;
    int first = (int)ceil(centre - radius), last = (int)floor(centre + radius);
    for (int k = first < 0 ? 0 : first; k <= last && k < count; k++) {
        double weight = 1 - fabs((double)k - centre) / radius;
        if (weight > 0) {
            sum += weight * (double)values[(size_t)k * (size_t)stride];
            weights += weight;
        }
    }
    return weights > 0 ? (float)(sum / weights) : 0;
}

/* One channel of a box of an image, inverted by `flip`. */
struct plane {
    const struct image *image;
    struct box box;
    int channel;
    uint8_t flip;
};

/* row: [plane's width] and half: [plane's height, to_width], scratch; to: [to_height, to_width] */
static void resize(const struct plane *plane, float *row, float *half, float *to, int to_width, int to_height)
{
    const struct box *box = &plane->box;
    const size_t channels = (size_t)plane->image->channels, line = (size_t)plane->image->width * channels;
    const int from_width = box->right - box->left, from_height = box->bottom - box->top;
    double scale_x = (double)from_width / to_width, scale_y = (double)from_height / to_height;
    for (int y = 0; y < from_height; y++) {
        const uint8_t *from = plane->image->pixels + (size_t)(box->top + y) * line + (size_t)plane->channel;
        for (int x = 0; x < from_width; x++) {
            row[x] = (float)(from[(size_t)(box->left + x) * channels] ^ plane->flip);
        }
        for (int x = 0; x < to_width; x++) {
            half[(size_t)y * (size_t)to_width + (size_t)x] = resample(row, from_width, 1, x, scale_x);
        }
    }
    for (int y = 0; y < to_height; y++) {
        for (int x = 0; x < to_width; x++) {
            to[(size_t)y * (size_t)to_width + (size_t)x] = resample(half + x, from_height, to_width, y, scale_y);
        }
    }
}

/* Places [ink_height, ink_width] with its centre of mass in the middle of the target, as far as it fits. */
static void place(const float *ink, int ink_width, int ink_height, uint8_t *fitted, int width, int height)
{
    double mass = 0, sum_x = 0, sum_y = 0;
    for (int y = 0; y < ink_height; y++) {
        for (int x = 0; x < ink_width; x++) {
            double value = (double)ink[(size_t)y * (size_t)ink_width + (size_t)x];
            mass += value;
            sum_x += value * (x + 0.5);
            sum_y += value * (y + 0.5);
        }
    }
    double centre_x = mass > 0 ? sum_x / mass : 0.5 * ink_width, centre_y = mass > 0 ? sum_y / mass : 0.5 * ink_height;
    int left = (int)lround(0.5 * width - centre_x), top = (int)lround(0.5 * height - centre_y);
    left = left < 0 ? 0 : left > width - ink_width ? width - ink_width : left;
    top = top < 0 ? 0 : top > height - ink_height ? height - ink_height : top;
    memset(fitted, 0, (size_t)width * (size_t)height);
    for (int y = 0; y < ink_height; y++) {
        for (int x = 0; x < ink_width; x++) {
            float value = ink[(size_t)y * (size_t)ink_width + (size_t)x];
            fitted[(size_t)(top + y) * (size_t)width + (size_t)(left + x)] =
                (uint8_t)lroundf(fminf(fmaxf(value, 0), 255));
        }
    }
}

static int at_least_one(double size)
{
    return size < 1 ? 1 : (int)lround(size);
}

/* Scratch of `resize`, and its result. */
static size_t resize_floats(int from_width, int from_height, int to_width, int to_height)
{
    return (size_t)from_width + ((size_t)from_height + (size_t)to_height) * (size_t)to_width;
}

size_t image_fit_memory(int height, const struct image_shape *shape)
{
    return resize_floats(IMAGE_MAX_SIDE, height, shape->width, shape->height) * sizeof(float);
}

/* scratch: [resize_floats] */
static void fit_digit(const struct plane *plane, float *scratch, const struct image_shape *shape, uint8_t *fitted)
{
    const int ink_width = plane->box.right - plane->box.left, ink_height = plane->box.bottom - plane->box.top;
    const int width = shape->width, height = shape->height;
    double scale = fmax(ink_width / (20.0 / 28.0 * width), ink_height / (20.0 / 28.0 * height));
    int to_width = at_least_one(ink_width / scale), to_height = at_least_one(ink_height / scale);
    to_width = to_width > width ? width : to_width;
    to_height = to_height > height ? height : to_height;
    float *half = scratch + ink_width, *to = half + (size_t)ink_height * (size_t)to_width;
    resize(plane, scratch, half, to, to_width, to_height);
    place(to, to_width, to_height, fitted, width, height);
}

static void fit_scaled(struct plane *plane, float *scratch, const struct image_shape *shape, uint8_t *fitted)
{
    const size_t pixels = (size_t)shape->width * (size_t)shape->height, channels = (size_t)plane->image->channels;
    float *half = scratch + plane->image->width, *to = half + (size_t)plane->image->height * (size_t)shape->width;
    for (plane->channel = 0; plane->channel < plane->image->channels; plane->channel++) {
        resize(plane, scratch, half, to, shape->width, shape->height);
        for (size_t i = 0; i < pixels; i++) {
            fitted[i * channels + (size_t)plane->channel] = (uint8_t)lroundf(fminf(fmaxf(to[i], 0), 255));
        }
    }
}

bool image_fit(const struct image *image, const struct image_shape *shape, uint8_t *fitted, struct error *error)
{
    if (image->width == shape->width && image->height == shape->height) {
        memcpy(fitted, image->pixels, image_values(shape));
        return true;
    }
    struct plane plane = {.image = image, .box = {0, 0, image->width, image->height}};
    float *scratch = malloc(resize_floats(image->width, image->height, shape->width, shape->height) * sizeof *scratch);
    if (!scratch) {
        return error_set(error, "out of memory while scaling an image of %dx%d", image->width, image->height);
    }
    if (shape->digits && image->channels == 1) {
        plane.flip = has_light_border(image) ? 255 : 0;
        plane.box = find_ink(image->pixels, image->width, image->height, plane.flip);
        fit_digit(&plane, scratch, shape, fitted);
    } else {
        fit_scaled(&plane, scratch, shape, fitted);
    }
    free(scratch);
    return true;
}

int image_side(int pixels)
{
    int side = (int)lround(sqrt(pixels));
    return side * side == pixels ? side : 0;
}

bool image_size_parse(const char *text, int *height, int *width, struct error *error)
{
    char end;
    *height = *width = 0;
    if (strcmp(text, "auto") == 0) {
        return true;
    }
    if (strspn(text, "0123456789x") == strlen(text) && strlen(text) < 12) {
        const int read = sscanf(text, "%dx%d%c", height, width, &end);
        *width = read == 1 && !strchr(text, 'x') ? *height : *width;
        if ((read == 1 || read == 2) && *height >= 1 && *width >= 1 && *height <= IMAGE_MAX_SIDE &&
            *width <= IMAGE_MAX_SIDE) {
            return true;
        }
    }
    return error_set(error, "data.image_size: must be auto, a side (32) or height x width (32x48), not \"%.64s\"",
                     text);
}

struct image_shape image_shape_of(int inputs)
{
    const int side = image_side(inputs);
    return (struct image_shape){
        .height = side > 0 ? side : inputs > 0, .width = side > 0 ? side : inputs, .channels = 1, .digits = side > 0};
}
