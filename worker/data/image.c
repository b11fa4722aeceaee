/* Decoders of pictures, the encoder of PNG, and fitting to a model's size. */
#include "worker/data/image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#define ZLIB_CONST /* zlib does not write to its input */
#include <zlib.h>

#include "net/bytes.h"

/* Checks the size and allocates a white image, which image_free releases. */
static bool image_create(struct image *image, uint64_t width, uint64_t height, struct error *error)
{
    if (width < 1 || height < 1 || width > IMAGE_MAX_SIDE || height > IMAGE_MAX_SIDE ||
        width * height > IMAGE_MAX_PIXELS) {
        return error_set(error, "is an image of %llux%llu pixels; the limits are %d per side and %d in all",
                         (unsigned long long)width, (unsigned long long)height, IMAGE_MAX_SIDE, IMAGE_MAX_PIXELS);
    }
    *image = (struct image){.width = (int)width, .height = (int)height, .pixels = malloc((size_t)(width * height))};
    if (!image->pixels) {
        return error_set(error, "out of memory for an image of %dx%d", image->width, image->height);
    }
    memset(image->pixels, 255, (size_t)(width * height));
    return true;
}

/* ITU-R 601 in integers: the same grey on every machine. */
static inline uint8_t image_luma(unsigned red, unsigned green, unsigned blue)
{
    return (uint8_t)((299 * red + 587 * green + 114 * blue + 500) / 1000);
}

/* A grey pixel of that opacity (0..255) on white. */
static inline uint8_t image_on_white(unsigned grey, unsigned opacity)
{
    return (uint8_t)((grey * opacity + 255 * (255 - opacity) + 127) / 255);
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
    uint8_t palette[MOST_COLOURS];
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
        bmp->palette[i] = image_luma(entry[2], entry[1], entry[0]);
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

static uint8_t bmp_grey(const struct bmp *bmp, const uint8_t *row, size_t x)
{
    if (bmp->bits <= 8) {
        size_t bit = x * bmp->bits;
        unsigned index = (unsigned)row[bit / 8] >> (8 - bmp->bits - bit % 8) & ((1u << bmp->bits) - 1);
        return index < bmp->colours ? bmp->palette[index] : 0;
    }
    const uint8_t *pixel = row + x * (bmp->bits / 8);
    return image_luma(pixel[2], pixel[1], pixel[0]);
}

static bool bmp_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    struct bmp bmp = {0};
    if (!bmp_read_header(&bmp, bytes, size, error)) {
        return false;
    }
    if (!image_create(image, bmp.width, bmp.height, error)) {
        return false;
    }
    uint64_t row_bytes = (bmp.width * bmp.bits + 31) / 32 * 4;
    if (bmp.pixels_at > size || row_bytes * bmp.height > size - bmp.pixels_at) {
        return error_set(error, "is a BMP that ends within its pixels");
    }
    for (size_t y = 0; y < bmp.height; y++) {
        size_t from = bmp.top_down ? y : (size_t)bmp.height - 1 - y;
        const uint8_t *row = bytes + bmp.pixels_at + from * row_bytes;
        for (size_t x = 0; x < bmp.width; x++) {
            image->pixels[y * bmp.width + x] = bmp_grey(&bmp, row, x);
        }
    }
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
            image->pixels[(size_t)y * (size_t)image->width + (size_t)x] = black ? 0 : 255;
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
        image->pixels[i] = samples == 3 ? image_luma(values[0], values[1], values[2]) : (uint8_t)values[0];
        if (kind == 1) {
            image->pixels[i] = (uint8_t)(255 - image->pixels[i]);
        }
    }
    return true;
}

static bool pnm_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    struct pnm_reader reader = {bytes, size, 2};
    int kind = bytes[1] - '0';
    unsigned width, height, largest = 1;
    if (!read_number(&reader, 9, &width) || !read_number(&reader, 9, &height) ||
        (kind % 3 != 1 && !read_number(&reader, 9, &largest))) {
        return error_set(error, "is a PNM with an incomplete header");
    }
    if (largest < 1 || largest > 65535) {
        return error_set(error, "is a PNM whose largest value is %u; expected 1 to 65535", largest);
    }
    if (kind > 3 && (reader.at == size || !is_blank(bytes[reader.at++]))) {
        return error_set(error, "is a PNM without a blank before its pixels");
    }
    /* Each pixel takes at least a bit in P4, and a byte in other formats. */
    uint64_t pixels = (uint64_t)width * height;
    if (pixels / 8 > size) {
        return error_set(error, "is a PNM of %ux%u pixels with only %zu bytes", width, height, size);
    }
    if (!image_create(image, width, height, error)) {
        return false;
    }
    return kind == 4 ? read_bits(&reader, image, error) : read_pixels(&reader, image, kind, largest, error);
}

/* --- PNG --- */

/*
 * PNG, inflated by zlib row by row: only two rows are in memory besides the image, whatever the file promises.
 * Specification: W3C, "Portable Network Graphics (PNG) Specification (Second Edition)".
 */

static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

enum { CHUNK_OVERHEAD = 12, HEADER_BYTES = 13, MOST_ENTRIES = 256 };
enum colour_type { GREY = 0, RGB = 2, PALETTE = 3, GREY_ALPHA = 4, RGB_ALPHA = 6 };

struct png_chunk {
    const char *type; /* [4] */
    const uint8_t *bytes;
    size_t size;
};

struct png {
    const uint8_t *bytes;
    size_t size, at; /* of the next chunk */
    unsigned width, height, depth, colour, samples;
    bool interlaced;
    uint8_t palette[MOST_ENTRIES]; /* as grey, on white */
    unsigned entries;
    bool has_key; /* one colour is transparent */
    unsigned key[3];
    z_stream inflate;
    uint8_t *rows; /* two of the widest, a filter byte before each */
    size_t row_bytes;
};

static bool png_is(const uint8_t *bytes, size_t size)
{
    return size >= sizeof signature && memcmp(bytes, signature, sizeof signature) == 0;
}

static uint32_t get_be32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The pixels that the header states; 0: there is no whole header. */
static uint64_t png_pixels(const uint8_t *bytes, size_t size)
{
    enum { AT_WIDTH = 16, AT_HEIGHT = 20, END = 24 };
    return size < END ? 0 : (uint64_t)get_be32(bytes + AT_WIDTH) * get_be32(bytes + AT_HEIGHT);
}

static bool next_chunk(struct png *png, struct png_chunk *chunk, struct error *error)
{
    if (png->size - png->at < CHUNK_OVERHEAD) {
        return error_set(error, "is a PNG that ends at byte %zu, before its IEND", png->size);
    }
    const uint8_t *begin = png->bytes + png->at;
    uint32_t size = get_be32(begin);
    if (size > png->size - png->at - CHUNK_OVERHEAD) {
        return error_set(error, "is a PNG whose chunk at byte %zu extends beyond the end of the file", png->at);
    }
    *chunk = (struct png_chunk){(const char *)begin + 4, begin + 8, size};
    if (crc32(crc32(0, NULL, 0), begin + 4, size + 4) != get_be32(chunk->bytes + size)) {
        return error_set(error, "is a PNG whose chunk at byte %zu is damaged: its CRC is wrong", png->at);
    }
    png->at += CHUNK_OVERHEAD + (size_t)size;
    return true;
}

static bool is_type(const struct png_chunk *chunk, const char *type)
{
    return memcmp(chunk->type, type, 4) == 0;
}

static unsigned samples_of(unsigned colour)
{
    static const uint8_t samples[] = {[GREY] = 1, [RGB] = 3, [PALETTE] = 1, [GREY_ALPHA] = 2, [RGB_ALPHA] = 4};
    return colour < sizeof samples ? samples[colour] : 0;
}

static bool depth_is_allowed(unsigned depth, unsigned colour)
{
    bool is_small = depth == 1 || depth == 2 || depth == 4;
    return depth == 8 || (is_small && (colour == GREY || colour == PALETTE)) || (depth == 16 && colour != PALETTE);
}

static bool png_read_header(struct png *png, struct error *error)
{
    struct png_chunk chunk;
    if (!next_chunk(png, &chunk, error)) {
        return false;
    }
    if (!is_type(&chunk, "IHDR") || chunk.size != HEADER_BYTES) {
        return error_set(error, "is a PNG that does not begin with IHDR");
    }
    const uint8_t *bytes = chunk.bytes;
    png->width = get_be32(bytes);
    png->height = get_be32(bytes + 4);
    png->depth = bytes[8];
    png->colour = bytes[9];
    png->samples = samples_of(png->colour);
    png->interlaced = bytes[12] == 1;
    if (png->samples == 0 || !depth_is_allowed(png->depth, png->colour) || bytes[10] != 0 || bytes[11] != 0 ||
        bytes[12] > 1) {
        return error_set(error, "is a PNG with an invalid combination of colour type %u, depth %u and interlacing %u",
                         png->colour, png->depth, bytes[12]);
    }
    return true;
}

static bool png_read_palette(struct png *png, const struct png_chunk *chunk, struct error *error)
{
    if (chunk->size % 3 != 0 || chunk->size == 0 || chunk->size > (size_t)3 * MOST_ENTRIES) {
        return error_set(error, "is a PNG with a palette of %zu bytes", chunk->size);
    }
    png->entries = (unsigned)(chunk->size / 3);
    for (unsigned i = 0; i < png->entries; i++) {
        const uint8_t *colour = chunk->bytes + (size_t)3 * i;
        png->palette[i] = image_luma(colour[0], colour[1], colour[2]);
    }
    return true;
}

static void read_transparency(struct png *png, const struct png_chunk *chunk)
{
    if (png->colour == PALETTE) {
        for (size_t i = 0; i < chunk->size && i < png->entries; i++) {
            png->palette[i] = image_on_white(png->palette[i], chunk->bytes[i]);
        }
    } else if (png->samples % 2 == 1 && chunk->size == (size_t)2 * png->samples) {
        png->has_key = true;
        for (unsigned i = 0; i < png->samples; i++) {
            png->key[i] = (unsigned)chunk->bytes[2 * i] << 8 | chunk->bytes[2 * i + 1];
        }
    }
}

/* Reads everything before the image data; leaves the first IDAT in chunk. */
static bool read_preamble(struct png *png, struct png_chunk *chunk, struct error *error)
{
    for (;;) {
        if (!next_chunk(png, chunk, error)) {
            return false;
        }
        if (is_type(chunk, "IDAT")) {
            break;
        }
        if (is_type(chunk, "PLTE") && !png_read_palette(png, chunk, error)) {
            return false;
        }
        if (is_type(chunk, "tRNS")) {
            read_transparency(png, chunk);
        } else if (is_type(chunk, "IEND")) {
            return error_set(error, "is a PNG without an image");
        }
    }
    return png->colour != PALETTE || png->entries > 0 || error_set(error, "is a PNG without its palette");
}

/* The next `size` bytes of the IDAT chunks' content. */
static bool inflate_bytes(struct png *png, uint8_t *bytes, size_t size, struct error *error)
{
    png->inflate.next_out = bytes;
    png->inflate.avail_out = (uInt)size;
    while (png->inflate.avail_out > 0) {
        struct png_chunk chunk;
        if (png->inflate.avail_in == 0) {
            if (!next_chunk(png, &chunk, error)) {
                return false;
            }
            if (!is_type(&chunk, "IDAT")) {
                return error_set(error, "is a PNG whose image data ends too early");
            }
            png->inflate.next_in = chunk.bytes;
            png->inflate.avail_in = (uInt)chunk.size;
            continue; /* IDAT may be empty */
        }
        int status = inflate(&png->inflate, Z_NO_FLUSH);
        if (status == Z_STREAM_END && png->inflate.avail_out > 0) {
            return error_set(error, "is a PNG whose image data ends too early");
        }
        if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
            return error_set(error, "is a PNG with damaged image data");
        }
    }
    return true;
}

static uint8_t paeth(uint8_t left, uint8_t above, uint8_t corner)
{
    int estimate = left + above - corner;
    int to_left = abs(estimate - left), to_above = abs(estimate - above), to_corner = abs(estimate - corner);
    return to_left <= to_above && to_left <= to_corner ? left : to_above <= to_corner ? above : corner;
}

/* row: filter byte, then `size` bytes; above: those of the row before it, zeros for the first. */
static bool unfilter(uint8_t *row, const uint8_t *above, size_t size, size_t pixel_bytes, struct error *error)
{
    uint8_t filter = *row++;
    if (filter > 4) {
        return error_set(error, "is a PNG with unknown filter %u", filter);
    }
    for (size_t i = 0; i < size; i++) {
        uint8_t left = i >= pixel_bytes ? row[i - pixel_bytes] : 0, up = above[i];
        uint8_t corner = i >= pixel_bytes ? above[i - pixel_bytes] : 0;
        uint8_t predictions[] = {0, left, up, (uint8_t)((left + up) / 2), paeth(left, up, corner)};
        row[i] = (uint8_t)(row[i] + predictions[filter]);
    }
    return true;
}

/* Sample i of a row, in its own depth. */
static unsigned png_sample(const struct png *png, const uint8_t *row, size_t i)
{
    if (png->depth == 16) {
        return (unsigned)row[2 * i] << 8 | row[2 * i + 1];
    }
    if (png->depth == 8) {
        return row[i];
    }
    size_t bit = i * png->depth;
    return (unsigned)row[bit / 8] >> (8 - png->depth - bit % 8) & ((1u << png->depth) - 1);
}

static uint8_t png_grey(const struct png *png, const uint8_t *row, size_t x)
{
    unsigned values[4] = {0}, largest = (1u << png->depth) - 1;
    bool is_key = png->has_key;
    for (unsigned i = 0; i < png->samples; i++) {
        values[i] = png_sample(png, row, x * png->samples + i);
        is_key = is_key && values[i] == png->key[i % 3];
    }
    if (png->colour == PALETTE) {
        return values[0] < png->entries ? png->palette[values[0]] : 0;
    }
    if (is_key) {
        return 255;
    }
    for (unsigned i = 0; i < png->samples; i++) {
        values[i] = (values[i] * 255 + largest / 2) / largest;
    }
    uint8_t grey = png->samples >= 3 ? image_luma(values[0], values[1], values[2]) : (uint8_t)values[0];
    return png->samples % 2 == 0 ? image_on_white(grey, values[png->samples - 1]) : grey;
}

/* Position of one pass's pixels in the image. */
struct png_pass {
    unsigned x, y, step_x, step_y;
};

static bool read_pass(struct png *png, const struct png_pass *pass, struct image *image, struct error *error)
{
    if (png->width <= pass->x || png->height <= pass->y) {
        return true;
    }
    size_t width = (png->width - pass->x + pass->step_x - 1) / pass->step_x;
    size_t bits = (size_t)png->depth * png->samples;
    size_t size = (width * bits + 7) / 8, pixel_bytes = (bits + 7) / 8;
    uint8_t *row = png->rows, *above = png->rows + png->row_bytes;
    memset(above, 0, png->row_bytes);
    for (unsigned y = pass->y; y < png->height; y += pass->step_y) {
        if (!inflate_bytes(png, row, size + 1, error) || !unfilter(row, above + 1, size, pixel_bytes, error)) {
            return false;
        }
        for (size_t i = 0; i < width; i++) {
            image->pixels[(size_t)y * png->width + pass->x + i * pass->step_x] = png_grey(png, row + 1, i);
        }
        uint8_t *swap = row;
        row = above;
        above = swap;
    }
    return true;
}

static bool read_image(struct png *png, struct image *image, struct error *error)
{
    static const struct png_pass whole = {0, 0, 1, 1};
    static const struct png_pass adam7[7] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                             {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
    if (!png->interlaced) {
        return read_pass(png, &whole, image, error);
    }
    for (int i = 0; i < 7; i++) {
        if (!read_pass(png, &adam7[i], image, error)) {
            return false;
        }
    }
    return true;
}

static bool png_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    struct png png = {.bytes = bytes, .size = size, .at = sizeof signature};
    struct png_chunk chunk;
    if (!png_read_header(&png, error) || !read_preamble(&png, &chunk, error) ||
        !image_create(image, png.width, png.height, error)) {
        return false;
    }
    png.row_bytes = 1 + ((size_t)png.width * png.depth * png.samples + 7) / 8;
    png.rows = malloc(2 * png.row_bytes);
    if (!png.rows || inflateInit(&png.inflate) != Z_OK) {
        free(png.rows);
        return error_set(error, "out of memory while unpacking a PNG");
    }
    png.inflate.next_in = chunk.bytes;
    png.inflate.avail_in = (uInt)chunk.size;
    bool done = read_image(&png, image, error);
    inflateEnd(&png.inflate);
    free(png.rows);
    return done;
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

bool image_encode_png(const uint8_t *pixels, int width, int height, uint8_t **bytes, size_t *size, struct error *error)
{
    size_t row = (size_t)width + 1, raw_bytes = row * (size_t)height;
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
        memcpy(raw + (size_t)y * row + 1, pixels + (size_t)y * (size_t)width, (size_t)width);
    }
    memcpy(file, signature, sizeof signature);
    size_t at = sizeof signature;
    uint8_t *header = file + at + 8;
    put_be32(header, (uint32_t)width);
    put_be32(header + 4, (uint32_t)height);
    memcpy(header + 8, (uint8_t[]){8, GREY, 0, 0, 0}, 5);
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

/* --- Any format --- */

/* Finds the format by the first bytes; file names are not trusted. */

bool image_is_known(const uint8_t *bytes, size_t size)
{
    return png_is(bytes, size) || bmp_is(bytes, size) || pnm_is(bytes, size);
}

size_t image_memory(const uint8_t *bytes, size_t size)
{
    enum { ROWS = 2 * IMAGE_MAX_SIDE * 8, LEAST_BITS = 8 /* pixels in a byte */ };
    if (!image_is_known(bytes, size)) {
        return 0;
    }
    const uint64_t most = size < IMAGE_MAX_PIXELS / LEAST_BITS ? size * LEAST_BITS : IMAGE_MAX_PIXELS;
    const uint64_t pixels = png_is(bytes, size) ? png_pixels(bytes, size) : most;
    return pixels > IMAGE_MAX_PIXELS ? 0 : (size_t)pixels + ROWS;
}

bool image_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    bool done;
    *image = (struct image){0};
    if (png_is(bytes, size)) {
        done = png_decode(image, bytes, size, error);
    } else if (bmp_is(bytes, size)) {
        done = bmp_decode(image, bytes, size, error);
    } else if (pnm_is(bytes, size)) {
        done = pnm_decode(image, bytes, size, error);
    } else {
        done = error_set(error, "is not a PNG, BMP or PGM image");
    }
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

/* The median of the border tells paper from ink: the ink rarely covers half of it. */
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

/* Bounding box of the ink; the whole image if there is none. */
static struct box find_ink(const uint8_t *pixels, int width, int height)
{
    struct box box = {width, height, 0, 0};
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            if (pixels[(size_t)y * (size_t)width + (size_t)x] >= INK) {
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

/* from: [from_height, from_width]; half: [from_height, to_width], scratch; to: [to_height, to_width] */
static void resize(const float *from, int from_width, int from_height, float *half, float *to, int to_width,
                   int to_height)
{
    double scale_x = (double)from_width / to_width, scale_y = (double)from_height / to_height;
    for (int y = 0; y < from_height; y++) {
        for (int x = 0; x < to_width; x++) {
            half[(size_t)y * (size_t)to_width + (size_t)x] =
                resample(from + (size_t)y * (size_t)from_width, from_width, 1, x, scale_x);
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

bool image_fit(const struct image *image, int width, int height, uint8_t *fitted, struct error *error)
{
    size_t pixels = (size_t)image->width * (size_t)image->height;
    if (image->width == width && image->height == height) {
        memcpy(fitted, image->pixels, pixels);
        return true;
    }
    uint8_t flip = has_light_border(image) ? 255 : 0;
    uint8_t *light = malloc(pixels);
    float *ink = NULL;
    bool done = false;
    if (!light) {
        goto out;
    }
    for (size_t i = 0; i < pixels; i++) {
        light[i] = image->pixels[i] ^ flip;
    }
    struct box box = find_ink(light, image->width, image->height);
    int ink_width = box.right - box.left, ink_height = box.bottom - box.top;
    double scale = fmax(ink_width / (20.0 / 28.0 * width), ink_height / (20.0 / 28.0 * height));
    int to_width = at_least_one(ink_width / scale), to_height = at_least_one(ink_height / scale);
    to_width = to_width > width ? width : to_width;
    to_height = to_height > height ? height : to_height;
    size_t cut = (size_t)ink_width * (size_t)ink_height, half = (size_t)ink_height * (size_t)to_width;
    ink = malloc((cut + half + (size_t)to_width * (size_t)to_height) * sizeof *ink);
    if (!ink) {
        goto out;
    }
    for (int y = 0; y < ink_height; y++) {
        for (int x = 0; x < ink_width; x++) {
            ink[(size_t)y * (size_t)ink_width + (size_t)x] =
                (float)light[(size_t)(box.top + y) * (size_t)image->width + (size_t)(box.left + x)];
        }
    }
    resize(ink, ink_width, ink_height, ink + cut, ink + cut + half, to_width, to_height);
    place(ink + cut + half, to_width, to_height, fitted, width, height);
    done = true;
out:
    free(ink);
    free(light);
    return done || error_set(error, "out of memory while scaling an image of %dx%d", image->width, image->height);
}

int image_side(int pixels)
{
    int side = (int)lround(sqrt(pixels));
    return side * side == pixels ? side : 0;
}

bool image_fit_inputs(const struct image *image, int inputs, uint8_t *fitted, struct error *error)
{
    int side = image_side(inputs);
    if ((int64_t)image->width * image->height == inputs) {
        return image_fit(image, image->width, image->height, fitted, error);
    }
    if (side == 0) {
        return error_set(error, "is an image of %dx%d, but the model's %d inputs are not a square to scale it to",
                         image->width, image->height, inputs);
    }
    return image_fit(image, side, side, fitted, error);
}
