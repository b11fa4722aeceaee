/*
 * Numbers in unaligned bytes: little-endian ones for our own formats, big-endian ones for others'. Compilers turn each
 * into one load or store. And bytes taken and put one after another, as signed lists are decoded and encoded.
 */
#ifndef NET_BYTES_H
#define NET_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void put_le16(uint8_t *bytes, uint16_t value)
{
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}

static inline void put_le32(uint8_t *bytes, uint32_t value)
{
    put_le16(bytes, (uint16_t)value);
    put_le16(bytes + 2, (uint16_t)(value >> 16));
}

static inline void put_le64(uint8_t *bytes, uint64_t value)
{
    put_le32(bytes, (uint32_t)value);
    put_le32(bytes + 4, (uint32_t)(value >> 32));
}

static inline uint16_t get_le16(const uint8_t *bytes)
{
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static inline uint32_t get_le32(const uint8_t *bytes)
{
    return get_le16(bytes) | (uint32_t)get_le16(bytes + 2) << 16;
}

static inline uint32_t get_be32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static inline uint64_t get_le64(const uint8_t *bytes)
{
    return get_le32(bytes) | (uint64_t)get_le32(bytes + 4) << 32;
}

/* --- One after another --- */

/* Bytes not yet taken. */
struct unread {
    const uint8_t *bytes;
    size_t size;
};

/* The next bytes; NULL, and nothing is taken, if there are fewer. */
static inline const uint8_t *take_bytes(struct unread *rest, size_t size)
{
    const uint8_t *bytes = rest->bytes;
    if (size > rest->size) {
        return NULL;
    }
    rest->bytes += size;
    rest->size -= size;
    return bytes;
}

static inline bool take_u32(struct unread *rest, uint32_t *number)
{
    const uint8_t *bytes = take_bytes(rest, sizeof *number);
    if (bytes) {
        *number = get_le32(bytes);
    }
    return bytes;
}

static inline bool take_u64(struct unread *rest, uint64_t *number)
{
    const uint8_t *bytes = take_bytes(rest, sizeof *number);
    if (bytes) {
        *number = get_le64(bytes);
    }
    return bytes;
}

/* A size of 4 bytes, at most `most`, and that many bytes without a zero; NULL: there is no such text. */
static inline const char *take_sized_text(struct unread *rest, size_t most, size_t *size)
{
    uint32_t length = 0;
    const uint8_t *bytes = take_u32(rest, &length) && length <= most ? take_bytes(rest, length) : NULL;
    *size = length;
    return bytes && !memchr(bytes, 0, length) ? (const char *)bytes : NULL;
}

/* The same, copied and ended. text: [most + 1] */
static inline bool take_text(struct unread *rest, char *text, size_t most)
{
    size_t size;
    const char *bytes = take_sized_text(rest, most, &size);
    if (bytes) {
        memcpy(text, bytes, size);
        text[size] = '\0';
    }
    return bytes;
}

/* Each returns where the next is put. */
static inline uint8_t *put_bytes(uint8_t *to, const void *bytes, size_t size)
{
    if (size > 0) { /* else bytes may be NULL */
        memcpy(to, bytes, size);
    }
    return to + size;
}

static inline uint8_t *put_u32(uint8_t *to, uint32_t number)
{
    put_le32(to, number);
    return to + sizeof number;
}

static inline uint8_t *put_u64(uint8_t *to, uint64_t number)
{
    put_le64(to, number);
    return to + sizeof number;
}

static inline uint8_t *put_sized_text(uint8_t *to, const char *text, size_t size)
{
    return put_bytes(put_u32(to, (uint32_t)size), text, size);
}

#endif
