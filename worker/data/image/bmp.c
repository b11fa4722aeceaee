/* BMP as Windows writes it: BITMAPINFOHEADER or its successors, 1, 4, 8, 24 or 32 bits, uncompressed. */
#include "worker/data/image/formats.h"

#include <string.h>

#include "net/bytes.h"

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

bool bmp_is(const uint8_t *bytes, size_t size)
{
    return size >= FILE_HEADER + 4 && bytes[0] == 'B' && bytes[1] == 'M' &&
           get_le32(bytes + FILE_HEADER) >= INFO_HEADER;
}

/* Default positions of red, green and blue in a 32-bit pixel. */
static bool masks_are_usual(const uint8_t *masks)
{
    return get_le32(masks) == 0xFF0000 && get_le32(masks + 4) == 0xFF00 && get_le32(masks + 8) == 0xFF;
}

static bool read_palette(struct bmp *bmp, const uint8_t *bytes, size_t size, uint64_t at, struct error *error)
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

static bool read_header(struct bmp *bmp, const uint8_t *bytes, size_t size, struct error *error)
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
    return bmp->bits > 8 || read_palette(bmp, bytes, size, FILE_HEADER + (uint64_t)header, error);
}

static uint8_t grey_of(const struct bmp *bmp, const uint8_t *row, size_t x)
{
    if (bmp->bits <= 8) {
        size_t bit = x * bmp->bits;
        unsigned index = (unsigned)row[bit / 8] >> (8 - bmp->bits - bit % 8) & ((1u << bmp->bits) - 1);
        return index < bmp->colours ? bmp->palette[index] : 0;
    }
    const uint8_t *pixel = row + x * (bmp->bits / 8);
    return image_luma(pixel[2], pixel[1], pixel[0]);
}

bool bmp_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    struct bmp bmp = {0};
    if (!read_header(&bmp, bytes, size, error)) {
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
            image->pixels[y * bmp.width + x] = grey_of(&bmp, row, x);
        }
    }
    return true;
}
