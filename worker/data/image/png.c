/*
 * PNG, inflated by zlib row by row: only two rows are in memory besides the image, whatever the file promises.
 * Specification: W3C, "Portable Network Graphics (PNG) Specification (Second Edition)".
 */
#include "worker/data/image/formats.h"

#include <stdlib.h>
#include <string.h>

#define ZLIB_CONST /* zlib does not write to its input */
#include <zlib.h>

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

bool png_is(const uint8_t *bytes, size_t size)
{
    return size >= sizeof signature && memcmp(bytes, signature, sizeof signature) == 0;
}

static uint32_t get_be32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

uint64_t png_pixels(const uint8_t *bytes, size_t size)
{
    enum { WIDTH = 16, HEIGHT = 20, END = 24 };
    return size < END ? 0 : (uint64_t)get_be32(bytes + WIDTH) * get_be32(bytes + HEIGHT);
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

static bool read_header(struct png *png, struct error *error)
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

static bool read_palette(struct png *png, const struct png_chunk *chunk, struct error *error)
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
        if (is_type(chunk, "PLTE") && !read_palette(png, chunk, error)) {
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
static unsigned sample(const struct png *png, const uint8_t *row, size_t i)
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

static uint8_t grey_of(const struct png *png, const uint8_t *row, size_t x)
{
    unsigned values[4] = {0}, largest = (1u << png->depth) - 1;
    bool is_key = png->has_key;
    for (unsigned i = 0; i < png->samples; i++) {
        values[i] = sample(png, row, x * png->samples + i);
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
            image->pixels[(size_t)y * png->width + pass->x + i * pass->step_x] = grey_of(png, row + 1, i);
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

bool png_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    struct png png = {.bytes = bytes, .size = size, .at = sizeof signature};
    struct png_chunk chunk;
    if (!read_header(&png, error) || !read_preamble(&png, &chunk, error)) {
        return false;
    }
    png.row_bytes = 1 + ((size_t)png.width * png.depth * png.samples + 7) / 8;
    if (!image_create(image, png.width, png.height, error)) {
        return false;
    }
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
